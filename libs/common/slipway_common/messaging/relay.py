"""Relay from the outbox to Kafka; the only producer of a service. Assigns sequence numbers per target partition, so
that consumers detect duplicates and gaps. Before it sends anything it compares the rows with the log (incarnation.py).

One relay per service is active at a time: it holds an advisory lock on a dedicated session, assigns numbers in
transactions *on that session*, and sends the lowest unacknowledged rows of each partition as one idempotent batch. The
server ends the session of a stopped relay, so it can assign no more numbers; records that it had in flight repeat
numbers already assigned, and consumers drop them. A partition that cannot be sent to delays no other
(partition_queues.py).
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

import asyncpg
from aiokafka.errors import ClusterAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError
from aiokafka.partitioner import murmur2

from slipway_api.events.topics import Topic
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database import outage
from slipway_common.database.postgres import Connection, Database, is_infrastructure, schema_of, session
from slipway_common.database.tables import PLAN_SETTINGS
from slipway_common.messaging import incarnation
from slipway_common.messaging.clients import Kafka
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.partition_queues import ROWS_MAX, PartitionQueues, Place, Rows
from slipway_common.messaging.producers import OVERDUE_SECONDS, Producers, open_producer
from slipway_common.messaging.sent import SentLog
from slipway_common.observability.telemetry import PUBLISHED, UNSENDABLE, logger

LOG = logger(__name__)

LOCK: Final = "SELECT pg_try_advisory_lock(hashtext('slipway.relay'), hashtext(current_schema()))"
RECORD: Final = (
    "id",
    "event_id::text",
    "topic",
    "type",
    "subject",
    "key",
    "revision",
    "value",
    "at",
    "traceparent",
    "headers",
    "partition",
    "sequence_number",
    "previous_sequence_number",
)
NUMBERED_MAX: Final = 2_000  # rows of a round
UNNUMBERED: Final = f"SELECT id, topic, key FROM outbox WHERE sequence_number IS NULL ORDER BY id LIMIT {NUMBERED_MAX}"
DELETE: Final = "DELETE FROM outbox WHERE id = ANY($1::bigint[])"
# The position is updated with the numbers and outlives the rows, so no number is assigned twice. Acknowledged rows are
# deleted with it, since a commit of their own would cost as much.
NUMBER: Final = f"""
WITH acknowledged AS ({DELETE}), given AS (
    SELECT * FROM unnest($2::bigint[], $3::text[], $4::integer[]) AS g (id, topic, partition)
), placed AS (
    SELECT id, topic, partition, row_number() OVER (PARTITION BY topic, partition ORDER BY id) AS place FROM given
), moved AS (
    INSERT INTO relay_position AS p (topic, partition, sequence_number)
    SELECT topic, partition, count(*) FROM placed GROUP BY topic, partition
    ON CONFLICT (topic, partition) DO UPDATE SET sequence_number = p.sequence_number + excluded.sequence_number
    RETURNING topic, partition, sequence_number
), sizes AS (SELECT topic, partition, count(*) AS size FROM placed GROUP BY topic, partition)
UPDATE outbox o SET partition = placed.partition,
    sequence_number = m.sequence_number - s.size + placed.place,
    previous_sequence_number = m.sequence_number - s.size + placed.place - 1
FROM placed JOIN moved m USING (topic, partition) JOIN sizes s USING (topic, partition) WHERE o.id = placed.id
RETURNING {", ".join(f"o.{column}" for column in RECORD)}"""
PLACES: Final = "SELECT topic, partition FROM relay_position"
LOWEST: Final = f"""
SELECT o.* FROM unnest($1::text[], $2::integer[]) AS p (topic, partition) CROSS JOIN LATERAL (
    SELECT {", ".join(RECORD)} FROM outbox
    WHERE sequence_number IS NOT NULL AND topic = p.topic AND partition = p.partition
    ORDER BY sequence_number LIMIT {ROWS_MAX}) o
