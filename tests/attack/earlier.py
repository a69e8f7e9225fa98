"""Run a program of the tests in the tree of an earlier commit, in the environment of this one."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.folders import temporary_folder

ROOT: Final = Path(__file__).parents[2]
EARLIER: Final = "SLIPWAY_ATTACK_EARLIER"
"""Variable of the process that runs in an earlier tree: the commit."""


def run_earlier(module: str, packages: Sequence[str], commit: str, environment: Mapping[str, str]) -> int:
    """Run a module, whose `packages` of the tests are lent to the tree; returns its exit code."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        print(f"BEFORE={commit}: {archive.stderr.decode().strip()}", file=sys.stderr)
        return 2
    with temporary_folder() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
            tree.extractall(folder, filter="data")
        for package in packages:
            (folder / "tests" / package).mkdir(exist_ok=True)
            for file in (ROOT / "tests" / package).glob("*.py"):
                (folder / "tests" / package / file.name).write_bytes(file.read_bytes())
        parts = [str(path) for part in ("libs", "services") for path in sorted((folder / part).iterdir())]
        env = {**environment, "PYTHONPATH": os.pathsep.join([str(folder), *parts]), EARLIER: commit}
        env.pop("BEFORE")
        return subprocess.run([sys.executable, "-m", module], cwd=folder, env=env, check=False).returncode
