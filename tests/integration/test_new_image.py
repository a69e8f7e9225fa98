"""New images from their declaration to their proof or their end: a provisioner on a real database and the core of the
calculator, by a clock that the test sets."""

from collections import Counter, deque
from collections.abc import AsyncIterator
from itertools import count
from typing import Any, Final

import pytest

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.lease import LeaseRequested
from slipway_api.events.lifecycle import State
from slipway_api.events.worker import WorkerEvent, WorkerRequested
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.workers import Change, claimed, registered, stopped, stopping
from slipway_provisioner.store import workers
from tests.support.provisioner import Provisioner, after, declared, provisioner_on, report, revision_id
from tests.support.worlds import Story

OLD: Final = revision_id()
NEW: Final = revision_id(image="linux-2")
STEP_SECONDS: Final = 10.0
BOOT_SECONDS: Final = 60.0
TASK_SECONDS: Final = 60.0
LONG_TASK_SECONDS: Final = 7200.0
MINUTE: Final = 60.0
PER_MINUTE: Final = 6


@pytest.fixture
async def product(postgres: EmbeddedPostgres) -> AsyncIterator["Product"]:
    async with provisioner_on(postgres) as provisioner:
        yield Product(provisioner)


class Product:
    """A provisioner with a calculator, a lease-broker that grants at once, and a cloud where `bad` images never
    register. Each worker runs one task. `waits` are the waits of the tasks that have started, by their arrival."""

    def __init__(self, provisioner: Provisioner) -> None:
        self.provisioner = provisioner
        self.maximum, self.per_minute = 100, PER_MINUTE
        self.story = Story()
        self.now = 0.0
        self.bad: set[str] = set()
        self.pending: deque[tuple[float, float]] = deque()  # arrival and duration
        self.ends: dict[str, float] = {}
        self.waits: dict[float, float] = {}
        self.launched: Counter[str] = Counter()
        self._revisions = count(1)
        self._arrived = 0.0

    async def declare(self, image: str) -> None:
        body = declared(max_capacity=self.maximum)
        body["worker_pools"][0]["launch_configs"][0]["image"] = image
        await self.provisioner.declare(body)

    async def run(self, minutes: float) -> None:
        """Let time pass, with `per_minute` tasks arriving."""
        until = self.now + minutes * MINUTE
        while self.now < until:
            self.now += STEP_SECONDS
            await self.provisioner.set_clock(self.now)
            await self._move()
            while self._arrived < self.now:
                self._arrived += MINUTE / self.per_minute
                self.pending.append((self._arrived, TASK_SECONDS))
            await self._claim()
            await self.provisioner.expire()
            await self.provisioner.demand(report(len(self.pending), len(self.ends), at=self.now))
            for _ in range(2):
                await self.provisioner.plan()
                await self._deliver()
                await self.provisioner.launch()
            await self.provisioner.roll_out()

    async def _move(self) -> None:
        """End tasks, and register what has booted."""
        changes: list[Change] = []
        for worker in await self.provisioner.workers():
            if worker.state is State.STARTING and worker.launched_at is not None:
                boots = worker.launched_at <= after(self.now - BOOT_SECONDS)
                if boots and worker.image_revision not in self.bad:
                    changes.append(registered(worker, worker.instance_id or "", "", after(self.now)))
            elif worker.state is State.RUNNING and self.ends.get(worker.id, self.now + 1) <= self.now:
                del self.ends[worker.id]
                changes.append(stopping(worker, "the task has ended", after(self.now)))
            elif worker.state is State.STOPPING:
                changes.append(stopped(worker, "gone", after(self.now)))
        await self._save(changes)

    async def _claim(self) -> None:
        """Give the oldest tasks to workers without one."""
        changes = []
        for worker in await self.provisioner.workers():
            if worker.state is State.RUNNING and worker.id not in self.ends and self.pending:
                arrived, seconds = self.pending.popleft()
                self.waits[arrived] = self.now - arrived
                self.ends[worker.id] = self.now + seconds
                changes.append(claimed(worker, f"task-{arrived:g}", "q", after(self.now)))
        await self._save(changes)

    async def _save(self, changes: list[Change]) -> None:
        async with self.provisioner.database.acquire() as db, db.transaction():
            await workers.lock(db, sorted(worker.id for worker, _ in changes))
            await workers.save(db, changes)

    async def _deliver(self) -> None:
        """Deliver all events, and return grants and weight records."""
        for event in await self.provisioner.events():
            if isinstance(event, LaunchConfigState):
                self.story.declare(event, self.now)
            elif isinstance(event, WorkerEvent):
                self.launched[event.launch_config_id] += isinstance(event, WorkerRequested)
                self.story.fold(self.now, event)
            elif isinstance(event, LeaseRequested):
                times: dict[str, Any] = {"expires_at": after(self.now + 3600), "hold_until": after(self.now + 7200)}
                await self.provisioner.leases(self.provisioner.granted(event, **times))
        self.story.advance_to(self.now)
        records = [self.story.record(id_, self.now) for id_ in self.story.world.configs]
        await self.provisioner.weights(*records, revision=next(self._revisions))

    def mean_wait(self, begin: float, end: float) -> float:
        """Mean wait of the tasks that arrived in this time; those that still wait count as long as until now."""
        waits = [wait for arrived, wait in self.waits.items() if begin < arrived <= end]
        waits += [self.now - arrived for arrived, _ in self.pending if begin < arrived <= end]
        return sum(waits) / len(waits)

    def started(self, begin: float, end: float) -> int:
        """Tasks that began to run in this time."""
        return sum(begin < arrived + wait <= end for arrived, wait in self.waits.items())

    async def states(self) -> dict[str, str]:
        rows = await self.provisioner.database.fetch("SELECT id, state FROM launch_config")
        return {row["id"]: row["state"] for row in rows}


