"""Records → effects, exactly once: state, outbox rows and the next offset commit together. Knows no Kafka client.

Claiming a partition raises its epoch, so a stalled former owner updates zero rows and all its work is undone. What
can never be applied becomes a dead row in the same transaction as the offset; on subject-ordered topics later events
of its subject are parked behind it.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from slipway_common import outbox
from slipway_common.envelope import Envelope, UnknownType, decode, decode_data
from slipway_common.errors import BadEvent
from slipway_common.events.alert import AlertRaised
from slipway_common.ids import new_id
from slipway_common.postgres import Connection, is_infrastructure
from slipway_common.telemetry import CONSUMED, current_trace, logger
from slipway_common.topics import Topic, dead_letter_topic

LOG = logger(__name__)

CLAIM: Final = """
INSERT INTO consumed AS c (topic, partition, epoch, next_offset, cluster_id) VALUES ($1, $2, 1, 0, $3)
ON CONFLICT (topic, partition) DO UPDATE SET epoch = c.epoch + 1
RETURNING epoch, next_offset, cluster_id"""
ADOPT: Final = "UPDATE consumed SET cluster_id = $3, next_offset = $4 WHERE topic = $1 AND partition = $2"
REREAD: Final = "SELECT epoch, next_offset FROM consumed WHERE topic = $1 AND partition = $2 AND epoch = $3"
ADVANCE: Final = """
UPDATE consumed SET next_offset = $4 WHERE topic = $1 AND partition = $2 AND epoch = $3 AND next_offset = $5"""
SEEN: Final = "SELECT source, number FROM seen_number WHERE topic = $1 AND partition = $2"
REMEMBER: Final = """
INSERT INTO seen_number SELECT $1, $2, * FROM unnest($3::text[], $4::bigint[])
ON CONFLICT (topic, partition, source) DO UPDATE SET number = excluded.number"""
REMEMBER_OUTSIDERS: Final = """
INSERT INTO seen_event (topic, source, event_id)
SELECT DISTINCT $1, source, id FROM unnest($2::text[], $3::text[]) AS given (source, id) ORDER BY source, id
ON CONFLICT DO NOTHING RETURNING source, event_id"""
PARKING: Final = "SELECT DISTINCT subject FROM dead_letter WHERE topic = $1 AND subject = ANY($2::text[])"
BURY: Final = """
INSERT INTO dead_letter (topic, partition, "offset", subject, state, reason, key, value, headers, record_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING"""
GAP: Final = "INSERT INTO gap (topic, partition, kind, detail) VALUES ($1, $2, $3, $4)"

SUBJECT_BYTES_MAX: Final = 1000  # two of them fit into one index row of PostgreSQL (2,704 bytes)
REASON_CHARACTERS_MAX: Final = 1000
BIGINT_MAX: Final = 2**63 - 1


class Record(msgspec.Struct, frozen=True):
    """One record as any client read it. `topic` is the registry's name, without a prefix."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One event for a handler. `event` is None for a tombstone: then `subject` says what was deleted."""

    event: Any
    type: str
    id: str
    source: str
    subject: str
    time: datetime
    number: int | None
    revision: int | None
    topic: str
    partition: int
    offset: int
    traceparent: str = ""


class Owned(msgspec.Struct, frozen=True):
    """What this process knows of a partition it may write for."""

    epoch: int
    next_offset: int


class Fenced(Exception):
    """The partition moved on without us; nothing was changed."""


Handler = Callable[[Connection, Sequence[Received]], Awaitable[None]]


class Consumer(msgspec.Struct, frozen=True):
    """Who consumes what, and how its records become effects."""

    service: str
    topic: Topic
    handle: Handler


async def claim(db: Connection, topic: str, partition: int, cluster_id: str) -> tuple[Owned, str]:
    """Become the only writer for a partition; returns what is owned and the cluster it was consumed from."""
    row = await db.fetchrow(CLAIM, topic, partition, cluster_id)
    return Owned(row["epoch"], row["next_offset"]), row["cluster_id"]


async def adopt(db: Connection, topic: str, partition: int, cluster_id: str, next_offset: int) -> None:
    """Rebase a stopped partition by an operator's word: its stored position was of another log."""
    await db.execute(ADOPT, topic, partition, cluster_id, next_offset)


async def reread(db: Connection, topic: str, partition: int, epoch: int) -> Owned | None:
    """The committed position under a captured epoch; None when somebody else has claimed the partition.

    Only an assignment claims: a retry that claimed would rob the successor and stall the partition for good.
    """
    row = await db.fetchrow(REREAD, topic, partition, epoch)
    return None if row is None else Owned(row["epoch"], row["next_offset"])


async def skip(db: Connection, consumer: Consumer, partition: int, owned: Owned, to: int, *, loss: bool) -> Owned:
    """Go on at `to`, behind offsets that the log no longer has; a `loss` is recorded with the new position."""
    async with db.transaction():
        await _advance(db, consumer, partition, owned, to)
        if loss:
            detail = f"offsets {owned.next_offset}…{to - 1} were deleted before they were read"
            await record_gap(db, consumer, partition, "retention", detail)
    return Owned(owned.epoch, to)


async def _advance(db: Connection, consumer: Consumer, partition: int, owned: Owned, to: int) -> None:
    """First statement of whatever moves a position: an owner that was replaced finds no row, and is undone."""
    done = await db.execute(ADVANCE, consumer.topic.name, partition, owned.epoch, to, owned.next_offset)
    if done != "UPDATE 1":
        raise Fenced(f"{consumer.topic.name}/{partition} at epoch {owned.epoch}, offset {owned.next_offset}")


async def record_gap(db: Connection, consumer: Consumer, partition: int, kind: str, detail: str) -> None:
    """Keep a loss for good, and tell a person. Call in a transaction."""
    topic = consumer.topic.name
    await db.execute(GAP, topic, partition, kind, detail)
    LOG.error("records missing", topic=topic, partition=partition, kind=kind, detail=detail)
    await outbox.enqueue(
        db,
        [
            AlertRaised(
                dedup_key=f"{consumer.service}/{kind}/{topic}/{partition}",
                subject_id=f"{topic}/{partition}",
                kind=kind,
                summary=f"{consumer.service} misses records of {topic}/{partition}: {detail}",
                effect="events may have been lost; state is repaired by the next sweep where it can be",
                doing="went on behind the gap and recorded it",
                command=f"SELECT * FROM gap WHERE topic = '{topic}'",
            )
        ],
    )


async def apply(db: Connection, consumer: Consumer, owned: Owned, records: Sequence[Record]) -> Owned:
    """Apply one partition's batch in one transaction; returns what is owned afterwards.

    `records` are in offset order and of one partition. Raises Fenced when another owner wrote, and whatever the
    infrastructure raised; in both cases nothing was changed.
    """
    topic, partition, end = consumer.topic, records[0].partition, records[-1].offset + 1
    async with db.transaction():
        await _advance(db, consumer, partition, owned, end)
        batch = _Batch(consumer, partition)
        for record in records:
            if record.offset >= owned.next_offset:
                batch.read(record)
        await batch.drop_duplicates(db)
        await batch.park(db)
        await _handle(db, consumer, batch)
        await batch.bury(db)
        if batch.numbers:
            await db.execute(REMEMBER, topic.name, partition, list(batch.numbers), list(batch.numbers.values()))
    for result, count in batch.counts.items():
        CONSUMED.labels(topic.name, result).inc(count)
    return Owned(owned.epoch, end)


async def _handle(db: Connection, consumer: Consumer, batch: "_Batch") -> None:
    """All at once; if the data is at fault, one by one: what fails alone is a dead letter."""
    if not batch.fresh:
        return
    try:
        async with db.transaction():
            await consumer.handle(db, [event for _, event in batch.fresh])
    except Exception as error:
        if is_infrastructure(error):
            raise
        LOG.warning("batch is redone one by one", topic=consumer.topic.name, error=repr(error))
    else:
        batch.count("applied", len(batch.fresh))
        return
    for record, event in batch.fresh:
        if consumer.topic.parks and event.subject in batch.blocked:
            batch.dead(record, event.subject, "parked", "behind a dead event of its subject")
            continue
        try:
            async with db.transaction():
                await consumer.handle(db, [event])
        except Exception as error:
            if is_infrastructure(error):
                raise
            batch.dead(record, event.subject, "dead", f"{type(error).__name__}: {error}")
        else:
            batch.count("applied")


class _Batch:
    """One partition's records on their way: read, without duplicates, dead ones apart."""

    def __init__(self, consumer: Consumer, partition: int) -> None:
        self.consumer = consumer
        self.partition = partition
        self.envelopes: list[tuple[Record, Envelope]] = []
        self.fresh: list[tuple[Record, Received]] = []
        self.buried: list[tuple[Record, str, str, str]] = []
        self.blocked: set[str] = set()
        self.numbers: dict[str, int] = {}
        self.counts: dict[str, int] = {}

    def count(self, result: str, by: int = 1) -> None:
        self.counts[result] = self.counts.get(result, 0) + by

    def dead(self, record: Record, subject: str, state: str, reason: str) -> None:
        self.buried.append((record, subject, state, reason))
        self.blocked.add(subject)
        self.count(state)

    def read(self, record: Record) -> None:
        try:
            envelope = opened(record)
        except BadEvent as error:
            # A bare null without CloudEvents headers is how plain tools write a tombstone.
            if record.value is None and not any(name.startswith("ce_") for name, _ in record.headers):
                self.count("tombstone")
            else:
                self.dead(record, _text(record.key), "dead", str(error))
        else:
            self.envelopes.append((record, envelope))

    async def drop_duplicates(self, db: Connection) -> None:
        """Numbers prove duplicates and show holes; outsiders have none, so their (source, id) is remembered."""
        topic = self.consumer.topic
        seen: dict[str, int] = {}
        if any(envelope.number is not None for _, envelope in self.envelopes):
            seen = dict(await db.fetch(SEEN, topic.name, self.partition))
        outsiders = [(e.source, e.id) for _, e in self.envelopes if e.number is None]
        new: set[tuple[str, str]] = set()
        if outsiders:
            sources, ids = zip(*outsiders, strict=True)
            rows = await db.fetch(REMEMBER_OUTSIDERS, topic.name, list(sources), list(ids))
            new = {(row["source"], row["event_id"]) for row in rows}
        kept = []
        for record, envelope in self.envelopes:
            if envelope.number is None:
                if (envelope.source, envelope.id) not in new:
                    self.count("duplicate")
                    continue
                new.discard((envelope.source, envelope.id))
            else:
                source = envelope.number_source or envelope.source
                last = seen.get(source)
                if last is not None and envelope.number <= last:
                    self.count("duplicate")
                    continue
                # Compaction makes holes by design.
                if last is not None and (envelope.previous or 0) > last and not topic.compacted:
                    self.count("hole")
                    detail = f"{source}: after number {last} came {envelope.number}, which follows {envelope.previous}"
                    await record_gap(db, self.consumer, self.partition, "hole", detail)
                seen[source] = self.numbers[source] = envelope.number
            kept.append((record, envelope))
        for record, envelope in kept:
            try:
                self.fresh.append((record, received(record, envelope)))
            except UnknownType:
                self.count("unknown_type")
            except Exception as error:  # it touches nothing but the record: whatever it raises is the record's fault
                subject = envelope.subject or _text(record.key)
                self.dead(record, subject, "dead", f"{type(error).__name__}: {error}")

    async def park(self, db: Connection) -> None:
        """Keep the order of a subject: what follows a dead event waits behind it."""
        if not (self.consumer.topic.parks and self.fresh):
            return
        subjects = sorted({event.subject for _, event in self.fresh})
        blocked = {row["subject"] for row in await db.fetch(PARKING, self.consumer.topic.name, subjects)}
        first_dead: dict[str, int] = {}
        for record, subject, _, _ in self.buried:
            first_dead.setdefault(subject, record.offset)
        kept = []
        for record, event in self.fresh:
            behind = first_dead.get(event.subject)
            if event.subject in blocked or (behind is not None and record.offset > behind):
                self.dead(record, event.subject, "parked", "behind a dead event of its subject")
            else:
                kept.append((record, event))
        self.fresh = kept
        self.blocked = set()

    async def bury(self, db: Connection) -> None:
        """Dead rows, in the transaction of the offset; the dead-letter topic is fed through the outbox."""
        for record, subject, state, reason in self.buried:
            reason = _text(reason.encode(errors="replace"), REASON_CHARACTERS_MAX)
            headers = [[_text(name.encode(errors="replace")), (value or b"").hex()] for name, value in record.headers]
            await db.execute(
                BURY, record.topic, record.partition, record.offset, subject, state, reason,
                record.key, record.value, headers, _at(record),
            )  # fmt: skip
            if state == "dead":
                LOG.error(
                    "dead letter", topic=record.topic, partition=record.partition, offset=record.offset, reason=reason
                )
                await self._publish(db, record, subject, headers, reason)

    async def _publish(
        self, db: Connection, record: Record, subject: str, headers: list[list[str]], reason: str
    ) -> None:
        told = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "message": reason}
        value = record.value
        size = len(value or b"") + len(record.key or b"") + sum(len(name) + len(text) for name, text in headers)
        if size > outbox.VALUE_BYTES_MAX:
            # It would fit into no batch of the relay; the row in `dead_letter` has all of it.
            value, headers, told["omitted_bytes"] = None, [], size
        headers = headers + [[f"__dlq.errors.{name}", str(text).encode().hex()] for name, text in told.items()]
        key = None if record.key is None else _text(record.key)
        target = dead_letter_topic(self.consumer.topic, self.consumer.service)
        await db.execute(outbox.DEAD, new_id(), target, "dead", subject, key, value, current_trace(), headers)


