"""A backlog through the calculator's turns, as it comes from Kafka's client, into rows: read, folded, journalled, told.

The yardstick goes the same way on the same records, and does nothing with them: reading, duplicates, positions.
"""

import asyncio
import gc
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from bench import lives
from bench.spread import Spread, spread
from slipway_common import migrate, postgres
from slipway_common.clock import utc_now
from slipway_common.consume import Batch, Place
from slipway_common.envelope import Envelope, encode
from slipway_common.exclusive import Exclusive
from slipway_common.ids import new_id
from slipway_common.owner import Turn, Work
from slipway_common.postgres import Connection, Pool
from slipway_common.records import Received
from slipway_common.relay import partition_for
from slipway_common.topics import TOPIC_OF
from slipway_local.postgres import EmbeddedPostgres
from slipway_weight_calculator.work import TOPICS, Calculation
from tests.simulation.reader import Reader, reading

SERVICE: Final = "weight-calculator"
PARTITIONS: Final = 32
EVENTS: Final = 80_000  # two turns
ROUNDS: Final = 3
PATIENCE_SECONDS: Final = 120.0
POSITIONS: Final = "SELECT topic, partition, next_offset FROM consumed"
LOST: Final = "SELECT (SELECT count(*) FROM dead_letter) + (SELECT count(*) FROM gap)"

Log = dict[Place, list[ConsumerRecord[bytes, bytes]]]


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Events per second. `folded`: fold and commit, which is all that a turn does with what was read until the
    database has answered; `read`: consumed and decoded, from the client's first record to the last commit with nothing
    done; `applied`: the same with everything done. `ratio` is of the medians of `folded_per_second` and
    `read_per_second`."""

    events: int
    configs: int
    folded_per_second: Spread
    applied_per_second: Spread
    read_per_second: Spread
    ratio: float


class Clocked(Calculation):
    """Counts the seconds that each turn takes to begin, and from its first event to the end of its commit. In between
    lies what the yardstick does as well: positions, duplicates."""

    seconds = 0.0

    def begin(self, turn: Turn) -> None:
        began = time.perf_counter()
        super().begin(turn)
        now = self._handed_at = time.perf_counter()
        self.seconds += now - began

    async def handle(self, tx: Connection, events: Sequence[Received]) -> None:
        self._handed_at = time.perf_counter()
        await super().handle(tx, events)

    def committed(self) -> bool:
        told = super().committed()
        self.seconds += time.perf_counter() - self._handed_at
        return told


class Nothing:
    """Reads as the calculator does, and does nothing."""

    topics = TOPICS

    async def load(self, tx: Connection) -> None:
        """Nothing is stored."""

    def begin(self, turn: Turn) -> None:
        """Nothing is drafted."""

    async def handle(self, tx: Connection, events: Sequence[Received]) -> None:
        """Nothing is folded."""

    async def store(self, tx: Connection, turn: Turn, batch: Batch | None) -> None:
        """Nothing has changed."""

    def committed(self) -> bool:
        return False

    def due(self) -> None:
        return None


class Timed(Reader):
    """Notes when the first records were given, and when it was asked for more than there are: then all is committed."""

    began = 0.0
    ended = 0.0

    def __init__(self, records: Log) -> None:
        super().__init__(records)
        self.empty = asyncio.Event()

    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]]:
        self.began = self.began or time.perf_counter()
        found = await super().getmany(timeout_ms=timeout_ms, max_records=max_records)
        if not found:
            self.ended = self.ended or time.perf_counter()
            self.empty.set()
            await asyncio.sleep(timeout_ms / 1000)
        return found


async def measure(server: EmbeddedPostgres, number: int) -> Turns:
    """On so many configs, in turn with the yardstick; every round begins with all of them declared, and no outcome."""
    configs = lives.declared(number)
    told = lives.told(configs, EVENTS)
    # A backlog that ends now: turns go by the server's clock.
    late = utc_now().timestamp() - told[-1][1]
    declarations = [(config, lives.BEGAN + late) for config in configs]
    declared, everything = written(declarations), written([*declarations, *((event, at + late) for event, at in told)])
    gc.collect()
    gc.freeze()  # Kafka's client has them in its buffers, not among Python's values
    template = f"turns_{number}"
    await migrate.upgrade(await server.create_database(template), SERVICE)
    await _seconds(server.url(template), Calculation(), declared)
    folded: list[float] = []
    applied: list[float] = []
    read: list[float] = []
    for n in range(ROUNDS):
        work = Clocked()
        for each, taken in ((Nothing(), read), (work, applied)):
            name = f"{template}_{n}_{len(read) + len(applied)}"
            url = await server.create_database(name, template=template)
            taken.append(EVENTS / await _seconds(url, each, everything))
            await server.drop_database(name)
        folded.append(EVENTS / work.seconds)
    gc.unfreeze()
    return Turns(
        events=EVENTS,
        configs=number,
        folded_per_second=spread(folded),
        applied_per_second=spread(applied),
        read_per_second=spread(read),
        ratio=round(spread(folded).median / spread(read).median, 2),
    )


async def _seconds(url: str, work: Work, records: Log) -> float:
    """Until what is not applied yet is; each record has to be, once."""
    pool = await postgres.connect(url, SERVICE)
    try:
        reader = Timed(records)
        alone = Exclusive(work, service=SERVICE, bootstrap_servers="", prefix="", instance="bench", ring=lambda: None)
        with reading(reader):
            running = asyncio.create_task(alone.run(pool))
            async with asyncio.timeout(PATIENCE_SECONDS):
                await reader.empty.wait()
            alone.stop()
            await running
        await _check(pool, records)
        return reader.ended - reader.began
    finally:
        await pool.close()


async def _check(pool: Pool, records: Log) -> None:
    stored = {(row["topic"], row["partition"]): row["next_offset"] for row in await pool.fetch(POSITIONS)}
    assert stored == {place: len(found) for place, found in records.items()}, stored
    assert await pool.fetchval(LOST) == 0


def written(told: Sequence[tuple[Any, float]]) -> Log:
    """Numbered as the relay numbers, and spread over the partitions by their keys."""
    places: Log = {(topic.name, partition): [] for topic in TOPICS for partition in range(PARTITIONS)}
    for event, at in told:
        topic = TOPIC_OF[type(event)]
        key = topic.key(event)
        place = (topic.name, partition_for(key, PARTITIONS))
        offset = len(places[place])
        envelope = Envelope(
            id=new_id(),
            type=event.type,
            source="/slipway/bench",
            subject=topic.subject(event),
            time=datetime.fromtimestamp(at, UTC),
            number=offset + 1,
            previous=offset,
            number_source="/slipway/bench/1",
            revision=1,
            traceparent=f"00-{offset + 1:032x}-{offset + 1:016x}-01",
        )
        value = msgspec.json.encode(event)
        # Kafka's client makes a name of its own for each header.
        headers = tuple((name.encode().decode(), text) for name, text in encode(envelope))
        places[place].append(
            ConsumerRecord(*place, offset, int(at * 1000), 0, key.encode(), value, None, 0, 0, headers)
        )
    return places
