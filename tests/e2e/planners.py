"""Eight planners in processes of their own on one window, killed at their commits: second part of `make e2e-windows`.

200 pools share an image whose boot window is 16, each needs more machines than it gets, and a fifth of the boots fails.
What is in flight, with the failures that no weight record has folded, is read again and again: from the rows, in one
statement, and from the ledger of the machines. It may never exceed the window, and has to fill it.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Final

from bench.fair import IMAGE, WAKE_SECONDS, Cloud, prepared
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_local.servers.supervisor import Supervisor
from slipway_provisioner.domain.workers import stopped, stopping
from slipway_provisioner.loops.plan import wake_waiting
from slipway_provisioner.store import pools, usage, workers
from tests.support.provisioner import Provisioner

PLANNERS: Final = 8
POOLS: Final = 200
WINDOW: Final = 16
SECONDS: Final = 12.0
START_SECONDS: Final = 60.0  # of the planners, on a busy machine
FAILING: Final = 0.2
FOLD_SECONDS: Final = 0.3  # until a weight record has a failure
STARTS_MIN: Final = 60
FAILURES_MIN: Final = 10
KILLS_MIN: Final = 4
TICK_SECONDS: Final = 0.01
# In flight and not folded, in one statement: of one moment.
LEVEL: Final = """
SELECT count(*) FILTER (WHERE state IN ('requested', 'launching', 'starting'))
    + count(*) FILTER (WHERE failed_at IS NOT NULL)
    - (SELECT coalesce(sum((record -> 'stages' -> 'boot' ->> 'failures_folded')::int), 0) FROM weight)
FROM worker"""


class Machines(Cloud):
    """Machines of which a fifth never registers. `unfolded` are the failures that no record has."""

    def __init__(self, provisioner: Provisioner, chance: Random) -> None:
        super().__init__(provisioner, WINDOW, chance)
        self.unfolded: list[tuple[float, str, str]] = []

    @property
    def ledger_level(self) -> int:
        return len(self.booting) + len(self.unfolded)

    async def _register(self, ids: Sequence[str]) -> None:
        failing = [worker_id for worker_id in ids if self.rng.random() < FAILING]
        await self._fail(failing)
        await super()._register([worker_id for worker_id in ids if worker_id not in failing])
        await self._fold()

    async def _fail(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        outcome = Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, IMAGE.id, "boot_timeout")
        database = self.provisioner.database
        async with database.acquire() as db, db.transaction():
            now = await pools.now(db)
            locked = await workers.lock(db, sorted(ids))
            await workers.save(db, [stopping(worker, "test", now, outcome) for worker in locked])
        self.unfolded += [(time.monotonic() + FOLD_SECONDS, w.launch_config_id, w.pool_id) for w in locked]
        async with database.acquire() as db, db.transaction():
            locked = await workers.lock(db, sorted(ids))
            await workers.save(db, [stopped(worker, "test", now) for worker in locked])

    async def _fold(self) -> None:
        """Publish records that have folded the failures which are due."""
        due = [each for each in self.unfolded if each[0] <= time.monotonic()]
        for _, config_id, pool_id in due:
            self.folded[config_id] += 1
            await self._publish([self.record(config_id, pool_id)])
        self.unfolded = [each for each in self.unfolded if each not in due]


@contextlib.asynccontextmanager
async def planners_of(url: str, seed: int) -> AsyncIterator[list[str]]:
    """Planners in processes of their own; a line for each that has been killed."""
    arguments = ("-m", "tests.e2e.planner", url, str(seed), str(PLANNERS))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    output, lines = process.stdout, list[str]()

    async def read() -> None:
        while line := await output.readline():
            lines.append(line.decode())

    reading = asyncio.create_task(read())
    try:
        yield lines
    finally:
        process.kill()
        await asyncio.gather(process.wait(), reading)


async def play(supervisor: Supervisor, seed: int) -> int:
    """Run on a new database; return the exit code."""
    async with prepared(supervisor, POOLS, WINDOW) as (provisioner, url):
        return await judged(provisioner, url, seed)


async def judged(provisioner: Provisioner, url: str, seed: int) -> int:
    """Play with eight planners, and read the level all the time."""
    database, machines = provisioner.database, Machines(provisioner, Random(seed))
    levels, ledger = [0], [0]

    async def read() -> None:
        async with database.acquire() as db:
            while True:
                levels.append(await db.fetchval(LEVEL))
                ledger.append(machines.ledger_level)
                await asyncio.sleep(TICK_SECONDS)

    async def wake() -> None:
        while True:
            await asyncio.sleep(WAKE_SECONDS)
            await wake_waiting(database, calculator_unavailable_seconds=lambda: 0.0)

    print(f"{PLANNERS} planners of {POOLS} pools, window {WINDOW}; SEED={seed}", flush=True)
    loops = [asyncio.create_task(each) for each in (read(), wake())]
    try:
        async with planners_of(url, seed) as killed:
            until = time.monotonic() + START_SECONDS
            while time.monotonic() < until and not any(loop.done() for loop in loops):
                await machines.step()
                if machines.freed:  # the planners have started
                    until = min(until, time.monotonic() + SECONDS)
                await asyncio.sleep(TICK_SECONDS)
    finally:
        for loop in loops:
            loop.cancel()
        ended = await asyncio.gather(*loops, return_exceptions=True)
    if errors := [error for error in ended if isinstance(error, Exception)]:
        raise errors[0]
    failures, kills = machines.folded.total() + len(machines.unfolded), len(killed)
    drift = await usage.drift(database)
    problems = [
        text
        for text, holds in {
            f"{machines.freed} starts; at least {STARTS_MIN} are required": machines.freed >= STARTS_MIN,
            f"{failures} failures; at least {FAILURES_MIN} are required": failures >= FAILURES_MIN,
            f"{kills} planners were killed; at least {KILLS_MIN} are required": kills >= KILLS_MIN,
            "the window was never full": max(levels) >= WINDOW,
            f"{drift} counters differ from the rows": not drift,
        }.items()
        if not holds
    ]
    exceeded = sum(level > WINDOW for level in levels) + sum(level > WINDOW for level in ledger)
    for text in problems:
        print(f"  PROBLEM {text}")
    print(
        f"{exceeded} times above the window of {WINDOW} in {len(levels)} readings: highest level {max(levels)} by "
        f"rows, {max(ledger)} by the ledger; {machines.freed} starts, {failures} failures, {kills} planners killed"
    )
    return 1 if exceeded or problems else 0
