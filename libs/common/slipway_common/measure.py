"""Gauges measured every few seconds from the database and the subscriptions."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.database.postgres import Database
from slipway_common.observability.metrics import Board, Readings
from slipway_common.web.runtime import Runtime

MEASURE_SECONDS: Final = 5.0

OLDEST: Final = "SELECT coalesce(extract(epoch FROM slipway_clock() - min(at)), 0)::float8 FROM outbox"
DEAD: Final = "SELECT topic, count(*)::int AS records FROM dead_letter GROUP BY topic"
CLOCK: Final = "SELECT slipway_clock()"

SERVICE_GAUGES: Final = (
    "slipway_outbox_oldest_seconds",
    "slipway_dead_letters",
    "slipway_consumer_lag_records",
    "slipway_clock_offset_seconds",
)


class Measure:
    """Loop step that reads and publishes the gauges `names`, at most once per MEASURE_SECONDS.

    A gauge that cannot be read is removed, since an outdated value would look current.
    """

    def __init__(self, names: tuple[str, ...], read: Callable[[Database], Awaitable[Readings]]) -> None:
        self.board = Board(*names)
        self.read = read
        self.read_at = -MEASURE_SECONDS

    async def step(self, database: Database) -> bool:
        if monotonic_seconds() - self.read_at < MEASURE_SECONDS * 0.9:
            return False  # woken early
        self.read_at = monotonic_seconds()
        readings: Readings = {}
        try:
            readings = await self.read(database)
        finally:
            await self.board.show(readings)
        return False


ReadNext: TypeAlias = Callable[[Database, str], Awaitable[tuple[Mapping[str, Readings], bool]]]
"""Reads the next subjects after an id, in the order of their ids: their readings, and whether there are more."""


class InTurn:
    """Loop step that reads the gauges `names` of a part of their subjects, in turn: it costs the same however many
    there are. Each is shown until its next turn."""

    def __init__(self, names: tuple[str, ...], read_next: ReadNext) -> None:
        self.board = Board(*names)
        self.read_next = read_next
        self._after = ""
        self._shown: set[str] = set()

    async def step(self, database: Database) -> bool:
        """Show the next subjects, and remove those of their place in the order that do not exist any more."""
        try:
            read, more = await self.read_next(database, self._after)
        except Exception:
            await self._remove(self._shown)  # as outdated values would look current
            raise
        last = max(read) if more else ""
        await self._remove({id_ for id_ in self._shown - read.keys() if id_ > self._after and (not last or id_ < last)})
        for id_, readings in read.items():
            await self.board.show(readings, part=id_)
        self._shown |= read.keys()
        self._after = last
        return False

    async def _remove(self, ids: set[str]) -> None:
        for id_ in ids:
            await self.board.show({}, part=id_)
        self._shown -= ids


async def service_readings(database: Database, runtime: Runtime) -> Readings:
    """Read the gauges common to all services. Lag covers the partitions owned by this process."""
    begin = utc_now()
    database_now = await database.fetchval(CLOCK)
    end = utc_now()
    readings = runtime.readings()
    dead = {reading.consumer.topic.name: 0 for reading in readings}
    dead |= {row["topic"]: row["records"] for row in await database.fetch(DEAD)}
    return {
        "slipway_clock_offset_seconds": {(): (begin + (end - begin) / 2 - database_now).total_seconds()},
        "slipway_outbox_oldest_seconds": {(): await database.fetchval(OLDEST)},
        "slipway_dead_letters": {(topic,): records for topic, records in dead.items()},
        "slipway_consumer_lag_records": {
            (reading.consumer.topic.name,): records
            for reading in readings
            if (records := await reading.lag()) is not None
        },
    }
