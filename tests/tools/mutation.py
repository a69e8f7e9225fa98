"""Mutation of the pure rooms by mutmut: how many of its mutants the unit tests of a room notice.

`python -m tests.tools.mutation`, with `ONLY=room,room` [default: all], `SINCE=commit` for the modules that changed, and
`PROCESSES=2` [default: 1]. `SECONDS=600` stops after that time in each room. `QUICK=.2` leaves out the tests that take
longer, so that more mutants live, and most of the time of those is saved. `AGAIN=1` tries only what lived in the
last run on this computer, after tests were added, and what it left; everything if the service has changed since.
`KEEP=1` writes the lines of rooms that have ended to bench/results/mutation.md.

mutmut finds nothing in several distributions at once, so it works on a copy in which all packages lie side by side.
Texts and calls of the log are left as they are.

Survivors that need no test are listed in tests/survivors.toml with the reason: `equivalent` (nothing can tell the two
apart, as argued), `wording` (a sentence or an order that no decision reads) or `tolerance` (a bound is as good one
further). Others are printed. The run fails if less than 85 % of the mutants of a room are killed, or more than 3 %
are in no test.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from slipway_local.servers.child import Child
from slipway_local.servers.supervisor import Supervisor
from slipway_local.servers.supervisor import run as run_supervised
from tests.support.folders import temporary_folder

ROOT: Final = Path(__file__).parents[2]
SURVIVORS: Final = ROOT / "tests" / "survivors.toml"
RESULTS: Final = ROOT / "bench" / "results" / "mutation.md"
LAST: Final = ROOT / ".mutation"
"""Folder of the last run of each room."""
KILLED_MIN, UNTESTED_MAX = 0.85, 0.03
UNTRIED: Final = "not checked"
"""Status of a mutant that a run did not come to."""
ROOMS: Final[Mapping[str, tuple[str, str]]] = {
    # services/provisioner
    "planning": (
        "slipway_provisioner",
        "accounting ageing capping choice demand fairness freezing headroom planning pool reasons scale_down sources "
        "starvation surplus unleased windows",
    ),
    "launching": ("slipway_provisioner", "binding cloud deadlines launching throttling user_data"),
    "workers": (
        "slipway_provisioner",
        "claims consoles identity refused_terminations registration timeline unresponsiveness workers",
    ),
    "roll_outs": ("slipway_provisioner", "revisions roll_out rollback"),
    "declaring": ("slipway_provisioner", "comparison declaration guard operator ownership pauses"),
    "limits": ("slipway_provisioner", "costs limits prices"),
    "recovery": ("slipway_provisioner", "reaping recovery"),
    "accounts": ("slipway_provisioner", "account_check encryption reachability"),
    "workspaces": ("slipway_provisioner", "orphan_workspaces workspace_locks workspace_runs workspaces"),
    # services/lease-broker
    "leases": (
        "slipway_lease_broker",
        "commands declaration endings exchange holders ledger ownership receipt reception refusals sender "
        "submissions terms text throttling unleased",
    ),
    "admission": (
        "slipway_lease_broker",
        "adaptive admit backoff decide drift eta fairness gangs limits paces pacing queue_status report rules "
        "situation spread",
    ),
    "slots": ("slipway_lease_broker", "slots"),
    # services/weight-calculator
    "weights": (
        "slipway_weight_calculator",
        "blame draft evidence health image_moves outcomes policy record rows weights world",
    ),
    "breakers": ("slipway_weight_calculator", "boots probes trips windows"),
    "signals": ("slipway_weight_calculator", "alerts health_signals signals"),
}
"""Package and modules of each room, named for its things."""

Reason = Literal["equivalent", "wording", "tolerance"]
SETTINGS: Final = """
[tool.pytest.ini_options]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "session"
addopts = [
    "--hypothesis-seed=0", "--hypothesis-profile=mutation", "-p", "no:cacheprovider",
    # It collects all garbage at the end of each mutant, which takes two thirds of the time of a killed one.
    "-p", "no:unraisableexception",
]

[tool.mutmut]
source_paths = ["{package}"]
only_mutate = [{modules}]
also_copy = [{others}]
pytest_add_cli_args_test_selection = [{tests}]
do_not_mutate_patterns = ['\\\\bLOG\\\\.']
# A mutant has this factor twice in processor time, of the time of its tests without mutants.
timeout_multiplier = 1.5
"""


class Survivor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mutants that need no test: the lines of a function that they change, what each makes of them, and the reason."""

    function: str
    old: str
    new: list[str]
    reason: Reason
    why: str = ""


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    survivor: list[Survivor] = []


