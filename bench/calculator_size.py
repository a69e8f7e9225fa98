"""Cost of the weight-calculator's turns with few launch configs and with many, which share as many keys in proportion.

Measured is the time of the process and of its session of a turn in which nothing is due, and of an event in turns of
ten, from the begin of a turn to the end of its commit: its alerts and weight records, what is stored, and when the next
turn is due. Both sizes take turns.
"""

import gc
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

import msgspec

from bench import worker_events
from bench.loops.cost import cpu_seconds, one_processor
from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.topics import TOPIC_OF
from slipway_common.database import migrate, postgres
from slipway_common.database.postgres import Database
from slipway_common.messaging.consume import Batch
from slipway_common.messaging.leadership import Turn
from slipway_common.messaging.records import Received
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_weight_calculator.work import Calculation

SERVICE: Final = "weight-calculator"
FEW, MANY = 60, 6_000
EVENTS, IDLE_TURNS, ROUNDS = 500, 50, 5
AT_ONCE: Final = 10
CONFIGS_OF_IMAGE, CONFIGS_OF_ACCOUNT = 3, 30
EPOCH: Final = "SELECT epoch FROM leader"


class CalculatorSize(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of a turn with nothing due and of an event, by size, and the medians of their ratios."""

    configs: tuple[int, int]
    keys: tuple[int, int]
    idle_ms: tuple[float, float]
    event_ms: tuple[float, float]
    idle_ratio: float
    event_ratio: float


class Cell:
    """A calculator with its database, and the costs that were measured."""

    def __init__(self, database: Database, number: int) -> None:
        self.database = database
        self.configs = _configs(number)
        self.work = Calculation(refresh_seconds=1e9, republish_seconds=1e9)
        self.events = iter(worker_events.generate(self.configs, EVENTS * (ROUNDS + 1)))
        self.at = worker_events.BEGAN
        self.idle: list[float] = []
        self.busy: list[float] = []
        self._offset = 0

    @property
    def keys(self) -> int:
        """Keys that launch configs share."""
        return len({key for config in self.work.world.configs.values() for key in config.keys[1:]})

    async def declare(self) -> None:
        """Declare all launch configs, and publish their first records."""
        self.epoch: int = await self.database.fetchval(EPOCH)
        async with self.database.acquire() as db, db.transaction():
            await self.work.load(db)
        for first in range(0, len(self.configs), 500):
            await self._turn([(config, self.at) for config in self.configs[first : first + 500]])
        while self.work.publishing.due() is not None:
            self.at += 1
            await self._turn([])

    async def measure(self) -> None:
        """Measure turns with nothing due, then those with events."""
        self.idle.append(await cpu_seconds(self.database, self._do_nothing) / IDLE_TURNS)
        events = [self._received(*next(self.events)) for _ in range(EVENTS)]

        async def fold() -> None:
            for first in range(0, EVENTS, AT_ONCE):
                part = events[first : first + AT_ONCE]
                self.at = max(self.at, part[-1].time.timestamp())
                await self._commit(part)

        self.busy.append(await cpu_seconds(self.database, fold) / EVENTS)
        self.at += 1
        await self._turn([])  # what is published a moment later

    async def _do_nothing(self) -> None:
        for _ in range(IDLE_TURNS):
            await self._commit([])

    async def _turn(self, events: Sequence[tuple[Any, float]]) -> None:
        await self._commit([self._received(event, at) for event, at in events])

    async def _commit(self, events: Sequence[Received]) -> None:
        async with self.database.acquire() as db, db.transaction():
            turn = Turn(epoch=self.epoch, at=self.at, until=self.at)
            self.work.begin(turn)
            await self.work.handle(db, events)
            await self.work.store(db, turn, Batch(SERVICE, ()) if events else None)
        self.work.committed()

    def _received(self, event: Any, at: float) -> Received:
        topic, self._offset = TOPIC_OF[type(event)], self._offset + 1
        return Received(
            event=event,
            type=event.type,
            id=str(self._offset),
            source="/slipway/bench",
            subject=topic.subject(event),
            time=datetime.fromtimestamp(at, UTC),
            sequence_number=self._offset,
            revision=1,
            topic=topic.name,
            partition=0,
            offset=self._offset,
        )


async def measure(server: EmbeddedPostgres) -> CalculatorSize:
    """Measure both sizes in turn, after a round that warms up."""
    async with AsyncExitStack() as stack:
        cells = []
        for number in (FEW, MANY):
            url = await server.create_database(f"size_{number}")
            await migrate.upgrade(url, SERVICE)
            database = await postgres.connect(url, SERVICE, size=1)
            stack.push_async_callback(database.close)
            cells.append(Cell(database, number))
            await cells[-1].declare()
        sessions = [await cell.database.fetchval("SELECT pg_backend_pid()") for cell in cells]
        gc.collect()
        gc.freeze()
        with one_processor(0, *sessions):
            for _ in range(ROUNDS + 1):
                for cell in cells:
                    await cell.measure()
        gc.unfreeze()
    few, many = cells
    idle, busy = (few.idle[1:], many.idle[1:]), (few.busy[1:], many.busy[1:])
    return CalculatorSize(
        configs=(FEW, MANY),
        keys=(few.keys, many.keys),
        idle_ms=_medians(idle),
        event_ms=_medians(busy),
        idle_ratio=_ratio(idle),
        event_ratio=_ratio(busy),
    )


def _configs(number: int) -> list[LaunchConfigCreated]:
    """Launch configs each in a zone of its own, three with one image, and thirty in one account."""
    return [
        msgspec.structs.replace(
            config,
            account_id=f"account-{n // CONFIGS_OF_ACCOUNT}",
            zone=f"zone-{n}",
            image_revision=f"image-{n // CONFIGS_OF_IMAGE}",
        )
        for n, config in enumerate(worker_events.launch_configs(number))
    ]


def _medians(seconds: tuple[list[float], list[float]]) -> tuple[float, float]:
    few, many = (round(median(each) * 1000, 3) for each in seconds)
    return few, many


def _ratio(seconds: tuple[list[float], list[float]]) -> float:
    return round(median(many / few for few, many in zip(*seconds, strict=True)), 2)
