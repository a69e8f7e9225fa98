"""`make bench-fair POOLS=1000 WINDOW=16`: turns of pools that share the boot window of one image.

Every pool needs more machines than it ever gets, and boots take a quarter of a second. The provisioner's planners and
its view of weights run on a real database; machines launch, register and claim as fast as they are asked for, and after
each boot a weight record of the image is published, as the calculator does. The run ends once every pool has two
starts. SEED=1 is that of the lengths of boots. The last line has the claims; exits with 1 if one is false. KEEP=1
writes bench/results/fair.json.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from bench import committed
from bench.claims import report
from bench.decision import cell as cells
from bench.decision.cell import LIMIT, SOURCE, Cell
from bench.events import surroundings
from slipway_api.events.scopes import image_key
from slipway_api.events.weight import SharedWindow, StageHealth, WeightChanged
from slipway_common.base.ids import new_id
from slipway_common.database import migrate, postgres
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor, run
from slipway_provisioner.domain.workers import calling, claimed, launched, registered
from slipway_provisioner.loops.plan import Planner, wake_waiting
from slipway_provisioner.store import pools, workers
from tests.support.folders import disk_folder
from tests.support.provisioner import PASSED, SERVICE, Provisioner, weight

POOLS: Final = 1_000
WINDOW: Final = 16
BOOT_SECONDS: Final = 0.25
STARTS: Final = 2
RATIO_MAX: Final = 2.0
DECISIONS_MAX: Final = 4.0
SECONDS_MAX: Final = 300.0  # after which what the run waits for would never happen
TICK_SECONDS: Final = 0.01
WAKE_SECONDS: Final = 1.0
IMAGE: Final = image_key("simulated/linux-0")
REQUESTED: Final = "SELECT id::text FROM worker WHERE state = 'requested' ORDER BY id LIMIT 100"
NEEDED: Final = f"UPDATE demand SET pending = {LIMIT} WHERE source = '{SOURCE}'"
WINDOW_OF_IMAGE: Final = "UPDATE shared_window SET size = $2, version = 0 WHERE key = $1 AND stage = 'boot'"
ALL_DIRTY: Final = "INSERT INTO dirty_pool (pool_id, reason) SELECT id, 'bench' FROM worker_pool ORDER BY id"


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Starts per pool once every pool has two, and decisions per start that has ended, which has freed a unit. `level`
    is the highest number of boots in progress."""

    command: str
    on: dict[str, Any]
    seconds: float
    starts_min: int
    starts_max: int
    decisions: int
    freed: int
    level: int
    window: int

    @property
    def per_unit(self) -> float:
        return self.decisions / max(1, self.freed)