class Ended(msgspec.Struct, frozen=True):
    """A mutant as it ended, and its diff if it survived."""

    name: str
    status: str
    diff: str

    @property
    def is_open(self) -> bool:
        """True if it lived, or was not tried."""
        return self.status in ("survived", "no tests", UNTRIED)

    @property
    def change(self) -> tuple[str, str, str]:
        """The function, and its lines before and after: what `mutants` numbers anew at each edit."""
        lines = self.diff.splitlines()[2:]
        old, new = ("\n".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in ("-", "+"))
        function = re.sub(r"x_(?=[^.]+$)|xǁ", "", self.name.partition("__mutmut_")[0]).replace("ǁ", ".")
        return function, old, new


class Run(msgspec.Struct, frozen=True):
    """Every mutant of a room as it ended, and the digest of the service then."""

    digest: str
    ended: list[Ended]


class Tally(msgspec.Struct, frozen=True):
    """A room after its run. `listed` are the survivors with a reason."""

    room: str
    mutants: int
    killed: int
    survived: int
    untested: int
    listed: Mapping[str, int]

    @property
    def holds(self) -> bool:
        """True if enough mutants are killed and few are untested."""
        return self.killed >= KILLED_MIN * self.mutants and self.untested <= UNTESTED_MAX * self.mutants

    @property
    def line(self) -> str:
        """Line of the table."""
        share = self.killed / max(1, self.mutants)
        reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(self.listed.items())) or "–"
        counts = f"{self.mutants} | {self.killed} ({share:.1%}) | {self.survived} | {self.untested}"
        return f"| {self.room} | {counts} | {reasons} |"


HEADER: Final = "| room | mutants | killed | survived | untested | survivors with a reason |\n|---|---|---|---|---|---|"


def files_of(room: str) -> list[str]:
    """Modules of a room, as paths in the stage."""
    package, modules = ROOMS[room]
    return [f"{package}/domain/{module}.py" for module in modules.split()]


def tests_of(room: str) -> list[str]:
    """Files of the service's unit tests that name a module of a room."""
    package, modules = ROOMS[room]
    names = re.compile(rf"\b(?:{'|'.join(modules.split())})\b")
    folder = ROOT / "tests" / "unit" / package.removeprefix("slipway_")
    return [
        path.relative_to(ROOT).as_posix() for path in sorted(folder.glob("test_*.py")) if names.search(path.read_text())
    ]


def changed_since(commit: str) -> set[str]:
    """Modules that changed since a commit, as paths in the stage. Raises CalledProcessError for an unknown commit."""
    argv = ["git", "diff", "--name-only", commit, "--", "libs", "services"]
    listed = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {name.split("/", 2)[2] for name in listed.splitlines() if name.count("/") > 2}


def packages() -> Iterator[Path]:
    """Packages of all distributions."""
    for folder in ("libs", "services"):
        yield from (path.parent for path in sorted((ROOT / folder).glob("*/slipway_*/__init__.py")))


def stage(folder: Path, room: str, modules: Sequence[str]) -> None:
    """Copy all packages side by side, the tests and the guides that they read, with the settings of mutmut."""
    names = []
    for source in packages():
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        names.append(source.name)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs" / "guides", folder / "docs" / "guides")
    some = {"modules": modules, "others": [*names, "tests", "docs"], "tests": tests_of(room)}
    quoted = {name: ", ".join(f'"{path}"' for path in paths) for name, paths in some.items()}
    (folder / "pyproject.toml").write_text(SETTINGS.format(package=ROOMS[room][0], **quoted))


def digest(room: str) -> str:
    """Digest of the service of a room."""
    folder = next(each for each in packages() if each.name == ROOMS[room][0])
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))).hexdigest()


def last_run(room: str) -> list[Ended]:
    """Mutants of the last run of a room; none if its service has changed since."""
    path = LAST / f"{room}.json"
    run = msgspec.json.decode(path.read_bytes(), type=Run) if path.exists() else None
    return run.ended if run is not None and run.digest == digest(room) else []


def merged(last: Sequence[Ended], ended: Sequence[Ended]) -> list[Ended]:
    """Mutants of a run; those that it did not try are as they ended in the last one."""
    before = {each.name: each for each in last}
    return [before.get(each.name, each) if each.status == UNTRIED else each for each in ended]


