"""`make bench-before BEFORE=COMMIT ONLY=weights,leases`: compare benchmarks of this tree with an earlier commit.

The commit is checked out into a temporary folder with a virtual environment of its own. Both trees then run a benchmark
at once, each with servers of its own, and this tree's code measures them in turns, a figure of seconds each, in ROUNDS
rounds, in the order before, after, after, before: a run of minutes differed by a third from the next of the same tree,
as a machine may become slower by half for seconds. What an idle system costs is part of the other's figures.
`registrations` and `reports` are parts of `http`.
Prints the figures of each round, then the median of each ratio after ÷ before; exits with 1 if the median of a
throughput is below 0.95 or that of a p50 above 1.05. SECONDS is passed on to the benchmarks. KEEP=1 writes
bench/results/before-weights.txt.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from bench import committed
from bench.claims import report as report_claims
from bench.side import BENCHMARKS
from bench.sides import Figure, started
from slipway_local.servers.child import Child
from slipway_local.servers.supervisor import Supervisor, run
from tests.support.folders import disk_folder

ROOT: Final = Path(__file__).parents[1]
ROUNDS: Final = 7
STOP_SECONDS: Final = 60.0  # a benchmark stops its servers
# Variables of this program and of the calling make, which must not reach a benchmark.
LEFT_OUT: Final = frozenset({"BEFORE", "ONLY", "ROUNDS", "KEEP", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"})
RATE_CLAIM: Final = 0.95
P50_CLAIM: Final = 1.05

# Parts of a benchmark: its name, and those of their figures.
PARTS: Final = {
    "registrations": ("http", ("registration",)),
    "reports": ("http", ("report of demand", "claim and its end")),
}
# Modules that use no more of a tree than its routes and events: lent to one that has none with this text, or to each,
# so that both are measured in the same way.
LENT: Final = {"tests/support/folders.py": "def disk_folder"}
LENT_TO_ALL: Final = (
    "bench/sides.py",
    "bench/side.py",
    "bench/commands.py",
    "bench/http.py",
    "bench/leases/side.py",
    "bench/leases/bench/pairs.py",
    "bench/leases/bench/handover.py",
)

# By file of an older commit, a text and what replaces it. Its `make bench-events` fails, because the tests' template
# database has a table of this name as well, or because a weight has no name, which has become a field of it.
REPAIRS: Final = {
    "bench/hop_latency.py": {
        " effect ": " hop ",
        '{"launch_config_id": name, "pool_id"': (
            '{**dict.fromkeys({"launch_config_id", "name"} & {*WeightChanged.__struct_fields__}, name), "pool_id"'
        ),
    },
}

# What a benchmark that is lent says of this tree, and what it has to say of one before a change: by a file of a tree
# and a text that this file has since then.
LENT_TO_EARLIER: Final = {
    ("libs/api/slipway_api/events/topics.py", ""): {"slipway_api.events": "slipway_common.events"},
    ("libs/common/slipway_common/base/process/guard.py", ""): {
        "slipway_common.base.process.guard": "slipway_local.servers.guard"
    },
    ("bench/events.py", "def surroundings(before"): {"surroundings(before)": "surroundings()"},
    # Registration secrets were derived from one key, of the service's setting.
    ("services/provisioner/slipway_provisioner/domain/registration.py", "class RegistrationKeys"): {
        "from slipway_provisioner.domain.registration import RegistrationKeys": (
            "from slipway_common.base.ids import hash_secret\n"
            "from slipway_provisioner.domain.registration import batch_secret"
        ),
        "RegistrationKeys(deployment.registration_keys).secret(batch)": (
            "batch_secret(hash_secret(deployment.token), batch)"
        ),
    },
    # A worker had one task, whose end was the end of all.
    ("services/provisioner/slipway_provisioner/apply/reports.py", "claimed_at"): {
        '{**task, "claimed_at": at, "at": utc_now().isoformat()}': '{"at": utc_now().isoformat()}'
    },
    # Declarations had the URL of the simulator.
    ("libs/local/slipway_local/demo/deployment.py", "SLIPWAY_PROVIDERS"): {
        "def declaration() ->": "def declared(url: str) ->",
        '"lease_pool": "sim"}]': '"lease_pool": "sim", "settings": {"url": url}}]',
        " declaration()": ' declared(deployment.url("simulator"))',
        "import LEASE_POOL, declaration": "import LEASE_POOL, declared",
    },
}


Figures = Mapping[str, Figure]
Trees = Mapping[str, Path]
Rounds = AsyncIterator[Mapping[str, Figures]]
"""Figures of both sides, round by round; the side that ran first comes first."""


class Incomplete(Exception):
    """A figure is 0."""


def chosen(only: str) -> dict[str, list[str]]:
    """Benchmarks that ONLY names, with the names of their figures. Raises KeyError for one that is none."""
    found: dict[str, list[str]] = {}
    for name in only.split(","):
        benchmark, wanted = PARTS.get(name) or (name, BENCHMARKS[name].figures)
        known = found.setdefault(benchmark, [])
        known += [figure for figure in wanted if figure not in known]
    return found


def counted(name: str, figure: Figure) -> Figure:
    """A figure of one run. Raises Incomplete if nothing was measured."""
    if not figure.value:
        raise Incomplete(f"{name!r} is 0: SECONDS is too short for this machine")
    return figure


def compared(before: Figures, after: Figures) -> list[str]:
    """A line per figure of one round."""
    return [
        f"  {name:<26}{before[name]!s:<32}→ {figure!s:<32}× {figure.value / before[name].value:.3f}"
        for name, figure in after.items()
    ]


def claims(rounds: Sequence[tuple[Figures, Figures]]) -> dict[str, bool]:
    """Median ratio of each figure with its bound, and True if it holds."""
    found = {}
    for name, figure in rounds[0][1].items():
        ratio = median(after[name].value / before[name].value for before, after in rounds)
        if figure.p99 is None:
            found[f"{name} × {ratio:.3f} ≥ {RATE_CLAIM}"] = ratio >= RATE_CLAIM
        else:
            found[f"{name} p50 × {ratio:.3f} ≤ {P50_CLAIM}"] = ratio <= P50_CLAIM
    return found


def check_out(commit: str, folder: Path) -> None:
    """Write the files of a commit to a new folder. Raises subprocess.CalledProcessError."""
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    subprocess.run(["git", "archive", "--output", archive, commit], cwd=ROOT, check=True)
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    for path, replacements in REPAIRS.items():
        if (file := folder / path).exists():
            file.write_text(replaced(file.read_text(), replacements))
    changed = [replacements for place, replacements in LENT_TO_EARLIER.items() if not has(folder, *place)]
    for path in (*LENT_TO_ALL, *(path for path, text in LENT.items() if not has(folder, path, text))):
        content = (ROOT / path).read_text()
        for replacements in changed:
            content = replaced(content, replacements)
        (folder / path).write_text(content)


def has(folder: Path, path: str, text: str) -> bool:
    """True if a tree has a file with a text."""
    return (folder / path).exists() and text in (folder / path).read_text()


def replaced(content: str, replacements: Mapping[str, str]) -> str:
    """A text with others in it replaced."""
    for old, new in replacements.items():
        content = content.replace(old, new)
    return content


async def called(tree: Path, command: Sequence[str], log: Path) -> None:
    """Run a command to its end. A benchmark that misses its own bounds fails, but has printed its figures."""
    given = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    child = Child(command[-1], command, log=log, env=given, cwd=tree)
    child.start()
    try:
        await child.wait()
    finally:
        await child.stop(STOP_SECONDS)


def order(number: int) -> tuple[str, str]:
    """Sides in the order of a round: before, after, after, before, and so on."""
    return ("before", "after") if number % 2 == 0 else ("after", "before")


async def in_turns(trees: Trees, benchmark: str, wanted: Collection[str], number: int) -> Rounds:
    """Rounds of a benchmark whose sides run at once, and measure one figure after another. Raises Incomplete."""
    async with contextlib.AsyncExitStack() as stack:
        sides = {
            name: await stack.enter_async_context(
                started("bench.side", benchmark, python=python(tree), tree=tree, ROUNDS=str(number))
            )
            for name, tree in trees.items()
        }
        for side in sides.values():
            await side.ready()
        for n in range(number):
            found: dict[str, dict[str, Figure]] = {name: {} for name in order(n)}
            for place, figure in enumerate(wanted):
                for name in order(n + place):
                    found[name][figure] = counted(figure, await sides[name].ask(figure, Figure))
            yield found


def python(tree: Path) -> str:
    return str(tree / ".venv/bin/python")


async def measure(_: Supervisor) -> int:
    """Run and print all rounds, then check the median ratios."""
    commit, only = os.environ.get("BEFORE", ""), os.environ.get("ONLY", "")
    number = int(os.environ.get("ROUNDS", ROUNDS))
    if not commit or not set(only.split(",")) <= {*BENCHMARKS, *PARTS} or number < 1:
        known = ",".join((*BENCHMARKS, *PARTS))
        print(f"expected BEFORE=COMMIT, ONLY= some of {known}, and ROUNDS of at least 1", file=sys.stderr)
        return 2
    with disk_folder("slipway-before-") as folder:
        trees = {"before": folder / "tree", "after": ROOT}
        try:
            check_out(commit, trees["before"])
        except subprocess.CalledProcessError:
            return 2  # git has printed the reason
        lines = [f"make bench-before BEFORE={commit} ONLY={only} ROUNDS={number}"]
        print(f"installing the environment of {commit} …", flush=True)
        await called(trees["before"], ("make", "--no-print-directory", "setup"), folder / "setup.log")
        judged: dict[str, bool] = {}
        for benchmark, wanted in chosen(only).items():
            rounds = []
            try:
                async for found in in_turns(trees, benchmark, wanted, number):
                    rounds.append((found["before"], found["after"]))
                    shown = [f"{benchmark}, round {len(rounds)}, {' and '.join(found)}", *compared(*rounds[-1])]
                    print(*shown, sep="\n", flush=True)
                    lines += shown
            except Incomplete as incomplete:
                print(f"{benchmark}, round {len(rounds) + 1}: {incomplete}", file=sys.stderr)
                return 1
            judged |= claims(rounds)
    shown = [f"median of the ratios of {number} rounds", *(f"  {claim}" for claim in judged)]
    print(*shown, sep="\n")
    lines += shown
    name_of_file = f"before-{only.replace(',', '-')}.txt"
    if (kept := committed.folder_to_write(os.environ, name_of_file)) is not None:
        (kept / name_of_file).write_text("\n".join(lines) + "\n")
    if number < ROUNDS:
        print(f"not judged: {number} rounds; a judgement needs {ROUNDS}")
        return 2
    return report_claims(judged)


if __name__ == "__main__":
    sys.exit(run(measure))
