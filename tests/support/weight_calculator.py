"""A weight-calculator without Kafka and HTTP for tests: real turns on a real database with a settable clock.

Also short names for the events that it folds, and the replay of a journal over a log.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Final

import msgspec

from slipway_api.events.alert import AlertRaised
from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.topics import LAUNCH_CONFIG_WEIGHT, TOPIC_OF, Topic
from slipway_api.events.weight import WeightChanged
from slipway_api.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerDelayed,
    WorkerLaunched,
    WorkerLaunchFailed,
    WorkerStopped,
)
from slipway_common.base.ids import new_id
from slipway_common.base.signal_rules import DEFAULT_RULES
from slipway_common.database.postgres import Database
from slipway_common.messaging.consume import Owned, Place, Portion
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.leadership import Leadership
from slipway_common.messaging.records import Record, opened, received
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_weight_calculator.domain import alerts
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.domain.world import World, commit
from slipway_weight_calculator.store import journal
from slipway_weight_calculator.store.journal import Entry
from slipway_weight_calculator.store.retention import RETENTION
from slipway_weight_calculator.store.world import TABLES
from slipway_weight_calculator.work import TOPICS, Calculation, Folding
from tests.support.databases import connected, empty_database
from tests.support.retention import prune_all

SERVICE: Final = "weight-calculator"
START: Final = datetime(2030, 1, 1, tzinfo=UTC)
POLICY: Final = PROFILES["on-demand"]
CLUSTER: Final = "cluster"


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def of(config_id: str, permit: int | None = None) -> dict[str, Any]:
    return {
        "worker_id": new_id(),
        "pool_id": "linux",
        "account_id": "sim-a",
        "image_revision": "linux-1",
        "launch_config_id": config_id,
        "probe_permit": permit,
    }


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
        "account_id": "sim-a",
        "region": "sim-1",
        "name": config_id.partition("@")[0],
        "zone": config_id.partition("@")[0],
        "instance_type": "m5",
        "image_revision": "linux-1",
        "base_weight": 1.0,
        "price_factor": 1.0,
        "state": "active",
    }
    return LaunchConfigCreated(launch_config_id=config_id, pool_id=pool_id, revision=revision, **(body | changes))


class Calculator:
    """Feeds events to the calculator, sets its clock, and reads its records. One partition per topic."""

    def __init__(self, database: Database, instance: str = "a") -> None:
        self.database = database
        self.instance = instance
        self.records: dict[Place, list[Record]] = {(topic.name, 0): [] for topic in TOPICS}
        self._published = 0
        self.restart()

    def restart(self) -> None:
        """Start over like a new process of the same name, without any state in memory."""
        self.work = Calculation(refresh_seconds=60, republish_seconds=600)
        self.leadership = Leadership(self.work, SERVICE, self.instance)

    async def take_over(self) -> None:
        await self.leadership.bid(self.database)
        positions = await self.leadership.take_over(self.database, list(self.records), CLUSTER)
        self.positions = {place: owned for place, (owned, _) in positions.items()}

    async def consume(self, *events: Any, at: float = 0, reached: float = inf, **attributes: Any) -> None:
        """Consume events of one time, as one batch of the topic of the first; `reached` as in `turn`."""
        topic = TOPIC_OF[type(events[0])]
        known = self.records[topic.name, 0]
        known += [encoded(topic, event, len(known) + n, after(at), **attributes) for n, event in enumerate(events)]
        await self.turn(known[-len(events) :], reached=reached)

    async def turn(self, records: list[Record], *, reached: float = inf) -> bool:
        """Take a turn, with records of one topic or none; True if anything was published.

        `reached`: all topics have been read up to this many seconds.
        """
        portions = []
        if records:
            place = (records[0].topic, 0)
            topic = next(topic for topic in TOPICS if topic.name == place[0])
            portions = [Portion(topic, 0, self.positions[place], records)]
        published, _ = await self.leadership.turn(self.database, portions, reached=after(0).timestamp() + reached)
        for portion in portions:
            self.positions[portion.topic.name, 0] = Owned(portion.owned.epoch, portion.end)
        return published

    async def prune(self) -> None:
        await prune_all(self.database, RETENTION)

    async def set_clock(self, seconds: float) -> None:
        await self.database.execute("UPDATE test_clock SET at = $1", after(seconds))

    async def publish(self) -> list[WeightChanged]:
        """Take turns without records until nothing is left to publish; returns the records since the last call."""
        await self.turn([])
        while self.work.publishing.due() is not None:
            await self.database.execute("UPDATE test_clock SET at = at + interval '100 ms'")
            await self.turn([])
        return [record for _, record in await self.published() if record is not None]

    async def published(self) -> list[tuple[int, WeightChanged | None]]:
        """Revisions and records (None: a tombstone) published since the last call."""
        rows = await self.database.fetch(
            "SELECT id, revision, value FROM outbox WHERE id > $1 AND topic = $2 ORDER BY id",
            self._published,
            LAUNCH_CONFIG_WEIGHT.name,
        )
        self._published = rows[-1]["id"] if rows else self._published
        return [
            (row["revision"], row["value"] and msgspec.json.decode(row["value"], type=WeightChanged)) for row in rows
        ]

    async def stored(self) -> dict[str, dict[str, str]]:
        """The stored world, as bytes."""
        return await stored(self.database)

    async def journal(self) -> list[Entry]:
        async with self.database.acquire() as db:
            return await journal.read(db)


def replayed(journal: Sequence[Entry], log: Mapping[Place, Sequence[Record]]) -> dict[str, dict[str, str]]:
    """The state that the pure core computes from a log by its journal, in the form of `stored`."""
    world, open_alerts = World(PROFILES), dict[str, AlertRaised]()
    for entry in journal:
        folding = Folding(world, entry.at, DEFAULT_RULES)
        skipped = [*entry.left_out, *entry.dead_lettered]
        for places in (entry.taken, entry.settled):
            found = [record for place in places for record in in_range(log, place)]
            folding.fold([received(record, opened(record)) for record in found if not covers(skipped, record)])
        folding.dead_letter(record for place in entry.dead_lettered for record in in_range(log, place))
        if entry.settled:
            folding.settle()
        folding.advance(entry.until)
        open_alerts = alerts.after(open_alerts, alerts.changes(folding.draft, open_alerts, entry.at))
        commit(folding.draft)
    values: dict[str, Mapping[str, Any]] = {
        "config": world.configs,
        "health": {key.text: row for key, row in world.rows.items()},
        "boot": world.boots,
        "signal": world.signals,
        "open_alert": open_alerts,
    }
    return {
        name: {key: msgspec.json.encode(value).decode() for key, value in sorted(values[name].items())}
        for name in TABLES
    }


def in_range(log: Mapping[Place, Sequence[Record]], place: tuple[str, int, int, int]) -> list[Record]:
    topic, partition, first, end = place
    return [record for record in log[topic, partition] if first <= record.offset < end]


def covers(found: Sequence[tuple[str, int, int, int]], record: Record) -> bool:
    """True if a record is in one of the ranges."""
    return any(
        (topic, partition) == (record.topic, record.partition) and first <= record.offset < end
        for topic, partition, first, end in found
    )


async def stored(db: Any) -> dict[str, dict[str, str]]:
    """Every body by table and key."""
    return {
        name: {row["key"]: row["body"] for row in await db.fetch(f"SELECT key, body FROM {name} ORDER BY key")}
        for name in TABLES
    }


def encoded(topic: Topic, event: Any, offset: int, at: datetime, **attributes: Any) -> Record:
    """The record of an event as the relay writes it; `value` replaces the event's own bytes."""
    value = attributes.pop("value", msgspec.json.encode(event))
    envelope = {
        "id": new_id(),
        "type": event.type,
        "source": "provisioner",
        "subject": topic.subject(event),
        "time": at,
        "sequence_number": offset + 1,
        "previous": offset,
        "revision": 1,
    }
    return Record(
        topic=topic.name,
        partition=0,
        offset=offset,
        key=topic.key(event).encode(),
        value=value,
        headers=encode(Envelope(**(envelope | attributes))),
        timestamp_ms=int(at.timestamp() * 1000),
    )


@contextlib.asynccontextmanager
async def calculator_on(server: EmbeddedPostgres, *, size: int = 4) -> AsyncIterator[Calculator]:
    """A calculator on an empty database of its own."""
    async with empty_database(server, SERVICE) as url, connected(url, SERVICE, size=size) as database:
        calculator = Calculator(database)
        await calculator.set_clock(0)
        await calculator.take_over()
        yield calculator
