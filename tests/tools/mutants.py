"""Mutants of the invariants: break the code in a copy as listed in tests/mutants.toml, and expect the named test to
fail. The product contains no switches for this.

`python -m tests.tools.mutants check [--fast] [ONLY=group] [NAME…]`   check mutants [default: all]
`python -m tests.tools.mutants run NAME -- COMMAND…`   run a command on a broken copy: `make demo MUTANT=NAME`
"""

import argparse
import asyncio
import contextlib
import difflib
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from slipway_local.servers.child import Child
from slipway_local.servers.supervisor import Supervisor
from slipway_local.servers.supervisor import run as run_supervised
from tests.support.folders import temporary_folder
from tests.tools.forked_pytest import SEEDED

ROOT: Final = Path(__file__).parents[2]
LISTED: Final = "tests/mutants.toml"
COPIED: Final = (
    "libs",
    "services",
    "tests",
    "bench",
    "generate",
    "contracts",
    "docs",
    "examples",
    "infra",
    "pyproject.toml",
    "Makefile",
    "Dockerfile",
    "docker-compose.yml",
    ".dockerignore",
    "LICENSE",
    "requirements.lock",
    "requirements.demo.lock",
    "requirements.services.lock",
    "requirements.aws.lock",
    "requirements.operations.lock",
    "requirements.terraform.lock",
    "requirements.redis.lock",
    "requirements.terraform-tests.lock",
)
LEFT_OUT: Final = shutil.ignore_patterns(".*", "*.egg-info", "*.pyc.*")  # half-written bytecode of a neighbour
AT_A_TIME: Final = 2
TEST_SECONDS: Final = 120.0
# All tests once, one after another: minutes, and more beside other layers. It ends a test that hangs, no slow run.
CONTROL_SECONDS: Final = 1800.0
STOP_SECONDS: Final = 60.0  # a whole deployment may have to shut down

SKIPPED: Final = re.compile(r"^\d+ skipped\b", re.MULTILINE)
# Only a failed assertion counts; import errors, crashes and failing fixtures prove nothing about a claim.
ASSERTED: Final = re.compile(r"^FAILED .* - (assert |AssertionError|Failed: DID NOT RAISE)", re.MULTILINE)
REASON: Final = re.compile(r"^(?:FAILED|ERROR) .*", re.MULTILINE)


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One claim: `test` guards it if it fails once `old`, which occurs once in `file`, reads `new`.

    `test` is a path relative to tests/. `fast` rows need no server.
    """

    name: str
    group: str
    claim: str
    file: str
    old: str
    new: str
    test: str
    fast: bool = False

    def broken(self, source: str) -> str:
        """Source with the line broken; raises Stale unless `old` occurs exactly once."""
        if (count := source.count(self.old)) != 1:
            raise Stale(f"stale: `old` occurs {count} times in {self.file}, not once")
        return source.replace(self.old, self.new)


class Stale(Exception):
    """The line of a row is no longer in the code: the claim is unguarded until the row is updated."""


class Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mutant: list[Mutant]


def rows_of(root: Path = ROOT) -> dict[str, Mutant]:
    """Rows by name, with `test` relative to the root. Raises Stale for two rows of one name."""
    found: dict[str, Mutant] = {}
    for row in msgspec.toml.decode((root / LISTED).read_bytes(), type=Rows).mutant:
        if row.name in found:
            raise Stale(f"two rows are named {row.name}")
        found[row.name] = msgspec.structs.replace(row, test=f"tests/{row.test}")
    return found


def survives(code: int | None, output: str) -> str:
    """Why a test run does not prove the claim; empty when it is red by an assertion. Code None: it took too long."""
    if code == 0:
        return "its test was skipped" if SKIPPED.search(output) else "its test stays green"
    if code is None:
        return f"its test took more than {TEST_SECONDS:g} s"
    if code != 1 or not ASSERTED.search(output):
        reasons = REASON.findall(output) or output.strip().splitlines()[-1:]
        return f"its test ends with {code} and no failed assertion: {' / '.join(reasons)}"
    return ""


@contextlib.asynccontextmanager
async def copied(mutant: Mutant | None) -> AsyncIterator[Path]:
    """A copy of what runs, broken as the mutant says; removed afterwards, even if we are killed."""
    with temporary_folder("slipway-mutant-") as folder:
        copy = folder / "copy"
        copy.mkdir()
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, ignore=LEFT_OUT)
            else:
                shutil.copy2(ROOT / name, copy / name)
        if mutant is not None:
            file = copy / mutant.file
            file.write_text(mutant.broken(file.read_text()))
            shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)  # a time of whole seconds could match
        yield copy


def environment(copy: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The copy's packages come before the installed ones, which are the unbroken tree; children inherit that."""
    paths = [copy, *sorted(copy.glob("libs/*")), *sorted(copy.glob("services/*"))]
    changed = {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONHASHSEED": "0",  # the order of a set may decide which examples a law sees
        "COLUMNS": "1000",  # pytest cuts reasons to the columns
    }
    if demand := given.get("DEMAND"):
        changed["DEMAND"] = str(Path(demand).resolve())  # the command runs in the copy
    return dict(given) | changed


