"""`make bench-decision POOLS=2000 WORKERS=100000 IMAGES=50`: cost of a decision, and its path to the provider.

The whole system runs as processes with as many pools and machines; its machines are rows that stay silent, and nothing
limits what launches. For ten seconds the latency of one event hop is measured on the quiet system. Then a monitor
reports 70 changes a second, each of which asks for one machine, and the simulator's ledger has the times at which their
calls were received; a hop is measured beside. The first 4 s are left out of the latencies, as they are of those of
hops, and printed by themselves: a new deployment compiles its code and plans its statements. At last the services end,
and the decision of one changed pool is measured in turns with one of the smallest deployment (20 pools, 1,000 machines,
5 images) and with a plain commit.

PROCESSES=3: so many provisioners at 140 changes a second, of which one is killed. SATURATED=1: decisions a second of
one provisioner while all pools are dirty. SECONDS=15 of load, RATE=70 changes a second, SEED=1. The last line has the
claims; exits with 1 if one is false. KEEP=1 writes bench/results/decision-*.json.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Final

import msgspec
import structlog

from bench import committed, hop_latency
from bench.claims import report
from bench.decision import cell as cells
from bench.decision import cost, deployed, figures, load
from bench.decision.cell import Cell
from bench.decision.deployed import Deployed
from bench.decision.load import Change, Reporter
from bench.events import surroundings
from slipway_common.base.clock import utc_now
from slipway_local.servers.supervisor import Supervisor, run
from tests.e2e.windows import work_of
from tests.support import harness
from tests.support.folders import disk_folder
from tests.support.provisioner import SERVICE

POOLS: Final = 2_000
WORKERS: Final = 100_000
SECONDS: Final = 15
WARM_UP_SECONDS: Final = hop_latency.WARM_UP / hop_latency.PER_SECOND
RATE: Final = 70.0
RATE_OF_SEVERAL: Final = 140.0
# The hop beside the load is itself a load: it is measured at a lower rate.
BESIDE_PER_SECOND: Final = 5
BESIDE_WARM_UP: Final = round(BESIDE_PER_SECOND * WARM_UP_SECONDS)
BEFORE_KILL: Final = WARM_UP_SECONDS + 4.0
AFTER_OWNED: Final = 5.0
"""Seconds of load before a provisioner is killed, and after its partitions are owned by others."""
DECISIONS_MAX: Final = 2_000.0  # a second; pools are marked so often that there is always one to plan
MARKED_SECONDS_MAX: Final = 0.25
MARK: Final = """
INSERT INTO provisioner.dirty_pool (pool_id, reason) SELECT id, 'bench' FROM provisioner.worker_pool p
WHERE NOT EXISTS (SELECT FROM provisioner.dirty_pool d WHERE d.pool_id = p.id AND d.due_at <= clock_timestamp())"""


class Arguments(msgspec.Struct, frozen=True):
    """Arguments of a run."""

    cell: Cell
    seconds: int
    rate: float
    processes: int
    saturated: bool
    seed: int

    @property
    def command(self) -> str:
        cell = self.cell
        parts = [f"make bench-decision POOLS={cell.pools} WORKERS={cell.workers} IMAGES={cell.images}"]
        parts += ["SATURATED=1"] if self.saturated else [f"RATE={self.rate:g}"]
        parts += [f"PROCESSES={self.processes}"] if self.processes > 1 else []
        return " ".join([*parts, f"SECONDS={self.seconds}", f"SEED={self.seed}"])

    @property
    def file(self) -> str:
        """Name of the file of the results."""
        variant = "-saturated" if self.saturated else f"-{self.processes}-provisioners" if self.processes > 1 else ""
        return f"decision-{self.cell.name}{variant}.json"


async def measure(supervisor: Supervisor, arguments: Arguments) -> int:
    """Measure on a new deployment."""
    before = os.getloadavg()[0]
    print(f"starting everything with {arguments.cell}; SEED={arguments.seed} …", flush=True)
    with disk_folder("slipway-bench-") as folder:
        async with deployed.deployed(supervisor, folder, arguments.cell) as there:
            if arguments.processes > 1:
                there.names += await there.deployment.replicate(SERVICE, arguments.processes - 1)
            found = await (saturated(there, arguments) if arguments.saturated else loaded(there, arguments))
    found = msgspec.structs.replace(found, on=surroundings(before))
    committed.write_json(os.environ, arguments.file, found)
    if isinstance(found, figures.Saturated):
        print(f"{found.decisions} decisions in {arguments.seconds} s on {found.on}")
        parts = ", ".join(f"{name} {ms:g}" for name, ms in found.cpu_ms.items())
        print(f"processor time per decision {sum(found.cpu_ms.values()):.3g} ms: {parts}")
        name = f"{found.per_second:.0f} decisions/s ≥ {figures.SATURATED_MIN:g}/s"
        return report({name: found.per_second >= figures.SATURATED_MIN})
    print("", *figures.lines(found), sep="\n")
    return report(figures.claims(found))


async def saturated(there: Deployed, arguments: Arguments) -> figures.Saturated:
    """Decisions of the provisioner while every pool is marked again as soon as it is planned."""

    async def decisions() -> int:
        return (await work_of(there.deployment, SERVICE)).decisions

    print(f"all pools dirty for {arguments.seconds} s …", flush=True)
    await there.fetch(MARK)
    began, first, before = time.monotonic(), await decisions(), there.cpu_seconds()
    while time.monotonic() < began + arguments.seconds:
        await asyncio.sleep(min(MARKED_SECONDS_MAX, arguments.cell.pools / DECISIONS_MAX))
        await there.fetch(MARK)
    number, seconds, used = await decisions() - first, time.monotonic() - began, there.cpu_seconds()
    return figures.Saturated(
        command=arguments.command,
        on={},
        cell=str(arguments.cell),
        decisions=number,
        per_second=round(number / seconds, 1),
        cpu_ms={name: round((used[name] - before[name]) * 1000 / max(1, number), 2) for name in used},
    )


async def loaded(there: Deployed, arguments: Arguments) -> figures.Results:
    """Latencies of changes, and unless there are several provisioners the cost of a decision."""
    rng = Random(arguments.seed)
    taken, killed_at, ended_at = None, 0.0, 0.0
    before: Mapping[str, float] = {}
    async with (
        harness.new_place(there.servers) as place,
        hop_latency.running(place) as hop,
        there.reporter(rng) as reporter,
    ):
        print("one event hop on the quiet system for 10 s …", flush=True)
        quiet = await hop.measure()
        print(f"{arguments.rate:g} changes/s …", flush=True)
        began = utc_now().timestamp()
        beside = asyncio.create_task(
            hop.measure(per_second=BESIDE_PER_SECOND, seconds=arguments.seconds - 1, warm_up=BESIDE_WARM_UP)
        )
        if arguments.processes > 1:
            lost, owned_seconds, killed_at = await killed(there, reporter, arguments.rate)
        else:
            before = there.cpu_seconds()
            await reporter.report(arguments.rate, lambda seconds: seconds >= arguments.seconds)
        under_load = await beside
    pool_of = await there.pool_of()

    async def traced() -> list[Change]:
        received = load.machines(there.played(), pool_of)
        return load.traced(reporter.changes, await there.requested(began), received)

    changes = await traced()
    settle_seconds = load.SETTLE_SECONDS if arguments.processes == 1 else load.KILLED_SETTLE_SECONDS
    settled_by, given_up_at = time.monotonic() + settle_seconds, time.monotonic() + load.BACKLOG_SECONDS
    while (lost_so_far := figures.lost(changes)) and time.monotonic() < min(settled_by, given_up_at):
        await asyncio.sleep(0.2)
        changes = await traced()
        if figures.lost(changes) < lost_so_far:
            settled_by = time.monotonic() + settle_seconds
    used = there.cpu_seconds() if before else {}
    ended = max(1, len(changes) - figures.lost(changes))
    doubled = load.doubled(changes, load.machines(there.played(), pool_of))
    warm_at = began + WARM_UP_SECONDS
    outside = [each for each in changes if each.observed_at >= warm_at]
    if arguments.processes > 1:
        taken = figures.take_over(changes, lost, killed_at=killed_at, owned_seconds=owned_seconds)
        ended_at = killed_at + owned_seconds + figures.DECIDED_SECONDS_MAX
        outside = [each for each in outside if not killed_at - 1 <= each.observed_at <= ended_at]
    costs = None if arguments.processes > 1 else await _cost(there, reporter.pending, rng)
    return figures.Results(
        command=arguments.command,
        on={},
        cell=str(arguments.cell),
        per_second=arguments.rate,
        quiet=quiet,
        under_load=under_load,
        latency=figures.latency(outside),
        first=figures.latency([each for each in changes if each.observed_at < warm_at]),
        lost=figures.lost(changes),
        doubled=doubled,
        cpu_ms={name: round((seconds - before[name]) * 1000 / ended, 2) for name, seconds in used.items()},
        take_over=taken,
        cost=costs,
    )


async def killed(there: Deployed, reporter: Reporter, rate: float) -> tuple[frozenset[str], float, float]:
    """Report changes while a provisioner is killed, until the others have owned its partitions for some seconds.

    Returns its partitions, the seconds of the take-over, and the time of the kill."""
    over = asyncio.Event()
    reporting = asyncio.create_task(reporter.report(rate, lambda _: over.is_set()))
    await asyncio.sleep(BEFORE_KILL)
    killed_at = utc_now().timestamp()
    first, *others = there.names
    lost, owned_seconds = await deployed.take_over(there, first, others)
    print(f"{first} killed; {len(lost)} partitions owned by the others after {owned_seconds:.1f} s", flush=True)
    await asyncio.sleep(AFTER_OWNED)
    over.set()
    await reporting
    return frozenset(lost), owned_seconds, killed_at


async def _cost(there: Deployed, pending: Mapping[str, int], rng: Random) -> cost.Cost:
    print("decisions, in turns with plain commits …", flush=True)
    largest = await there.planner(pending)
    smallest = await deployed.reference(there.deployment.postgres_server, cells.SMALLEST)
    try:
        return await cost.measure(largest, smallest, rng)
    finally:
        for planner in (largest, smallest):
            await planner.provisioner.database.close()


def arguments_of(environment: Mapping[str, str]) -> Arguments:
    """Arguments of this run. Raises ValueError for one that is no number, or too small."""
    numbers = {name: int(environment.get(name) or 0) for name in ("POOLS", "WORKERS", "IMAGES", "SECONDS", "PROCESSES")}
    if any(number < 0 for number in numbers.values()):
        raise ValueError("POOLS, WORKERS, IMAGES, SECONDS and PROCESSES are positive")
    pools, processes = numbers["POOLS"] or POOLS, numbers["PROCESSES"] or 1
    return Arguments(
        cell=Cell(pools, numbers["WORKERS"] or WORKERS, numbers["IMAGES"] or cells.images_of(pools)),
        seconds=max(8, numbers["SECONDS"] or SECONDS),
        rate=float(environment.get("RATE") or (RATE if processes == 1 else RATE_OF_SEVERAL)),
        processes=processes,
        saturated=environment.get("SATURATED") == "1",
        seed=int(environment.get("SEED") or 1),
    )


def main() -> int:
    try:
        arguments = arguments_of(os.environ)
    except ValueError as error:
        print(f"POOLS, WORKERS, IMAGES, SECONDS, PROCESSES, RATE and SEED are numbers: {error}", file=sys.stderr)
        return 2
    return run(partial(measure, arguments=arguments))


if __name__ == "__main__":
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a new broker first answers with retriable errors
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sys.exit(main())
