"""A weight-calculator without Kafka and HTTP, for tests: real handlers, loops and store on a real database, with the
database's clock in the test's hand. And short names for the events that it folds."""

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import asyncpg
import msgspec

from slipway_common import consume, migrate, postgres
from slipway_common.consume import Consumer, Owned, Record
from slipway_common.envelope import Envelope, encode
from slipway_common.events.launch_config import LaunchConfigCreated
from slipway_common.events.weight import WeightChanged
from slipway_common.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerDelayed,
    WorkerLaunched,
    WorkerLaunchFailed,
    WorkerStopped,
)
from slipway_common.ids import new_id
from slipway_common.postgres import Connection, Pool
from slipway_common.topics import LAUNCH_CONFIG_LIFECYCLE, TOPIC_OF, WORKER_LIFECYCLE, Topic
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.handlers.configs import record_configs
from slipway_weight_calculator.handlers.outcomes import fold_outcomes
from slipway_weight_calculator.loops.publish import PublishLoop
from slipway_weight_calculator.loops.watch import WatchLoop
from tests.harness import PATIENT

SERVICE: Final = "weight-calculator"
START: Final = datetime(2030, 1, 1, tzinfo=UTC)
POLICY: Final = Policy()

SETTABLE_CLOCK: Final = """
CREATE TABLE test_clock (at timestamptz NOT NULL);
INSERT INTO test_clock VALUES ('2030-01-01 00:00+00');
CREATE OR REPLACE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM test_clock'"""


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def of(config_id: str, permit: int | None = None) -> dict[str, Any]:
    return {
        "worker_id": new_id(), "pool_id": "linux", "account_id": "sim-a", "image_revision": "linux-1",
        "launch_config_id": config_id, "probe_permit": permit,
    }  # fmt: skip


def ok(permit: int | None = None, *, config_id: str = "zone-b") -> WorkerLaunched:
    outcome = Outcome(Stage.LAUNCH, Result.OK)
    return WorkerLaunched(instance_id="i", batch_id="b", outcome=outcome, **of(config_id, permit))


def failed(
    scope: Scope = Scope.CAPACITY, permit: int | None = None, *, classified: bool = True, config_id: str = "zone-b"
) -> WorkerLaunchFailed:
    code = "InsufficientCapacity" if scope is Scope.CAPACITY else scope.value
    outcome = Outcome(Stage.LAUNCH, Result.FAILED, scope, code=code, classified=classified)
    return WorkerLaunchFailed(batch_id="b", outcome=outcome, **of(config_id, permit))


def delayed(permit: int | None = None) -> WorkerDelayed:
    return WorkerDelayed(reason="throttled", **of("zone-b", permit))


def stopped(permit: int | None = None, *, cancelled: bool) -> WorkerStopped:
    return WorkerStopped(reason="demand fell", cancelled=cancelled, **of("zone-b", permit))


def declared(config_id: str, *, pool_id: str = "linux", revision: int = 1, **changes: Any) -> LaunchConfigCreated:
    body: dict[str, Any] = {
        "account_id": "sim-a", "region": "sim-1", "zone": config_id, "instance_type": "m5", "image_revision": "linux-1",
        "base_weight": 1.0, "price_factor": 1.0, "state": "active",
    }  # fmt: skip
    return LaunchConfigCreated(launch_config_id=config_id, pool_id=pool_id, revision=revision, **(body | changes))


class Calculator:
    """Tells the calculator what happened, lets its loops run, and reads what it published."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.consumers = {
            WORKER_LIFECYCLE.name: Consumer(SERVICE, WORKER_LIFECYCLE, partial(fold_outcomes, policy=POLICY)),
            LAUNCH_CONFIG_LIFECYCLE.name: Consumer(SERVICE, LAUNCH_CONFIG_LIFECYCLE, record_configs),
        }
        self.owned: dict[str, Owned] = {}
        self.records: list[Record] = []
        self.publish_loop = PublishLoop(POLICY, republish_seconds=600)
        self.watch_loop = WatchLoop(POLICY, refresh_seconds=60)
        self._published = 0

    async def tell(self, *events: Any, at: float = 0) -> None:
        """Facts of one instant, as one batch of the topic of the first."""
        topic = TOPIC_OF[type(events[0])]
        first = self.owned[topic.name].next_offset if topic.name in self.owned else 0
        records = [encoded(topic, event, first + n, after(at)) for n, event in enumerate(events)]
        self.records += records
        await self.apply(topic, records)

    async def apply(self, topic: Topic, records: list[Record]) -> None:
        """Through the consumer: offsets, duplicates, one transaction."""
        async with self.pool.acquire() as db:
            if topic.name not in self.owned:
                self.owned[topic.name], _ = await consume.claim(db, topic.name, 0, "cluster")
            owned = self.owned[topic.name]
            self.owned[topic.name] = await consume.apply(db, self.consumers[topic.name], owned, records)

    async def set_clock(self, seconds: float) -> None:
        await self.pool.execute("UPDATE test_clock SET at = $1", after(seconds))

    async def publish(self) -> list[WeightChanged]:
        """Run both loops dry; what was published by it, in order."""
        while await self.watch_loop.step(self.pool) or await self.publish_loop.step(self.pool):
            pass
        return [record for _, record in await self.told() if record is not None]

    async def told(self) -> list[tuple[int, WeightChanged | None]]:
        """Revision and record (None: a tombstone) of what was published since the last call."""
        rows = await self.pool.fetch(
            "SELECT id, revision, value FROM outbox WHERE id > $1 ORDER BY id", self._published
        )
        self._published = rows[-1]["id"] if rows else self._published
        return [
            (row["revision"], row["value"] and msgspec.json.decode(row["value"], type=WeightChanged)) for row in rows
        ]

    async def rows(self) -> list[Any]:
        rows: list[Any] = await self.pool.fetch("SELECT * FROM launch_config ORDER BY id")
        return rows


def encoded(topic: Topic, event: Any, offset: int, at: datetime) -> Record:
    envelope = Envelope(
        id=new_id(), type=event.type, source="provisioner", subject=topic.subject(event), time=at,
        number=offset + 1, previous=offset, revision=1,
    )  # fmt: skip
    return Record(
        topic=topic.name, partition=0, offset=offset, key=topic.key(event).encode(),
        value=msgspec.json.encode(event), headers=encode(envelope), timestamp_ms=int(at.timestamp() * 1000),
    )  # fmt: skip


@contextlib.asynccontextmanager
async def calculator_on(url: str, *, size: int = 4) -> AsyncIterator[Calculator]:
    """A calculator on a new, empty database beside the one of `url`, copied from one that was migrated once."""
    template, name = f"{SERVICE}-template", f"{SERVICE}-{new_id()}"
    server: Connection = await asyncpg.connect(url)
    try:
        if not await server.fetchval("SELECT count(*) FROM pg_database WHERE datname = $1", template):
            await server.execute(f'CREATE DATABASE "{template}"')
            await migrate.upgrade(beside(url, template), SERVICE)
        await server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    finally:
        await server.close()
    pool = await postgres.connect(beside(url, name), SERVICE, size=size, settings=PATIENT)
    try:
        await pool.execute(SETTABLE_CLOCK)
        yield Calculator(pool)
    finally:
        await pool.close()


def beside(url: str, database: str) -> str:
    return url.replace("/postgres?", f"/{database}?")
