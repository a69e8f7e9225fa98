"""`make bench-loops`: what each loop of the provisioner costs in a small fleet and in a large one.

Two fleets of 50 workers a pool and 1,000 an account are filled by SQL on a real PostgreSQL. In each round, each loop
first has nothing due in either, then UNITS units of each kind of its work, in an order of chance. The cost is CPU time,
of the process and of its sessions, in plain commits of the same round. Prints the medians of all rounds and of their
ratios, then the claims; exits with 1 if one is false. WORKERS=100000 SMALL=1000 UNITS=20 ROUNDS=5 SEED=1,
ONLY=expire,reap for some loops.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from random import Random
from statistics import fmean, median
from typing import Any, Final

import msgspec
import structlog

from bench.claims import report
from bench.events import surroundings
from bench.loops.cost import commit_seconds, cpu_seconds, one_processor
from bench.loops.fleet import Size, fill
from bench.loops.work import WORK, Work, clean, make_due
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor, run
from tests.support.folders import disk_folder
from tests.support.provisioner import Provisioner

WORKERS, SMALL, UNITS, ROUNDS, SEED = 100_000, 1_000, 20, 5, 1
NOTHING_CLAIM: Final = 1.5
UNIT_CLAIM: Final = 1.3
REPEATS, BUSY_REPEATS = 10, 10
"""Steps of a loop with nothing due, and at most as many rounds with work due, that are measured together."""
ENOUGH_COMMITS: Final = 150
"""Cost after which no more rounds with work due are measured: that of a short round is chance."""


class Options(msgspec.Struct, frozen=True):
    workers: int
    small: int
    units: int
    rounds: int
    seed: int
    only: frozenset[str]


class Cell:
    """A fleet, and the costs that were measured in it, in plain commits, by loop and unit: "" for nothing due."""

    def __init__(self, provisioner: Provisioner, workers: int) -> None:
        self.provisioner = provisioner
        self.workers = workers
        self.costs: dict[tuple[str, str], list[float]] = {}
        self.commit = 0.0
        """CPU seconds of a plain commit in this round."""

    async def idle(self, work: Work) -> None:
        """Measure steps with nothing due."""

        async def steps() -> None:
            for _ in range(REPEATS):
                await work.run(self.provisioner)

        self._note(work.loop, "", await cpu_seconds(self.provisioner.database, steps) / REPEATS)

    async def busy(self, work: Work, units: int) -> None:
        """Measure a round with work due."""
        provisioner = self.provisioner
        cost, rounds, done = 0.0, 0, units
        while rounds < 2 or (rounds < BUSY_REPEATS and cost * done < ENOUGH_COMMITS * self.commit):
            rounds += 1
            done = units if work.units is None else await work.units(provisioner, units)
            await make_due(provisioner.database, work, done)
            cost += await cpu_seconds(provisioner.database, partial(work.run, provisioner)) / done
            await clean(provisioner.database, work)
        self._note(work.loop, work.unit, cost / rounds)

    def _note(self, loop: str, unit: str, seconds: float) -> None:
        self.costs.setdefault((loop, unit), []).append(seconds / self.commit)


async def measure(supervisor: Supervisor, options: Options) -> int:
    """Fill both fleets, then measure all rounds."""
    works = [work for work in WORK if not options.only or work.loop in options.only]
    before = os.getloadavg()[0]
    with one_processor(0), disk_folder("slipway-bench-") as folder:
        server = EmbeddedPostgres(folder / "postgres", {"autovacuum": "off", "synchronous_commit": "off"})
        await supervisor.start(server)
        cells = []
        for workers in (options.small, options.workers):
            print(f"filling a fleet of {workers:,} workers …", flush=True)
            cells.append(Cell(await fill(server, Size(workers)), workers))
        rng = Random(options.seed)
        for number in range(-1, options.rounds):
            print("warming up …" if number < 0 else f"round {number + 1} of {options.rounds} …", flush=True)
            await _round(cells, works, options.units, rng)
            if number < 0:
                for cell in cells:
                    cell.costs.clear()
        for cell in cells:
            await cell.provisioner.stop()
            await cell.provisioner.database.close()
        await supervisor.stop()
    print(f"\nmedians of {options.rounds} rounds, in plain commits, on {surroundings(before)}")
    return report(_judged(cells))


async def _round(cells: Sequence[Cell], works: Sequence[Work], units: int, rng: Random) -> None:
    """Measure everything once, in an order of chance."""
    commit = fmean([await commit_seconds(cell.provisioner.database) for cell in cells])
    for cell in cells:
        cell.commit = commit
    first = {work.loop: work for work in works if work.loop != "measure"}
    for work in rng.sample(list(first.values()), len(first)):
        for cell in rng.sample(cells, len(cells)):
            await cell.idle(work)
    for work in rng.sample([work for work in works if work.unit], sum(bool(work.unit) for work in works)):
        for cell in rng.sample(cells, len(cells)):
            await cell.busy(work, units)


def _judged(cells: Sequence[Cell]) -> dict[str, bool]:
    """Print the table; the claims with their figures."""
    small, large = cells
    print(f"{'loop':<20}{'due':<28}{small.workers:>10,}{large.workers:>10,}{'ratio':>8}")
    claims = {}
    worst = {"": 0.0, "unit": 0.0}
    for loop, unit in sorted(small.costs, key=lambda key: (key[0], key[1] != "", key[1])):
        costs = small.costs[loop, unit], large.costs[loop, unit]
        first, last = map(median, costs)
        ratio = median(after / before for before, after in zip(*costs, strict=True))
        bound = UNIT_CLAIM if unit else NOTHING_CLAIM
        kind = "unit" if unit else ""
        worst[kind] = max(worst[kind], ratio)
        print(f"{loop:<20}{(unit and f'per {unit}') or 'nothing':<28}{first:>10.2f}{last:>10.2f}{ratio:>8.2f}")
        if ratio > bound:
            claims[f"{loop}, {unit or 'nothing'} due: {ratio:.2f} ≤ {bound:g}"] = False
    claims[f"nothing due: at most {worst['']:.2f} ≤ {NOTHING_CLAIM:g}"] = worst[""] <= NOTHING_CLAIM
    claims[f"work due: at most {worst['unit']:.2f} a unit ≤ {UNIT_CLAIM:g}"] = worst["unit"] <= UNIT_CLAIM
    return claims


def main() -> int:
    usual: dict[str, Any] = {"WORKERS": WORKERS, "SMALL": SMALL, "UNITS": UNITS, "ROUNDS": ROUNDS, "SEED": SEED}
    try:
        given = {name.lower(): int(os.environ.get(name) or value) for name, value in usual.items()}
    except ValueError as error:
        print(f"{', '.join(usual)} are numbers: {error}", file=sys.stderr)
        return 2
    only = frozenset(filter(None, os.environ.get("ONLY", "").split(",")))
    loops = {work.loop for work in WORK}
    if given["small"] < 1_000 or given["workers"] < given["small"] or not 1 <= given["units"] <= 20 or only - loops:
        print(f"expected 1,000 ≤ SMALL ≤ WORKERS, 1 ≤ UNITS ≤ 20 and ONLY of {', '.join(loops)}", file=sys.stderr)
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return run(partial(measure, options=Options(**given, only=only)))


if __name__ == "__main__":
    sys.exit(main())