async def settled(product: Product) -> float:
    """Run with the old image until it is proven; returns the time."""
    await product.declare("linux-1")
    await product.run(15)
    assert (await product.provisioner.database.fetchval("SELECT proven_at FROM launch_config")) is not None
    return product.now


async def test_a_good_image_takes_over_without_a_wait(product: Product) -> None:
    """Tasks wait as long as before, each for one boot, and the old image goes."""
    begin = await settled(product)
    before = product.mean_wait(begin - 5 * MINUTE, begin)
    await product.declare("linux-2")
    await product.run(15)
    assert product.mean_wait(begin, begin + 10 * MINUTE) <= 1.15 * before
    assert await product.states() == {OLD: "archived", NEW: "active"}


async def test_a_bad_image_holds_up_only_the_tasks_of_its_own_starts(product: Product) -> None:
    """The old one takes the demand from the moment on at which the window of the new one is full."""
    begin = await settled(product)
    product.bad.add("linux-2")
    await product.declare("linux-2")
    await product.run(30)
    assert 5 <= product.launched[NEW] <= 25
    for minute in range(5, 30, 5):
        end = begin + minute * MINUTE
        assert product.started(end - 5 * MINUTE, end) >= 5 * PER_MINUTE - product.launched[NEW], minute
    assert await product.states() == {OLD: "active", NEW: "active"}
    assert len(product.pending) <= 2 * PER_MINUTE


async def test_a_bad_image_does_not_stop_a_small_pool(product: Product) -> None:
    """Its starts hang in at most half of the pool, whose other half works on."""
    product.maximum, product.per_minute = 8, 2
    begin = await settled(product)
    product.bad.add("linux-2")
    await product.declare("linux-2")
    await product.run(20)
    assert 4 <= product.launched[NEW] <= 8
    for minute in (10, 15, 20):
        assert product.started(begin + (minute - 5) * MINUTE, begin + minute * MINUTE) >= 8, minute


async def test_an_image_that_goes_bad_after_its_proof_gives_the_demand_back(product: Product) -> None:
    """To the old one, which still drains because of a long task."""
    begin = await settled(product)
    product.pending.appendleft((begin, LONG_TASK_SECONDS))
    await product.run(3)
    await product.declare("linux-2")
    await product.run(10)
    assert await product.states() == {OLD: "draining", NEW: "active"}
    launched = product.launched[OLD]
    product.bad.add("linux-2")
    await product.run(20)
    assert await product.states() == {OLD: "active", NEW: "active"}
    assert product.launched[OLD] - launched >= 10 * PER_MINUTE
    assert product.started(product.now - 5 * MINUTE, product.now) >= 4 * PER_MINUTE
