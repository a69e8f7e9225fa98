"""Outbox → Kafka. Only this publishes. Numbers records per target partition, so that a consumer can prove a
duplicate and see a hole.

One relay per service works at a time: it holds an advisory lock on a session of its own, numbers rows in committed
transactions *on that session*, and sends per partition the lowest unacknowledged rows as one idempotent batch. A
stopped owner's session is ended by the server, so it can number nothing later; what it had in flight is a repeat of
numbers already given, which consumers drop.
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

from slipway_common.envelope import Envelope, encode
from slipway_common.postgres import Connection, Pool, is_infrastructure, schema_of, session
from slipway_common.telemetry import PUBLISHED, logger

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
    "number",
    "previous",
)
UNNUMBERED: Final = "SELECT id, topic, key FROM outbox WHERE number IS NULL ORDER BY id LIMIT 2000"
# The position moves with the numbers and outlives the rows: a number is never given twice.
NUMBER: Final = f"""
WITH given AS (
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::integer[]) AS g (id, topic, partition)
), placed AS (
    SELECT id, topic, partition, row_number() OVER (PARTITION BY topic, partition ORDER BY id) AS place FROM given
), moved AS (
    INSERT INTO relay_position AS p (topic, partition, number)
    SELECT topic, partition, count(*) FROM placed GROUP BY topic, partition
    ON CONFLICT (topic, partition) DO UPDATE SET number = p.number + excluded.number
    RETURNING topic, partition, number
), sizes AS (SELECT topic, partition, count(*) AS size FROM placed GROUP BY topic, partition)
UPDATE outbox o SET partition = placed.partition, number = m.number - s.size + placed.place,
    previous = m.number - s.size + placed.place - 1
FROM placed JOIN moved m USING (topic, partition) JOIN sizes s USING (topic, partition) WHERE o.id = placed.id
RETURNING {", ".join(f"o.{column}" for column in RECORD)}"""
# Some of every partition: one whose rows cannot be sent holds up no other.
LOWEST: Final = f"""
SELECT o.* FROM relay_position p CROSS JOIN LATERAL (
    SELECT {", ".join(RECORD)} FROM outbox WHERE number IS NOT NULL AND topic = p.topic AND partition = p.partition
    ORDER BY number LIMIT 500) o
ORDER BY o.topic, o.partition, o.number"""
ACKNOWLEDGED: Final = "DELETE FROM outbox WHERE id = ANY($1::bigint[])"
PING: Final = "SELECT 1"

# The server ends the lock session of an owner that stalls longer than this. The relay asks it something each second.
STALLED_SECONDS: Final = 10.0
PING_SECONDS_MAX: Final = 1.0
BATCH_BYTES: Final = 900_000  # below the broker's default limit of 1 MiB a batch


def partition_for(key: str | None, partitions: int) -> int:
    """The partition of a key as the Java client computes it; keyless records go to 0."""
    return 0 if key is None else (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


class WrongPartitions(Exception):
    """The broker's topic has another number of partitions than the registry: keys would move."""


class Relay:
    """Publishes the outbox of one service until cancelled; takes over when the owner dies or stalls."""

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
        self._behind = True  # rows may be numbered that were not acknowledged: by whoever led before, or by a round
        self._wake = asyncio.Event()
        self._notify: asyncio.Task[None] | None = None
        self._channel = f"slipway_relay_{schema_of(service)}"

    def ring(self, pool: Pool) -> None:
        """Something was committed: publish now, here or in the process that leads."""
        self._wake.set()
        if not self.leading and (self._notify is None or self._notify.done()):
            self._notify = asyncio.create_task(self._tell(pool))

    async def _tell(self, pool: Pool) -> None:
        # One NOTIFY per 20 ms, and outside business transactions: inside them it halves commits.
        await asyncio.sleep(0.02)
        with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await pool.execute("SELECT pg_notify($1, '')", self._channel)

    async def run(self) -> None:
        """Lead whenever the lock is free; on any infrastructure error start anew with a fresh session and producer."""
        while True:
            pause_seconds = 0.5
            try:
                await self._lead()
            except WrongPartitions as error:
                LOG.error("relay stands still", error=str(error))
                pause_seconds = 5.0
            except Exception as error:
                if is_infrastructure(error) or isinstance(error, KafkaError):
                    LOG.warning("relay starts anew", error=repr(error))
                else:
                    LOG.exception("relay failed")
            await asyncio.sleep(pause_seconds)

    async def _lead(self) -> None:
        stalled_ms = int(self.stalled_seconds * 1000)
        db = await session(self.database_url, self.service, idle_session_timeout=f"{stalled_ms}ms")
        try:
            while not await db.fetchval(LOCK):  # noqa: ASYNC110 - asking keeps the session from looking idle
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
                    if not await self.publish(db, producer, source):  # which asks, so that the session is not idle
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._wake.wait(), self.ping_seconds)
            finally:
                self.leading = False
                with contextlib.suppress(TimeoutError):  # it would wait for a broker that is gone
                    await asyncio.wait_for(producer.stop(), 2)
        finally:
            await _close(db)

    async def _check_partitions(self, producer: AIOKafkaProducer) -> None:
        for topic, expected in self.partitions.items():
            actual = await producer.partitions_for(self.topic_prefix + topic)
            if len(actual) != expected:
                raise WrongPartitions(
                    f"{self.topic_prefix}{topic} has {len(actual)} partitions, the registry says {expected}; "
                    "set SLIPWAY_PARTITIONS to match, or recreate the topic"
                )

    async def publish(self, db: Connection, producer: Any, source: str) -> int:
        """Number, send and delete one round of rows; returns how many were acknowledged."""
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
                await db.execute(PING)  # the broker is slow, but we have not stalled: keep the lock
        finally:
            for send in sends:
                send.cancel()
        acknowledged = [row["id"] for send in sends if send.exception() is None for row in send.result()]
        await db.execute(ACKNOWLEDGED, acknowledged)
        for send in sends:
            send.result()  # raises what one partition met, after the others' rows are done with
        self._behind = behind or len(acknowledged) < len(rows)
        return len(acknowledged)

    async def _number(self, db: Connection) -> Sequence[Any]:
        """Give numbers to rows that have none; returns these rows as LOWEST would, if none are older."""
        unnumbered = await db.fetch(UNNUMBERED)
        if not unnumbered:
            return []
        ids, topics, keys = zip(*unnumbered, strict=True)
        partitions = [partition_for(k, self._count(t)) for t, k in zip(topics, keys, strict=True)]
        rows = await db.fetch(NUMBER, list(ids), list(topics), partitions)
        return sorted(rows, key=itemgetter("topic", "partition", "number"))

    def _count(self, topic: str) -> int:
        return self.partitions.get(topic, 1)  # dead-letter topics have one partition

    async def _send(self, producer: Any, source: str, rows: Sequence[Any]) -> Sequence[Any]:
        """Send the head of one partition's rows as ONE batch: rows sent singly can be lost through a zombie."""
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
    if row["headers"] is not None:  # a dead letter keeps the headers it came with
        return [(name, bytes.fromhex(value)) for name, value in row["headers"]]
    return encode(
        Envelope(
            id=row["event_id"],
            type=row["type"],
            source=source.rsplit("/", 1)[0],
            subject=row["subject"],
            time=row["at"],
            number=row["number"],
            previous=row["previous"],
            number_source=source,
            revision=row["revision"],
            traceparent=row["traceparent"],
        )
    )


async def _close(db: Connection) -> None:
    with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        await db.close(timeout=2)