async def pytest(copy: Path, *arguments: str, seconds: float) -> tuple[int | None, str]:
    """Exit code and output of a test run in the copy."""
    log = copy / "pytest.log"
    argv = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", SEEDED, *arguments]
    child = Child("pytest", argv, log=log, env=environment(copy, os.environ), cwd=copy)
    child.start()
    try:
        async with asyncio.timeout(seconds):
            code = await child.wait()
    except TimeoutError:
        code = None
    finally:
        await child.kill()
    return code, log.read_text(errors="replace")


async def forked(mutants: Sequence[Mutant], copy: Path) -> dict[str, tuple[int | None, str]]:
    """Exit code and output of the test of each mutant, by its name: one after another, in forks of one process."""
    runs = [
        {
            "name": mutant.name,
            "file": str(copy / mutant.file),
            "text": mutant.broken((copy / mutant.file).read_text()),
            "test": mutant.test,
            "seconds": TEST_SECONDS,
        }
        for mutant in mutants
    ]
    listed, log = copy / "runs.json", copy / "pytest.log"
    listed.write_bytes(msgspec.json.encode(runs))
    argv: list[str | Path] = [sys.executable, "-P", copy / "tests" / "tools" / "forked_pytest.py", listed]
    child = Child("pytest", argv, log=log, env=environment(copy, os.environ), cwd=copy)
    child.start()
    try:
        await child.wait()
    finally:
        await child.kill()
    ends = [msgspec.json.decode(line) for line in log.read_bytes().splitlines() if line.startswith(b"{")]
    return {end["name"]: (end["code"], end["output"]) for end in ends}


