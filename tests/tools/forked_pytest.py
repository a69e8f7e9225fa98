"""Pytest runs over one tree, each in a fork of a process that has imported the libraries before.

`python -P tests/tools/forked_pytest.py FILE`, where FILE is a JSON list of {name, file, text, test, seconds}: for each,
`file` reads `text` while `test` runs. Prints a JSON line {name, code, output} per run; `code` is null for a run past
its time. More than half of a short run is the import of libraries; no module of the tree is imported before the fork.
What the runs compile is kept for the next ones, except bytecode of `file`.
"""

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

LIBRARIES = (
    "pytest",
    "hypothesis",
    "hypothesis.stateful",
    "pytest_asyncio",
    "_hypothesis_pytestplugin",
    "anyio.pytest_plugin",
    "anyio._backends._asyncio",
    "platformdirs.pytest_plugin",
    "msgspec",
    "pydantic_settings",
    "fastapi",
    "fastapi.testclient",
    "httpx2",
    "aiobotocore.session",
    "aiokafka",
    "asyncpg",
    "structlog",
    "prometheus_client",
    "typer.testing",
    "rich.console",
    "rich.table",
    "uvicorn",
    "sqlalchemy.ext.asyncio",
    "alembic.config",
    "faststream.kafka",
    "yaml",
)
# With one seed, a law finds the same example in every run: a mutant is red always or never.
SEEDED = "--hypothesis-seed=0"
ARGUMENTS = ("-q", "-x", "--tb=short", "-p", "no:cacheprovider", SEEDED)
POLL_SECONDS = 0.01


def play(run: dict[str, Any]) -> dict[str, Any]:
    """One run; the file is as it was afterwards."""
    file = Path(run["file"])
    before, times = file.read_text(), file.stat()
    uncache(file)
    file.write_text(run["text"])
    try:
        with tempfile.TemporaryFile() as output:
            code = forked(run["test"], output.fileno(), run["seconds"])
            output.seek(0)
            return {"name": run["name"], "code": code, "output": output.read().decode(errors="replace")}
    finally:
        file.write_text(before)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        uncache(file)


def uncache(file: Path) -> None:
    """Remove the bytecode of a module: its time of whole seconds could match another text."""
    for cached in file.parent.glob(f"__pycache__/{file.stem}.*"):
        cached.unlink(missing_ok=True)


def forked(test: str, output: int, seconds: float) -> int | None:
    """Exit code of the test run; negative for a signal, None if it was ended for its time."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.setpgid(0, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = importlib.import_module("pytest").main([*ARGUMENTS, test])
            sys.stdout.flush()
            os._exit(code)
        os._exit(70)
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        late = time.monotonic() > end
        if done or late:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # it, or what it has left behind
        if done:
            return os.waitstatus_to_exitcode(status)
        if late:
            os.waitpid(pid, 0)
            return None
        time.sleep(POLL_SECONDS)


def main() -> None:
    runs = json.loads(Path(sys.argv[1]).read_bytes())
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()
    for run in runs:
        print(json.dumps(play(run)), flush=True)


if __name__ == "__main__":
    main()