class Cloud:
    """Machines that launch at once and boot after a while, and the weight records that follow."""

    def __init__(self, provisioner: Provisioner, window: int, rng: Random) -> None:
        self.provisioner = provisioner
        self.window = window
        self.rng = rng
        self.starts: Counter[str] = Counter()
        self.freed = 0
        self.level = 0
        self.folded: Counter[str] = Counter()
        self.revision = cells.NEWEST
        self.booting: deque[tuple[float, str]] = deque()

    async def step(self) -> None:
        """Launch what is requested, and register what has booted."""
        rows = await self.provisioner.database.fetch(REQUESTED)
        await self._launch([row["id"] for row in rows])
        due = []
        while self.booting and self.booting[0][0] <= time.monotonic():
            due.append(self.booting.popleft()[1])
        await self._register(due)

    async def _launch(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        async with self.provisioner.database.acquire() as db, db.transaction():
            now = await pools.now(db)
            calls = [calling(worker, new_id()) for worker in await workers.lock(db, sorted(ids))]
            await workers.save_without_events(db, calls)
            changes = [launched(worker, f"i-{worker.id}", now, looked_up=False) for worker in calls]
            await workers.save(db, changes)
        self.starts.update(worker.pool_id for worker in calls)
        ends = [time.monotonic() + BOOT_SECONDS * self.rng.uniform(0.9, 1.1) for _ in calls]
        self.booting = deque(sorted([*self.booting, *zip(ends, (worker.id for worker in calls), strict=True)]))
        self.level = max(self.level, len(self.booting))

    async def _register(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        for change in (self._registered, self._claimed):
            async with self.provisioner.database.acquire() as db, db.transaction():
                now = await pools.now(db)
                booted = await workers.lock(db, sorted(ids))
                await workers.save(db, [change(worker, now) for worker in booted])
        self.freed += len(ids)
        shared = SharedWindow(
            kind=IMAGE.kind, id=IMAGE.id, stage="boot", version=self.freed, window=self.window, probability=1.0
        )
        of_config = {worker.launch_config_id: worker.pool_id for worker in booted}
        await self._publish([self.record(id_, pool, shared=(shared,)) for id_, pool in of_config.items()])

    def record(self, config_id: str, pool_id: str, **changes: Any) -> WeightChanged:
        """Weight record of a config."""
        stage = StageHealth(probability=0.95, successes=1, failures=0, window=LIMIT, failures_folded=0)
        stages = dict.fromkeys(("launch", "claim"), stage)
        boot = msgspec.structs.replace(stage, failures_folded=self.folded[config_id])
        return weight(config_id, pool_id=pool_id, stages=stages | {"boot": boot}, **changes)

    async def _publish(self, records: Sequence[WeightChanged]) -> None:
        self.revision += 1
        await self.provisioner.weights(*records, revision=self.revision)

    @staticmethod
    def _registered(worker: Any, now: Any) -> Any:
        return registered(worker, worker.instance_id, "", now)

    @staticmethod
    def _claimed(worker: Any, now: Any) -> Any:
        return claimed(worker, f"task of {worker.id}", SOURCE, now)


async def play(provisioner: Provisioner, *, pools_: int, window: int, rng: Random, command: str) -> Results:
    """Run until every pool has two starts."""
    database, woken = provisioner.database, asyncio.Event()
    decisions = 0

    def decided() -> None:
        nonlocal decisions
        decisions += 1

    async def plan() -> None:
        planner = Planner(settings=provisioner.settings, calculator_unavailable_seconds=lambda: 0.0, publish=decided)
        while True:
            woken.clear()
            if not await planner.step(database):
                await woken.wait()

    async def wake() -> None:
        while True:
            await asyncio.sleep(WAKE_SECONDS)
            await wake_waiting(database, calculator_unavailable_seconds=lambda: 0.0)
            woken.set()

    cloud, began, before = Cloud(provisioner, window, rng), time.monotonic(), os.getloadavg()[0]
    loops = [asyncio.create_task(plan()), asyncio.create_task(wake())]
    try:
        while len(cloud.starts) < pools_ or min(cloud.starts.values()) < STARTS:
            if time.monotonic() - began > SECONDS_MAX or any(loop.done() for loop in loops):
                break
            await cloud.step()
            woken.set()
            await asyncio.sleep(TICK_SECONDS)
    finally:
        for loop in loops:
            loop.cancel()
        ended = await asyncio.gather(*loops, return_exceptions=True)
    if errors := [error for error in ended if isinstance(error, Exception)]:
        raise errors[0]
    counts = [cloud.starts.get(f"team/{number}", 0) for number in range(pools_)]
    return Results(
        command=command,
        on=surroundings(before),
        seconds=round(time.monotonic() - began, 1),
        starts_min=min(counts),
        starts_max=max(counts),
        decisions=decisions,
        freed=cloud.freed,
        level=cloud.level,
        window=window,
    )


@contextlib.asynccontextmanager
async def prepared(supervisor: Supervisor, pools_: int, window: int) -> AsyncIterator[tuple[Provisioner, str]]:
    """A provisioner on a new database, and its URL: dirty pools of one image with this boot window, without machines,
    each of which needs more than it ever gets."""
    with disk_folder("slipway-bench-") as folder:
        server = EmbeddedPostgres(folder / "postgres")
        await supervisor.start(server)
        url = await server.create_database("bench")
        await migrate.upgrade(url, SERVICE)
        database = await postgres.connect(url, SERVICE)
        try:
            provisioner = Provisioner(database)
            await database.execute("UPDATE incarnation SET server = slipway_server()")
            await provisioner.declare(cells.declaration(Cell(pools_, 0, 1)))
            await database.execute(PASSED)
            await cells.fill(url, Cell(pools_, 0, 1))
            for statement, *arguments in ((NEEDED,), (WINDOW_OF_IMAGE, IMAGE.text, window), (ALL_DIRTY,)):
                await database.execute(statement, *arguments)
            yield provisioner, url
        finally:
            await database.close()


async def measure(supervisor: Supervisor, *, pools_: int, window: int, seed: int) -> int:
    """Prepare a database, and play on it."""
    command = f"make bench-fair POOLS={pools_} WINDOW={window} SEED={seed}"
    print(f"{pools_:,} pools of one image with a boot window of {window}; SEED={seed} …", flush=True)
    async with prepared(supervisor, pools_, window) as (provisioner, _):
        found = await play(provisioner, pools_=pools_, window=window, rng=Random(seed), command=command)
    committed.write_json(os.environ, "fair.json", found)
    print(f"{found.freed} starts ended in {found.seconds:g} s, {found.decisions} decisions, on {found.on}")
    print(f"starts per pool {found.starts_min} to {found.starts_max}; at most {found.level} boots in progress")
    ratio = found.starts_max / max(1, found.starts_min)
    return report(
        {
            f"starts per pool ≥ {STARTS}": found.starts_min >= STARTS,
            f"largest ÷ smallest number of starts {ratio:.3g} ≤ {RATIO_MAX:g}": ratio <= RATIO_MAX,
            f"{found.per_unit:.3g} decisions per freed unit ≤ {DECISIONS_MAX:g}": found.per_unit <= DECISIONS_MAX,
            f"{found.level} boots in progress ≤ {window}": found.level <= window,
        }
    )


def main() -> int:
    try:
        pools_, window, seed = (
            int(os.environ.get(name) or usual) for name, usual in (("POOLS", POOLS), ("WINDOW", WINDOW), ("SEED", 1))
        )
    except ValueError as error:
        print(f"POOLS, WINDOW and SEED are numbers: {error}", file=sys.stderr)
        return 2
    return run(partial(measure, pools_=pools_, window=window, seed=seed))


if __name__ == "__main__":
    sys.exit(main())