async def mutated(room: str, modules: Sequence[str], names: Sequence[str] = ()) -> list[Ended]:
    """Run mutmut on modules of a room, on all mutants or on those named; returns every mutant as it ended.

    Raises RuntimeError if it did not finish.
    """
    with temporary_folder("slipway-mutation-") as folder:
        stage(folder, room, modules)
        ended, log = folder / "ended.json", folder / "mutmut.log"
        program, processes = folder / "tests" / "tools" / "mutmut_run.py", os.environ.get("PROCESSES", "1")
        argv: list[str | Path] = [sys.executable, "-P", program, ended, processes, *names]
        child = Child("mutmut", argv, log=log, env=dict(os.environ) | {"PYTHONPATH": str(folder)}, cwd=folder)
        child.start()
        try:
            code = await child.wait()
        finally:
            await child.kill()
        if code != 0 or not ended.exists():
            raise RuntimeError(f"mutmut ended with {code} in {room}:\n{log.read_text(errors='replace')[-4000:]}")
        return msgspec.json.decode(ended.read_bytes(), type=list[Ended])


def tally(room: str, ended: Sequence[Ended], reasons: Mapping[tuple[str, str, str], Reason]) -> Tally:
    """Count a room. A mutant that makes a test last too long, or ends its process, is killed."""
    states = Counter(each.status for each in ended)
    listed: Counter[str] = Counter()
    listed.update(reasons[each.change] for each in ended if each.status == "survived" and each.change in reasons)
    survived, untested = states["survived"], states["no tests"]
    total = len(ended) - states["skipped"] - states[UNTRIED]
    return Tally(room, total, total - survived - untested, survived, untested, dict(listed))


def kept(text: str, tallies: Sequence[Tally]) -> str:
    """Text of the results with the lines of these rooms replaced."""
    known = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("| ")}
    known |= {each.room: each.line for each in tallies}
    before = text.partition(HEADER)[0] or "# Mutation\n\n"
    return before + "\n".join([HEADER, *(known[room] for room in ROOMS if room in known)]) + "\n"


def parse(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Rooms and their modules that the arguments name. Raises ValueError with the accepted values."""
    rooms = [room for room in environment.get("ONLY", "").split(",") if room] or [*ROOMS]
    if unknown := [room for room in rooms if room not in ROOMS]:
        raise ValueError(f"ONLY={','.join(unknown)}: no such room; there are {', '.join(ROOMS)}")
    since = environment.get("SINCE", "")
    changed = changed_since(since) if since else None
    chosen = {room: [file for file in files_of(room) if changed is None or file in changed] for room in rooms}
    return {room: files for room, files in chosen.items() if files}


async def work(chosen: Mapping[str, Sequence[str]]) -> int:
    """Mutate the rooms one after another; 1 if one of them is tested too little."""
    rows = msgspec.toml.decode(SURVIVORS.read_bytes(), type=Listed).survivor
    reasons = {(row.function, row.old, new): row.reason for row in rows for new in row.new}
    tallies, unlisted = [], 0
    for room, files in chosen.items():
        is_whole = [*files] == files_of(room)
        last = last_run(room) if is_whole and os.environ.get("AGAIN") else []
        names = [each.name for each in last if each.is_open]
        ended = merged(last, await mutated(room, files, names)) if names or not last else last
        untried = sum(each.status == UNTRIED for each in ended)
        if is_whole:
            LAST.mkdir(exist_ok=True)
            (LAST / f"{room}.json").write_bytes(msgspec.json.encode(Run(digest(room), ended)))
        tallies.append(tally(room, ended, reasons))
        for each in ended:
            if each.status == "no tests":
                print(f"untested {each.name}")
            elif each.status == "survived" and each.change not in reasons:
                unlisted += 1
                function, old, new = each.change
                print(f"survived {function}\n    - {old!r}\n    + {new!r}")
        print(tallies[-1].line + (f" {untried} not tried" if untried else ""), flush=True)
        if os.environ.get("KEEP") and not untried:
            RESULTS.write_text(kept(RESULTS.read_text() if RESULTS.exists() else "", tallies[-1:]))
    print("\n".join([HEADER, *(each.line for each in tallies)]))
    print(f"{unlisted} survivors without a reason")
    return 0 if all(each.holds for each in tallies) else 1


def main() -> int:
    try:
        chosen = parse(os.environ)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2

    async def supervised(_: Supervisor) -> int:
        return await work(chosen)

    return run_supervised(supervised)


if __name__ == "__main__":
    sys.exit(main())
