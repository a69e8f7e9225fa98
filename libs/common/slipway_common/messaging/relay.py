"""Relay from the outbox to Kafka; the only producer of a service. Assigns sequence numbers per target partition, so
that consumers detect duplicates and gaps.

One relay per service is active at a time: it holds an advisory lock on a dedicated session, assigns numbers in
transactions *on that session*, and sends the lowest unacknowledged rows of each partition as one idempotent batch. The
server ends the session of a stopped relay, so it can assign no more numbers; records that it had in flight repeat
numbers already assigned, and consumers drop them.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import asyncpg
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2

from slipway_common.database.postgres import Connection, Database, is_infrastructure, schema_of, session
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.observability.telemetry import PUBLISHED, logger

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
UNNUMBERED: Final = "SELECT id, topic, key FROM outbox WHERE sequence_number IS NULL ORDER BY id LIMIT 2000"
# The position is updated with the numbers and outlives the rows, so no number is assigned twice.
NUMBER: Final = f"""
WITH given AS (
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::integer[]) AS g (id, topic, partition)
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
# Rows of every partition, so that one that cannot be sent to does not block the others.
LOWEST: Final = f"""
SELECT o.* FROM relay_position p CROSS JOIN LATERAL (
    SELECT {", ".join(RECORD)} FROM outbox
    WHERE sequence_number IS NOT NULL AND topic = p.topic AND partition = p.partition
    ORDER BY sequence_number LIMIT 500) o
ORDER BY o.topic, o.partition, o.sequence_number"""
ACKNOWLEDGED: Final = "DELETE FROM outbox WHERE id = ANY($1::bigint[])"
PING: Final = "SELECT 1"

# The server ends the lock session of a relay that stalls for longer. The relay queries it every second.
STALLED_SECONDS: Final = 10.0
PING_SECONDS_MAX: Final = 1.0
BATCH_BYTES: Final = 900_000  # below the broker's default limit of 1 MiB a batch


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
        kafka: str,
        topic_prefix: str,
        partitions: dict[str, int],
        stalled_seconds: float = STALLED_SECONDS,
    ) -> None:
        self.service = service
        self.database_url = database_url
        self.kafka = kafka
        self.topic_prefix = topic_prefix
        self.partitions = partitions
        self.stalled_seconds = stalled_seconds
        self.ping_seconds = min(PING_SECONDS_MAX, stalled_seconds / 4)
        self.leading = False
        self._behind = True  # numbered rows may be unacknowledged, of a predecessor or an earlier round
        self._wake = asyncio.Event()
        self._notify: asyncio.Task[None] | None = None
        self._channel = f"slipway_relay_{schema_of(service)}"

    def wake(self, database: Database) -> None:
        """Publish now, in this process or in the one that leads; call after a commit."""
        self._wake.set()
        if not self.leading and (self._notify is None or self._notify.done()):
            self._notify = asyncio.create_task(self._notify_leader(database))

    async def _notify_leader(self, database: Database) -> None:
        # One NOTIFY per 20 ms, and outside business transactions: inside them it halves commits.
        await asyncio.sleep(0.02)
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
            except Exception as error:
                if is_infrastructure(error) or isinstance(error, KafkaError):
                    LOG.warning("relay restarting after an error", error=repr(error))
                else:
                    LOG.exception("relay failed")
            await asyncio.sleep(pause_seconds)

    async def _lead(self) -> None:
        stalled_ms = int(self.stalled_seconds * 1000)
        db = await session(self.database_url, self.service, idle_session_timeout=f"{stalled_ms}ms")
        try:
            while not await db.fetchval(LOCK):  # noqa: ASYNC110 - polling keeps the session from being idle
                await asyncio.sleep(self.ping_seconds / 2)
            await db.add_listener(self._channel, lambda *_: self._wake.set())
            source = f"/slipway/{self.service}/{await db.fetchval('SELECT id FROM incarnation')}"
            producer = AIOKafkaProducer(
                bootstrap_servers=self.kafka,
                enable_idempotence=True,
                acks="all",
                max_batch_size=BATCH_BYTES,
                request_timeout_ms=10_000,
            )
            await db.execute(PING)
            await producer.start()
            try:
                await self._check_partitions(producer)
                self.leading = self._behind = True
                while True:
                    self._wake.clear()
                    if not await self.publish(db, producer, source):  # also keeps the session from being idle
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._wake.wait(), self.ping_seconds)
            finally:
                self.leading = False
                with contextlib.suppress(TimeoutError):  # it waits for a broker that may be unavailable
                    await asyncio.wait_for(producer.stop(), 2)
        finally:
            await _close(db)

    async def _check_partitions(self, producer: AIOKafkaProducer) -> None:
        for topic, expected in self.partitions.items():
            actual = await producer.partitions_for(self.topic_prefix + topic)
            if len(actual) != expected:
                raise WrongPartitions(
                    f"{self.topic_prefix}{topic} has {len(actual)} partitions, but the registry has {expected}; "
                    "set SLIPWAY_PARTITIONS to match, or recreate the topic"
                )

    async def publish(self, db: Connection, producer: Any, source: str) -> int:
        """Number, send and delete one round of rows; returns the number of rows acknowledged."""
        behind, self._behind = self._behind, True
        rows = await self._number(db)
        if behind:
            rows = await db.fetch(LOWEST)
        if not rows:
            self._behind = False
            return 0
        sends = [
            asyncio.create_task(self._send(producer, source, list(group)))
            for _, group in groupby(rows, key=lambda row: (row["topic"], row["partition"]))
        ]
        try:
            while (await asyncio.wait(sends, timeout=self.ping_seconds))[1]:
                await db.execute(PING)  # the broker is slow; keep the lock meanwhile
        finally:
            for send in sends:
                send.cancel()
        acknowledged = [row["id"] for send in sends if send.exception() is None for row in send.result()]
        await db.execute(ACKNOWLEDGED, acknowledged)
        for send in sends:
            send.result()  # raises the error of a partition after the other rows are deleted
        self._behind = behind or len(acknowledged) < len(rows)
        return len(acknowledged)

    async def _number(self, db: Connection) -> Sequence[Any]:
        """Assign sequence numbers to new rows; returns them in the order of LOWEST."""
        unnumbered = await db.fetch(UNNUMBERED)
        if not unnumbered:
            return []
        ids, topics, keys = zip(*unnumbered, strict=True)
        partitions = [partition_for(k, self._count(t)) for t, k in zip(topics, keys, strict=True)]
        rows = await db.fetch(NUMBER, list(ids), list(topics), partitions)
        return sorted(rows, key=itemgetter("topic", "partition", "sequence_number"))

    def _count(self, topic: str) -> int:
        return self.partitions.get(topic, 1)  # dead-letter topics have one partition

    async def _send(self, producer: Any, source: str, rows: Sequence[Any]) -> Sequence[Any]:
        """Send the first rows of a partition as a single batch; separate sends could lose rows to a zombie producer."""
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
        topic = row["topic"]
        future = await producer.send_batch(batch, self.topic_prefix + topic, partition=rows[0]["partition"])
        await future
        PUBLISHED.labels(topic).inc(fitting)
        return rows[:fitting]


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