async def check(mutants: Sequence[Mutant]) -> int:
    """Break each and print a line about it; 1 when a claim is unguarded. A survivor is tried once more, alone."""
    slots = asyncio.Semaphore(AT_A_TIME)
    reasons: dict[str, str] = {}

    def report(mutant: Mutant, reason: str) -> None:
        reasons[mutant.name] = reason
        line = f"{mutant.name}: {mutant.claim}"
        print(f"GREEN {line}: {reason}" if reason else f"red   {line}", flush=True)

    async def control() -> str:
        """Output of the same tests on the unbroken tree if they fail there: a test that always fails proves nothing."""
        async with slots, copied(None) as copy:
            tests = sorted({mutant.test for mutant in mutants})
            code, output = await pytest(copy, *tests, seconds=CONTROL_SECONDS)
        return "" if code == 0 else output

    async def on_servers(mutant: Mutant) -> None:
        """A process of its own: servers are started once per process and end with it."""
        async with slots, copied(mutant) as copy:
            report(mutant, survives(*await pytest(copy, "-x", mutant.test, seconds=TEST_SECONDS)))

    async def pure(batch: Sequence[Mutant]) -> None:
        async with slots, copied(None) as copy:
            ends = await forked(batch, copy)
        for mutant in batch:
            report(mutant, survives(*ends[mutant.name]) if mutant.name in ends else "its run did not report")

    fresh = []
    for mutant in mutants:
        try:
            mutant.broken((ROOT / mutant.file).read_text())
            fresh.append(mutant)
        except Stale as stale:
            report(mutant, str(stale))
    fast = [mutant for mutant in fresh if mutant.fast]
    async with asyncio.TaskGroup() as group:
        unbroken = group.create_task(control())
        for place in range(AT_A_TIME):
            group.create_task(pure(fast[place::AT_A_TIME]))
        for mutant in fresh:
            if not mutant.fast:
                group.create_task(on_servers(mutant))
    for mutant in fresh:
        if first := reasons[mutant.name]:
            # Beside other layers a process may start too late, or a time-out end a test before its assertion.
            print(f"again {mutant.name}, alone: {first}", flush=True)
            await on_servers(mutant)
    if unbroken.result():
        print(f"{unbroken.result()}\nnot all of these tests pass on the unbroken tree, so a failure proves nothing")
    red = sum(not reason for reason in reasons.values())
    for mutant in mutants:
        if reason := reasons[mutant.name]:
            print(f"GREEN {mutant.name}: {mutant.claim}: {reason}")
    print(f"{red} of {len(mutants)} red")
    return 0 if red == len(mutants) and not unbroken.result() else 1


async def run(mutant: Mutant, command: Sequence[str]) -> int:
    """Run a command in a broken copy; its exit code. What it keeps in .slipway is kept here."""
    async with copied(mutant) as copy:
        (ROOT / ".slipway").mkdir(exist_ok=True)
        (copy / ".slipway").symlink_to(ROOT / ".slipway")
        child = Child(command[0], command, env=environment(copy, os.environ), cwd=copy)
        child.start()
        try:
            code = await child.wait()
        finally:
            await child.stop(STOP_SECONDS)
    return 1 if code is None else code if code >= 0 else 128 - code


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.mutants", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    checking = verbs.add_parser("check")
    checking.add_argument("--fast", action="store_true", help="only those that need no server")
    checking.add_argument("names", nargs="*", metavar="NAME or ONLY=group")
    running = verbs.add_parser("run")
    running.add_argument("name")
    running.add_argument("command", nargs="+")
    return parser.parse_args(argv)


def chosen(rows: Mapping[str, Mutant], names: Sequence[str], *, fast: bool) -> list[Mutant]:
    """The mutants that these arguments name; raises LookupError with what there is."""
    groups = {name.removeprefix("ONLY=") for name in names if name.startswith("ONLY=")}
    wanted = {name for name in names if not name.startswith("ONLY=")}
    if unknown := groups - {row.group for row in rows.values()}:
        known = ", ".join(sorted({row.group for row in rows.values()}))
        raise LookupError(f"no group {', '.join(sorted(unknown))}; there is {known}")
    if unknown := wanted - set(rows):
        similar = sorted({near for name in unknown for near in difflib.get_close_matches(name, rows, n=5)})
        there_is = f"did you mean {', '.join(similar)}?" if similar else f"their names are in {LISTED}"
        raise LookupError(f"no mutant {', '.join(sorted(unknown))}; {there_is}")
    return [
        row
        for row in rows.values()
        if (not names or row.name in wanted or row.group in groups) and (row.fast or not fast)
    ]


def main(argv: Sequence[str]) -> int:
    given, rows = arguments(argv), rows_of()
    try:
        if given.verb == "run":
            (mutant,) = chosen(rows, [given.name], fast=False)
        else:
            mutants = chosen(rows, given.names, fast=given.fast)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2

    async def work(_: Supervisor) -> int:
        return await (run(mutant, given.command) if given.verb == "run" else check(mutants))

    try:
        return run_supervised(work)
    except Stale as stale:
        print(f"{given.name}: {stale}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