def opened(record: Record) -> Envelope:
    """The envelope of a record. Raises BadEvent, also for what no column or index takes."""
    envelope = decode(record.headers, received_at=_at(record))
    # It would fail the transaction again and again, so it has to be dead beforehand.
    for name in ("id", "source", "subject", "number_source"):
        text: str = getattr(envelope, name)
        if "\0" in text or len(text.encode()) > SUBJECT_BYTES_MAX:
            raise BadEvent(f"ce_{name} has a NUL character or more than {SUBJECT_BYTES_MAX} bytes")
    for name in ("number", "previous", "revision"):
        number: int | None = getattr(envelope, name)
        if number is not None and not 0 <= number <= BIGINT_MAX:
            raise BadEvent(f"ce_slipway{name} {number} is out of range")
    return envelope


def received(record: Record, envelope: Envelope) -> Received:
    """What a handler gets of a record. Raises UnknownType, BadEvent, and what a decoder raises on hostile bytes."""
    return Received(
        event=decode_data(envelope.type, record.value),
        type=envelope.type,
        id=envelope.id,
        source=envelope.source,
        subject=envelope.subject or _text(record.key),
        time=envelope.time,
        number=envelope.number,
        revision=envelope.revision,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        traceparent=envelope.traceparent,
    )


def _text(raw: bytes | None, characters_max: int = SUBJECT_BYTES_MAX // 4) -> str:
    """Foreign bytes as text that every column and index takes."""
    return (raw or b"").decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")[:characters_max]


def _at(record: Record) -> datetime:
    """When the record was written; the epoch for a time that no calendar has."""
    try:
        return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
