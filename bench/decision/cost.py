"""Cost of one decision, measured in turns with that of a plain commit and with that of the smallest deployment.

A cost is the processor time of the planner and the time of its statements in the database: elapsed time less that in
which one of the two waited for a processor, which other processes of the machine had.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import msgspec

from bench.decision.cell import SOURCE
from bench.loops.cost import one_processor
from bench.spread import Spread, spread
from slipway_api.events.pool import DemandReported
from slipway_common.base.clock import utc_now
from slipway_common.database import postgres
from tests.support.provisioner import SERVICE, Provisioner

ROUNDS: Final = 5
DECISIONS: Final = 30
COMMITS: Final = 100
WARM_UP: Final = 5  # decisions of a cell before the first round: statements are prepared, and query plans are new
PLAIN: Final = "CREATE TABLE IF NOT EXISTS plain_commit (id bigint GENERATED ALWAYS AS IDENTITY, at timestamptz)"
STARTED: Final = "UPDATE worker SET state = 'starting' WHERE state = 'requested'"
COMMIT: Final = "INSERT INTO plain_commit (at) VALUES (slipway_clock())"


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of a decision and of a plain commit, a median per round; their ratio, and that to the smallest cell.

    `statements` of a decision, without BEGIN and COMMIT.
    """

    decision: Spread
    smallest: Spread
    commit: Spread
    commits: Spread
    growth: Spread
    statements: int


class Clock:
    """Time without that in which the processes given, of which one runs at a time, waited for a processor."""

    def __init__(self, *pids: int) -> None:
        """0 is this process."""
        self.pids = pids
        self._files = [Path(f"/proc/{pid or 'self'}/schedstat") for pid in pids]

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter() - sum(int(file.read_text().split()[1]) for file in self._files) / 1e9


class Planner:
    """The planning loop's step on one connection to the database of a cell."""

    def __init__(
        self, provisioner: Provisioner, claimed: Mapping[str, int], pending: Mapping[str, int], clock: Clock
    ) -> None:
        self.provisioner = provisioner
        self.claimed = claimed
        self.clock = clock
        self.pending = {**pending}
        self.statements = 0

    async def change(self, pool_id: str) -> None:
        """Record a report of one more waiting task in a pool."""
        self.pending[pool_id] += 1
        await self.provisioner.demand(
            DemandReported(
                pool_id=pool_id,
                source=SOURCE,
                pending=self.pending[pool_id],
                claimed=self.claimed[pool_id],
                observed_at=utc_now(),
                valid_for_seconds=86_400.0,
            )
        )

    async def decide(self) -> float:
        """Plan the dirty pool; returns the cost in milliseconds."""
        began = self.clock.now()
        if not await self.provisioner.plan_step():
            raise AssertionError("no pool is dirty")
        return (self.clock.now() - began) * 1000

    async def launch(self) -> None:
        """Have all that is requested start, as it has by the next change of its pool."""
        await self.provisioner.database.execute(STARTED)

    async def commit(self) -> float:
        """Commit one row; returns the cost in milliseconds."""
        began = self.clock.now()
        async with self.provisioner.database.acquire() as db, db.transaction():
            await db.execute(COMMIT)
        return (self.clock.now() - began) * 1000

    async def count_statements(self, pool_id: str) -> int:
        """Number of statements of a decision."""
        queries: list[str] = []

        def log(record: Any) -> None:
            queries.append(record.query)

        await self.change(pool_id)
        async with self.provisioner.database.acquire() as db:
            db.add_query_logger(log)
        await self.decide()
        async with self.provisioner.database.acquire() as db:
            db.remove_query_logger(log)
        return sum(not query.startswith(("BEGIN", "COMMIT")) for query in queries)


async def planner(url: str, claimed: Mapping[str, int], pending: Mapping[str, int]) -> Planner:
    """Planner on a database, whose only session it is; the queues of pools have reported these tasks last."""
    database = await postgres.connect(url, SERVICE, size=1)
    session = await database.fetchval("SELECT pg_backend_pid()")
    await database.execute("DELETE FROM dirty_pool")
    return Planner(Provisioner(database), claimed, pending, Clock(0, session))


async def measure(largest: Planner, smallest: Planner, rng: Random) -> Cost:
    """Rounds of decisions of both cells and of plain commits, in an order of chance. Each decision launches a unit."""
    await largest.provisioner.database.execute(PLAIN)

    async def decide(planner: Planner) -> float:
        await planner.change(rng.choice(list(planner.claimed)))
        return await planner.decide()

    with one_processor(*largest.clock.pids, *smallest.clock.pids):
        for each in (largest, smallest):
            for _ in range(WARM_UP):
                await decide(each)
        sides: dict[str, Callable[[], Any]] = {
            "largest": lambda: _round(lambda: decide(largest), DECISIONS),
            "smallest": lambda: _round(lambda: decide(smallest), DECISIONS),
            "commit": lambda: _round(largest.commit, COMMITS),
        }
        medians: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(ROUNDS):
            for name in rng.sample(list(sides), len(sides)):
                medians[name].append(await sides[name]())
            for each in (largest, smallest):
                await each.launch()
    return Cost(
        decision=spread(medians["largest"]),
        smallest=spread(medians["smallest"]),
        commit=spread(medians["commit"]),
        commits=spread(_ratios(medians["largest"], medians["commit"])),
        growth=spread(_ratios(medians["largest"], medians["smallest"])),
        statements=await largest.count_statements(rng.choice(list(largest.claimed))),
    )


async def _round(step: Callable[[], Any], times: int) -> float:
    """Median cost of a step."""
    costs: list[float] = []
    for _ in range(times):
        costs.append(await step())
        await asyncio.sleep(0)
    return median(costs)


def _ratios(costs: Sequence[float], yardsticks: Sequence[float]) -> list[float]:
    return [cost / yardstick for cost, yardstick in zip(costs, yardsticks, strict=True)]
