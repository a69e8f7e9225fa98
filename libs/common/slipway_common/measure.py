"""Gauges that are read rather than counted: what the database and the subscriptions say, every few seconds."""

from collections.abc import Awaitable, Callable
from typing import Final

from slipway_common.clock import monotonic_seconds, utc_now
from slipway_common.metrics import Board, Readings
from slipway_common.postgres import Pool
from slipway_common.runtime import Runtime

MEASURE_SECONDS: Final = 5.0

OLDEST: Final = "SELECT coalesce(extract(epoch FROM slipway_clock() - min(at)), 0)::float8 FROM outbox"
DEAD: Final = "SELECT topic, count(*)::int AS records FROM dead_letter GROUP BY topic"
CLOCK: Final = "SELECT slipway_clock()"

PLUMBING: Final = (
    "slipway_outbox_oldest_seconds",
    "slipway_dead_letters",
    "slipway_consumer_lag_records",
    "slipway_clock_offset_seconds",
)


class Measure:
    """A loop's step: reads and shows the gauges `names`, at most once in MEASURE_SECONDS however often it is rung.

    What cannot be read is not shown: an old value would look like a present one.
    """

    def __init__(self, names: tuple[str, ...], read: Callable[[Pool], Awaitable[Readings]]) -> None:
        self.board = Board(*names)
        self.read = read
        self.read_at = -MEASURE_SECONDS

    async def step(self, pool: Pool) -> bool:
        if monotonic_seconds() - self.read_at < MEASURE_SECONDS * 0.9:
            return False  # rung, not due
        self.read_at = monotonic_seconds()
        readings: Readings = {}
        try:
            readings = await self.read(pool)
        finally:
            self.board.show(readings)
        return False


async def plumbing(pool: Pool, runtime: Runtime) -> Readings:
    """What every service stands on. Lag is of the partitions that this process owns."""
    begin = utc_now()
    told = await pool.fetchval(CLOCK)
    end = utc_now()
    readings = runtime.readings()
    dead = {reading.consumer.topic.name: 0 for reading in readings}
    dead |= {row["topic"]: row["records"] for row in await pool.fetch(DEAD)}
    return {
        "slipway_clock_offset_seconds": {(): (begin + (end - begin) / 2 - told).total_seconds()},
        "slipway_outbox_oldest_seconds": {(): await pool.fetchval(OLDEST)},
        "slipway_dead_letters": {(topic,): records for topic, records in dead.items()},
        "slipway_consumer_lag_records": {
            (reading.consumer.topic.name,): records
            for reading in readings
            if (records := await reading.lag()) is not None
        },
    }
