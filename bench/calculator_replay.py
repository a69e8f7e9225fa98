"""Throughput of a backlog through the weight-calculator's turns: records are read, folded, journalled and published.

The yardstick processes the same records without any work on them: reading, duplicate detection and positions only.
"""

import asyncio
import gc
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

import msgspec
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from bench import worker_events
from bench.own_time import own_seconds
from bench.spread import Spread, spread
from slipway_api.events.topics import TOPIC_OF
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.database import migrate, postgres
from slipway_common.database.postgres import Connection, Database
from slipway_common.messaging.consume import Batch, Place
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.leader_loop import LeaderLoop
from slipway_common.messaging.leadership import Turn
from slipway_common.messaging.records import Received
from slipway_common.messaging.relay import partition_for
from slipway_local.servers.postgres import EmbeddedPostgres
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


class CalculatorReplay(msgspec.Struct, frozen=True, kw_only=True):
    """Events per second, of the time in which neither the process nor its session waited for a processor.

    `folded`: fold and commit, all that a turn does with events between reading and the database's answer; `read`:
    consume and decode only, from the client's first record to the last commit; `applied`: the same with all work done.
    `ratio`: `folded_per_second` over `read_per_second`, in the median of the rounds.
    """

    events: int
    configs: int
    folded_per_second: Spread
    applied_per_second: Spread
    read_per_second: Spread
    ratio: float


class TimedCalculation(Calculation):
    """Calculation that sums the seconds of its turns, without the work that the yardstick does as well.

    Counted are the start of a turn and the time from its first event to the end of its commit; positions and duplicate
    detection happen in between.
    """

    seconds = 0.0
    session = 0

    def begin(self, turn: Turn) -> None:
        began = own_seconds()
        super().begin(turn)
        self._handed_at = own_seconds(self.session)
        self.seconds += own_seconds() - began

    async def handle(self, tx: Connection, events: Sequence[Received]) -> None:
        self.session = tx.get_server_pid()
        self._handed_at = own_seconds(self.session)
        await super().handle(tx, events)

    def committed(self) -> bool:
        published = super().committed()
        self.seconds += own_seconds(self.session) - self._handed_at
        return published


class NoWork:
    """Leader work that reads the calculator's topics and does nothing."""

    topics = TOPICS
    session = 0

    async def load(self, tx: Connection) -> None:
        """Load nothing."""

    def begin(self, turn: Turn) -> None:
        """Draft nothing."""

    async def handle(self, tx: Connection, events: Sequence[Received]) -> None:
        """Fold nothing."""
        self.session = tx.get_server_pid()

    async def store(self, tx: Connection, turn: Turn, batch: Batch | None) -> None:
        """Store nothing."""

    def committed(self) -> bool:
        return False

    def due(self) -> None:
        return None


class TimedReader(Reader):
    """Reader that records the times of its first records and of its first empty poll, when all is committed."""

    began = 0.0
    ended = 0.0

    def __init__(self, records: Log, work: "TimedCalculation | NoWork") -> None:
        super().__init__(records)
        self.empty = asyncio.Event()
        self.work = work

    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]]:
        self.began = self.began or own_seconds()
        found = await super().getmany(timeout_ms=timeout_ms, max_records=max_records)
        if not found:
            self.ended = self.ended or own_seconds(self.work.session)
            self.empty.set()
            await asyncio.sleep(timeout_ms / 1000)
        return found


async def measure(server: EmbeddedPostgres, number: int) -> CalculatorReplay:
    """Measure with `number` configs, in turn with the yardstick; a round starts with all declared and no outcomes."""
    configs = worker_events.launch_configs(number)
    events = worker_events.generate(configs, EVENTS)
    # Times are shifted so that the backlog ends now, since turns use the server's clock.
    late = utc_now().timestamp() - events[-1][1]
    declarations = [(config, worker_events.BEGAN + late) for config in configs]
    declared, everything = (
        written(declarations),
        written([*declarations, *((event, at + late) for event, at in events)]),
    )
    gc.collect()
    gc.freeze()  # a Kafka client holds records in its buffers, not as Python objects
    template = f"replay_{number}"
    await migrate.upgrade(await server.create_database(template), SERVICE)
    await _seconds(server.url(template), TimedCalculation(), declared)
    folded: list[float] = []
    applied: list[float] = []
    read: list[float] = []
    for n in range(ROUNDS):
        work = TimedCalculation()
        for each, taken in ((NoWork(), read), (work, applied)):
            name = f"{template}_{n}_{len(read) + len(applied)}"
            url = await server.create_database(name, template=template)
            taken.append(EVENTS / await _seconds(url, each, everything))
            await server.drop_database(name)
        folded.append(EVENTS / work.seconds)
    gc.unfreeze()
    return CalculatorReplay(
        events=EVENTS,
        configs=number,
        folded_per_second=spread(folded),
        applied_per_second=spread(applied),
        read_per_second=spread(read),
        ratio=round(median(fold / plain for fold, plain in zip(folded, read, strict=True)), 2),
    )


async def _seconds(url: str, work: TimedCalculation | NoWork, records: Log) -> float:
    """Run the work until all records are applied; return the seconds taken."""
    pool = await postgres.connect(url, SERVICE)
    try:
        reader = TimedReader(records, work)
        alone = LeaderLoop(work, service=SERVICE, kafka="", prefix="", instance="bench", wake=lambda: None)
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


async def _check(pool: Database, records: Log) -> None:
    stored = {(row["topic"], row["partition"]): row["next_offset"] for row in await pool.fetch(POSITIONS)}
    assert stored == {place: len(found) for place, found in records.items()}, stored
    assert await pool.fetchval(LOST) == 0


def written(events: Sequence[tuple[Any, float]]) -> Log:
    """Records of these events by partition, with sequence numbers as the relay assigns them."""
    places: Log = {(topic.name, partition): [] for topic in TOPICS for partition in range(PARTITIONS)}
    for event, at in events:
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
            sequence_number=offset + 1,
            previous=offset,
            sequence_source="/slipway/bench/1",
            revision=1,
            traceparent=f"00-{offset + 1:032x}-{offset + 1:016x}-01",
        )
        value = msgspec.json.encode(event)
        # Kafka's client creates a new string for each header name.
        headers = tuple((name.encode().decode(), text) for name, text in encode(envelope))
        places[place].append(
            ConsumerRecord(*place, offset, int(at * 1000), 0, key.encode(), value, None, 0, 0, headers)
        )
    return places