ORDER BY o.topic, o.partition, o.sequence_number"""
PING: Final = "SELECT 1"

# The server ends the lock session of a relay that stalls for longer. The relay queries it every second.
STALLED_SECONDS: Final = 10.0
PING_SECONDS_MAX: Final = 1.0
CHECK_SECONDS: Final = 2.0
TOGETHER_SECONDS: Final = 0.05  # for batches that were sent together, so that one round follows all of them
DELETE_SECONDS: Final = 0.05  # acknowledged rows wait so long for a round that numbers others
DENIED: Final = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)
"""Errors of a principal that lacks a right. They pass once an administrator has given it."""
LOG_EVERY: Final = 12  # failed batches in a row of a partition: one line a minute


def partition_for(key: str | None, partitions: int) -> int:
    """Partition of a key, as the Java client computes it; 0 without a key."""
    return 0 if key is None else (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


class WrongPartitions(Exception):
    """The topic on the broker has a different partition count than the registry; keys would move."""


class Relay:
    """Publishes the outbox of one service until cancelled; takes over if the active relay dies or stalls."""

    def __init__(
        self,
        service: str,
        *,
        database_url: str,
        kafka: Kafka,
        topic_prefix: str,
        partitions: dict[str, int],
        compared_topics: Sequence[Topic] = (),
        renewed: incarnation.Renewed = incarnation.stop_nothing,
        stalled_seconds: float = STALLED_SECONDS,
    ) -> None:
        """`compared_topics` show what the service has published. `renewed` is called in the transaction that renews the
        incarnation of the database."""
        self.service = service
        self.database_url = database_url
        self.kafka = kafka
        self.topic_prefix = topic_prefix
        self.partitions = partitions
        self.compared_topics = compared_topics
        self.renewed = renewed
        self.stalled_seconds = stalled_seconds
        self.ping_seconds = min(PING_SECONDS_MAX, stalled_seconds / 4)
        self.publication: Publication | None = None  # while this relay leads
        self._denied_at: float | None = None  # since when the broker does not allow it to begin
        self._wake = asyncio.Event()
        self._committed = False  # since the leader was notified last
        self._notify: asyncio.Task[None] | None = None
        self._channel = f"slipway_relay_{schema_of(service)}"

    @property
    def leading(self) -> bool:
        return self.publication is not None

    def wake(self, database: Database) -> None:
        """Publish now, in this process or in the one that leads; call after a commit."""
        self._wake.set()
        self._committed = True
        if not self.leading and (self._notify is None or self._notify.done()):
            self._notify = asyncio.create_task(self._notify_leader(database))

    async def _notify_leader(self, database: Database) -> None:
        while self._committed:  # others may have committed during the last NOTIFY
            # One NOTIFY per 20 ms, and outside business transactions: inside them it halves commits.
            await asyncio.sleep(0.02)
            self._committed = False
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await database.execute("SELECT pg_notify($1, '')", self._channel)

    async def run(self) -> None:
        """Lead whenever the lock is free; restart with a new session and producer after any infrastructure error."""
        while True:
            pause_seconds = 0.5
            try:
                await self._lead()
            except WrongPartitions as error:
                LOG.error("relay blocked", error=str(error))
                pause_seconds = 5.0
            except incarnation.NotCompared as error:
                LOG.error("relay waits: the database cannot be compared with Kafka", error=str(error))
                pause_seconds = 2.0
            except Exception as error:
                if isinstance(error, DENIED):
                    self._denied_at = monotonic_seconds() if self._denied_at is None else self._denied_at
                    pause_seconds = 2.0
                if is_infrastructure(error) or isinstance(error, KafkaError):
                    outage.warn(LOG, "relay restarting after an error", error)
                else:
                    LOG.exception("relay failed")
            await asyncio.sleep(pause_seconds)

    async def _lead(self) -> None:
        stalled_ms = int(self.stalled_seconds * 1000)
        db = await session(self.database_url, self.service, idle_session_timeout=f"{stalled_ms}ms", **PLAN_SETTINGS)
        try:
            while not await db.fetchval(LOCK):  # noqa: ASYNC110 - polling keeps the session from being idle
                await asyncio.sleep(self.ping_seconds / 2)
            await db.add_listener(self._channel, lambda *_: self._wake.set())
            await db.execute(PING)
            producers = Producers(partial(open_producer, self.kafka))
            try:
                await self._check_all_partitions(await producers.channel(0.0, retry=False).opening)
                current = await self._compare(db)
                checked_at = monotonic_seconds()
                places = [(row["topic"], row["partition"]) for row in await db.fetch(PLACES)]
                source = current.source(self.service)
                self._denied_at = None
                self.publication = publication = Publication(self, source, producers, places=places)
                while True:
                    self._wake.clear()
                    if not await publication.round(db):  # also keeps the session from being idle
                        await publication.idle(self._wake, self.ping_seconds)
                    if monotonic_seconds() - checked_at >= PING_SECONDS_MAX:
                        if not await incarnation.is_current(db, current.id):
                            return
                        checked_at = monotonic_seconds()
            finally:
                led, self.publication = self.publication, None
                await (led or producers).close()
        finally:
            await _close(db)

    def denied(self, seconds: float) -> list[str]:
        """Topics that the broker has not allowed the relay to write to for `seconds`; those of all partitions if it may
        not begin at all."""
        if self._denied_at is not None and monotonic_seconds() - self._denied_at >= seconds:
            return sorted(self.partitions)
        return [] if self.publication is None else self.publication.denied(seconds)

    async def _check_all_partitions(self, producer: Any) -> None:
        """Check the partitions of every topic that the broker knows; the others are checked when they are sent to."""
        checks = [asyncio.wait_for(self.check_partitions(producer, topic), CHECK_SECONDS) for topic in self.partitions]
        for topic, error in zip(self.partitions, await asyncio.gather(*checks, return_exceptions=True), strict=True):
            if isinstance(error, KafkaError | TimeoutError):
                LOG.warning("topic not found", topic=self.topic_prefix + topic, error=repr(error))
            elif error is not None:
                raise error

    async def _compare(self, db: Connection) -> incarnation.Incarnation:
        """Compare the rows with the log; returns the incarnation to publish under, a new one if commits were lost."""
        log = SentLog(
            self.service,
            kafka=self.kafka,
            prefix=self.topic_prefix,
            partitions=self.partitions,
            topics=self.compared_topics,
        )
        return await incarnation.compare(
            db, log, place_of=self.place_of, renewed=self.renewed, ping_seconds=self.ping_seconds
        )

    def place_of(self, topic: str, key: str | None) -> Place:
        """Topic and partition of an event. Dead-letter topics have one partition."""
        return topic, partition_for(key, self.partitions.get(topic, 1))

    async def check_partitions(self, producer: Any, topic: str) -> None:
        """Raise WrongPartitions if keys of a topic would move, and KafkaError if the topic does not exist."""
        expected = self.partitions.get(topic, 1)  # dead-letter topics have one partition
        actual = len(await producer.partitions_for(self.topic_prefix + topic))
        if actual != expected:
            raise WrongPartitions(
                f"{self.topic_prefix}{topic} has {actual} partitions, but the registry has {expected}; "
                "set SLIPWAY_PARTITIONS to match, or recreate the topic"
            )


class Publication:
    """Publication by a relay while it leads: numbers the rows, and sends them one batch per partition at a time."""

    def __init__(
        self,
        relay: Relay,
        source: str,
        producers: Producers,
        *,
        places: Iterable[Place],
        clock: Callable[[], float] = monotonic_seconds,
        together_seconds: float | None = TOGETHER_SECONDS,
    ) -> None:
        """`places` are the partitions that a predecessor may have numbered rows for. A round waits `together_seconds`
        for its batches, or until all are answered."""
        self._relay = relay
        self._source = source
        self._producers = producers
        self._queues = PartitionQueues(places)
        self._clock = clock
        self._together_seconds = together_seconds
        self._places: dict[asyncio.Task[int], Place] = {}  # of batches in flight
        self._unsendable: Counter[str] = Counter()
        self._denied: set[Place] = set()  # whose last batch was refused for lack of a right
        self._acknowledged: list[int] = []  # ids of rows that the next round deletes

    async def round(self, db: Connection) -> bool:
        """Delete the rows of batches that the last round found acknowledged, number new rows, and send what can be
        sent; True if the next round can send more now."""
        numbered = await self._number(db)
        self._queues.add(numbered)
        if places := self._queues.unloaded(self._clock()):
            topics, partitions = zip(*places, strict=True)
            self._queues.load(places, await db.fetch(LOWEST, topics, partitions))
        if sends := self._start():
            await asyncio.wait(sends, timeout=self._together_seconds)
        self._producers.check_opened()
        self._acknowledged = self._take()
        self._gauge()
        return len(numbered) == NUMBERED_MAX or self._queues.can_send(self._clock())

    async def idle(self, wake: asyncio.Event, seconds: float) -> None:
        """Wait until woken, until a batch in flight has ended, until a failed partition or a deletion is due, or for
        `seconds`."""
        if self._acknowledged:
            seconds = min(seconds, DELETE_SECONDS)
        retry_at = self._queues.next_retry_at()
        timeout = seconds if retry_at is None else max(0.0, min(seconds, retry_at - self._clock()))
        waking = asyncio.create_task(wake.wait())
        try:
            await asyncio.wait({waking, *self._places}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()

    async def close(self) -> None:
        """Stop sending; rows in flight may be sent again by the next leader."""
        await self._producers.close()
        self._places.clear()
        self._gauge()

    async def _number(self, db: Connection) -> Rows:
        """Delete acknowledged rows and assign sequence numbers to new ones; returns these in the order of LOWEST."""
        unnumbered = await db.fetch(UNNUMBERED)
        if not unnumbered:
            if self._acknowledged:
                await db.execute(DELETE, self._acknowledged)
            return []
        ids, topics, keys = zip(*unnumbered, strict=True)
        partitions = [self._relay.place_of(topic, key)[1] for topic, key in zip(topics, keys, strict=True)]
        rows = await db.fetch(NUMBER, self._acknowledged, list(ids), list(topics), partitions)
        return sorted(rows, key=itemgetter("topic", "partition", "sequence_number"))

    def _start(self) -> list[asyncio.Task[int]]:
        """Begin to send the next batch of each partition that is free."""
        now = self._clock()
        started = []
        for place, rows in self._queues.start(now):
            channel = self._producers.channel(now, retry=self._queues.failures(place) > 0)
            task = channel.send(self._sending(rows), now)
            self._places[task] = place
            started.append(task)
        return started

    def _sending(self, rows: Rows) -> Callable[[Any], Awaitable[int]]:
        async def send(producer: Any) -> int:
            await self._relay.check_partitions(producer, rows[0]["topic"])
            return await send_batch(producer, self._relay.topic_prefix, self._source, rows)

        return send

    def _take(self) -> list[int]:
        """Record the results of batches that have ended; returns the ids of acknowledged rows."""
        now = self._clock()
        acknowledged: list[int] = []
        for task in self._producers.take(now):
            place = self._places.pop(task)
            if not task.done() or task.cancelled():
                self._fail(place, now, "not answered")
            elif (error := task.exception()) is not None:
                self._fail(place, now, repr(error))
                if isinstance(error, DENIED):
                    self._denied.add(place)
            else:
                self._denied.discard(place)
                acknowledged += [row["id"] for row in self._queues.acknowledge(place, task.result())]
        return acknowledged

    def _fail(self, place: Place, now: float, error: str) -> None:
        self._queues.fail(place, now)
        if self._queues.failures(place) % LOG_EVERY == 1:
            LOG.warning("partition cannot be sent to, retrying", topic=place[0], partition=place[1], error=error)

    def unsendable(self, seconds: float = OVERDUE_SECONDS) -> list[Place]:
        """Partitions whose batches have failed or not been answered for `seconds`."""
        since = self._clock() - seconds
        unanswered = [self._places[task] for task in self._producers.unanswered(since)]
        return sorted({*self._queues.failing(since), *unanswered})

    def denied(self, seconds: float) -> list[str]:
        """Topics of partitions that cannot be sent to for `seconds`, since the broker does not allow it."""
        return sorted({topic for topic, _ in self._denied & {*self.unsendable(seconds)}})

    def _gauge(self) -> None:
        counts = Counter(topic for topic, _ in self.unsendable())
        for topic in {*self._unsendable, *counts}:
            UNSENDABLE.labels(topic).set(counts[topic])
        self._unsendable = counts


async def send_batch(producer: Any, prefix: str, source: str, rows: Rows) -> int:
    """Send the first rows of a partition as a single batch, and return their number after its acknowledgement. Separate
    sends could lose rows to a zombie producer."""
    batch = producer.create_batch()
    fitting = 0
    for row in rows:
        appended = batch.append(
            key=None if row["key"] is None else row["key"].encode(),
            value=row["value"],
            timestamp=int(row["at"].timestamp() * 1000),
            headers=_headers(row, source),
        )
        if appended is None:
            break
        fitting += 1
    topic = rows[0]["topic"]
    await (await producer.send_batch(batch, prefix + topic, partition=rows[0]["partition"]))
    PUBLISHED.labels(topic).inc(fitting)
    return fitting


def _headers(row: Any, source: str) -> list[tuple[str, bytes]]:
    if row["headers"] is not None:  # a dead letter keeps its original headers
        return [(name, bytes.fromhex(value)) for name, value in row["headers"]]
    return encode(
        Envelope(
            id=row["event_id"],
            type=row["type"],
            source=source.rsplit("/", 1)[0],
            subject=row["subject"],
            time=row["at"],
            sequence_number=row["sequence_number"],
            previous=row["previous_sequence_number"],
            sequence_source=source,
            revision=row["revision"],
            traceparent=row["traceparent"],
        )
    )


async def _close(db: Connection) -> None:
    with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        await db.close(timeout=2)
