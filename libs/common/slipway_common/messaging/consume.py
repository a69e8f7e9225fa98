"""Exactly-once consumption: state, outbox rows and the next offsets commit together. Knows no Kafka client.

Claiming a partition raises its epoch, so a stalled former owner updates zero rows and its transaction rolls back. A
record that cannot be applied becomes a dead letter in the same transaction as the offset; on subject-ordered topics,
later events of its subject are parked behind it. One transaction applies a batch of one partition (a group member) or
of all partitions of several topics (the leader).
"""

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_api.events.alert import AlertRaised, alert_key
from slipway_api.events.topics import Topic
from slipway_api.percent import encoded
from slipway_common.database.postgres import Connection, is_infrastructure
from slipway_common.messaging import dead_records, outbox
from slipway_common.messaging.dead_records import DeadRecord, reason_of
from slipway_common.messaging.envelope import UnknownType
from slipway_common.messaging.records import BIGINT_MAX, Item, Received, Record, is_bare_null, read, text_of
from slipway_common.observability.telemetry import CONSUMED, logger

LOG = logger(__name__)

CLAIM: Final = """
INSERT INTO consumed AS c (topic, partition, epoch, next_offset, cluster_id)
SELECT topic, partition, 1, 0, $3 FROM unnest($1::text[], $2::integer[]) AS g (topic, partition) ORDER BY 1, 2
ON CONFLICT (topic, partition) DO UPDATE SET epoch = c.epoch + 1
RETURNING topic, partition, epoch, next_offset, cluster_id"""
ADOPT: Final = "UPDATE consumed SET cluster_id = $3, next_offset = $4 WHERE topic = $1 AND partition = $2"
REREAD: Final = """
SELECT c.topic, c.partition, c.epoch, c.next_offset, c.cluster_id
FROM consumed c JOIN unnest($1::text[], $2::integer[], $3::bigint[]) AS g (topic, partition, epoch)
    USING (topic, partition, epoch)"""
POSITIONS: Final = "SELECT partition, next_offset FROM consumed WHERE topic = $1"
ADVANCE: Final = """
SELECT * FROM advance($1::text[], $2::integer[], $3::bigint[], $4::bigint[], $5::bigint[],
    $6::text[], $7::integer[], $8::text[], $9::bigint[], $10)"""
RECORD_EVENT_IDS: Final = """
INSERT INTO seen_event (topic, source, event_id)
SELECT DISTINCT $1, source, id FROM unnest($2::text[], $3::text[]) AS given (source, id) ORDER BY source, id
ON CONFLICT DO NOTHING RETURNING source, event_id"""
BLOCKED_SUBJECTS: Final = "SELECT DISTINCT subject FROM dead_letter WHERE topic = $1 AND subject = ANY($2::text[])"
FOREIGN_POSITION: Final = "foreign-position"
"""Kind of the gap at which reading stops, until a person sets a new position."""
GAP: Final = "INSERT INTO gap (topic, partition, kind, detail) VALUES ($1, $2, $3, $4)"

LAST: Final = (BIGINT_MAX, BIGINT_MAX)  # greater than any partition and offset


class Owned(msgspec.Struct, frozen=True):
    """Epoch and position of a partition that this process has claimed."""

    epoch: int
    next_offset: int


class Portion(msgspec.Struct, frozen=True):
    """Records of one partition in offset order, with its epoch and position. Never empty."""

    topic: Topic
    partition: int
    owned: Owned
    records: Sequence[Record]

    @property
    def end(self) -> int:
        return self.records[-1].offset + 1

    def unread(self) -> Iterator[Record]:
        return (record for record in self.records if record.offset >= self.owned.next_offset)


class Fenced(Exception):
    """Another process has claimed or advanced the partition; nothing was changed."""


Handler = Callable[[Connection, Sequence[Received]], Awaitable[Callable[[], None] | None]]
"""Applies events in a transaction. May return a callback to run after the commit, for example to count."""
Place = tuple[str, int]
"""Topic and partition."""
Move = tuple[str, int, int, int, int]
"""Topic, partition, epoch, the new position and the expected one."""
Sequenced = tuple[str, int, str]
"""Topic, partition and source of sequence numbers."""


class Consumer(msgspec.Struct, frozen=True):
    """A service, a topic it consumes, and the handler of its events."""

    service: str
    topic: Topic
    handle: Handler


async def claim(db: Connection, topic: str, partition: int, cluster_id: str) -> tuple[Owned, str]:
    """Claim a partition; returns its position and the cluster that the position belongs to."""
    return (await claim_all(db, [(topic, partition)], cluster_id))[topic, partition]


async def claim_all(db: Connection, places: Sequence[Place], cluster_id: str) -> dict[Place, tuple[Owned, str]]:
    """Claim several partitions at once."""
    topics, partitions = zip(*places, strict=True)
    return _owned(await db.fetch(CLAIM, topics, partitions, cluster_id))


async def adopt(db: Connection, topic: str, partition: int, cluster_id: str, next_offset: int) -> None:
    """Set the position of a stopped partition, as requested by an operator: the stored one was of another log."""
    await db.execute(ADOPT, topic, partition, cluster_id, next_offset)


async def reread(db: Connection, topic: str, partition: int, epoch: int) -> Owned | None:
    """Read the committed position under a known epoch; None if another process has claimed the partition.

    Only an assignment may claim: a retry that claimed would fence the successor and stall the partition permanently.
    """
    found = await reread_all(db, {(topic, partition): epoch})
    return found[topic, partition][0] if found else None


async def reread_all(db: Connection, epochs: Mapping[Place, int]) -> dict[Place, tuple[Owned, str]]:
    """Read committed positions and their clusters, for the partitions that no other process has claimed."""
    topics, partitions = zip(*epochs, strict=True)
    return _owned(await db.fetch(REREAD, topics, partitions, list(epochs.values())))


def _owned(rows: Sequence[Any]) -> dict[Place, tuple[Owned, str]]:
    return {
        (row["topic"], row["partition"]): (Owned(row["epoch"], row["next_offset"]), row["cluster_id"]) for row in rows
    }


async def positions(db: Connection, topic: str) -> dict[int, int]:
    """Committed positions of a topic by partition; none of one that was never claimed."""
    return {row["partition"]: row["next_offset"] for row in await db.fetch(POSITIONS, topic)}


async def skip(db: Connection, consumer: Consumer, partition: int, owned: Owned, to: int, *, loss: bool) -> Owned:
    """Move the position to `to`, past offsets that the log no longer has; a `loss` is recorded with it."""
    async with db.transaction():
        await _advance(db, [(consumer.topic.name, partition, owned.epoch, to, owned.next_offset)], {}, keep_plans=False)
        if loss:
            detail = f"offsets {owned.next_offset}…{to - 1} were deleted by retention before they were read"
            await record_gap(db, consumer.service, (consumer.topic.name, partition), "retention", detail)
    return Owned(owned.epoch, to)


async def _advance(
    db: Connection, moves: Sequence[Move], numbers: Mapping[Sequenced, int], *, keep_plans: bool
) -> Sequence[Any]:
    """Advance positions and sequence numbers; the first statement of a transaction. Raises Fenced if a partition was
    claimed by another.

    Returns the sequence numbers before, at least one row for each partition, and whether its topic has dead letters.
    """
    columns = zip(*numbers, strict=True) if numbers else ([], [], [])
    sequences = [*columns, list(numbers.values())]
    rows: Sequence[Any] = await db.fetch(ADVANCE, *zip(*moves, strict=True), *sequences, keep_plans)
    if not rows:
        raise Fenced(", ".join(f"{t}/{p} at epoch {epoch}, offset {at}" for t, p, epoch, _, at in moves))
    return rows


async def record_gap(db: Connection, service: str, place: Place, kind: str, detail: str) -> None:
    """Record missing records and raise an alert, a page if reading has stopped. Call in a transaction."""
    topic, partition = place
    is_stopped = kind == FOREIGN_POSITION
    await db.execute(GAP, topic, partition, kind, detail)
    LOG.error("records missing", topic=topic, partition=partition, kind=kind, detail=detail)
    await outbox.enqueue(
        db,
        [
            AlertRaised(
                dedup_key=alert_key(service, kind, topic, str(partition)),
                subject_kind="partition",
                subject_id=encoded(topic, str(partition)),
                kind=kind,
                summary=f"{service} is missing records of {topic}/{partition}: {detail}",
                effect="events may have been lost; the next sweep repairs state where possible",
                doing="waits for a new position" if is_stopped else "recorded the gap and continued after it",
                command="slipway doctor",
                severity="page" if is_stopped else "notice",
            )
        ],
    )


async def apply(db: Connection, consumer: Consumer, owned: Owned, records: Sequence[Record]) -> Owned:
    """Apply a batch of one partition in one transaction; returns the new position.

    `records` are in offset order. Raises Fenced if another process has claimed the partition, and any error of the
    infrastructure; in both cases nothing was changed.
    """
    portion = Portion(consumer.topic, records[0].partition, owned, records)
    await apply_together(db, consumer, [portion])
    return Owned(owned.epoch, portion.end)


async def apply_together(db: Connection, consumer: Consumer, portions: Sequence[Portion]) -> None:
    """Apply a batch of several partitions of the topic in one transaction, like `apply`. If the data is at fault, in
    another one, which has savepoints."""
    try:
        await _apply(db, consumer, portions, savepoints=False)
    except Exception as error:
        if isinstance(error, Fenced) or is_infrastructure(error):
            raise
        await _apply(db, consumer, portions, savepoints=True)


async def _apply(db: Connection, consumer: Consumer, portions: Sequence[Portion], *, savepoints: bool) -> None:
    batch = Batch(consumer.service, portions)
    async with db.transaction():
        await batch.apply(db, consumer.handle, savepoints=savepoints)
    batch.count()


class Batch:
    """Records applied by one transaction: decoded, deduplicated, dead ones separated.

    Decoding needs no database, so it happens before the transaction begins. Every record at or above its position is
    handled, becomes dead or parked (`dead_records`), or is `left_out` as a duplicate, an unknown type or a bare
    tombstone.
    """

    def __init__(self, service: str, portions: Sequence[Portion]) -> None:
        self.service = service
        self.portions = portions
        self.fresh: list[tuple[Topic, Record, Received]] = []
        self.dead_records: list[DeadRecord] = []
        self.left_out: list[Record] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self._afterwards: list[Callable[[], None]] = []
        self._read = [list(read(portion.unread())) for portion in portions]

    async def apply(self, tx: Connection, handle: Handler, *, savepoints: bool = True) -> None:
        """Apply everything inside the caller's transaction, positions first; call `count` after the commit.

        With `savepoints`, events that cannot be applied become dead letters. Raises Fenced, any error of the
        infrastructure, and without savepoints any error of the handler; the caller must then roll back.
        """
        seen: dict[Place, dict[str, int]] = {(p.topic.name, p.partition): {} for p in self.portions}
        dead: set[str] = set()
        moves = [(p.topic.name, p.partition, p.owned.epoch, p.end, p.owned.next_offset) for p in self.portions]
        for row in await _advance(tx, moves, self._sequences(), keep_plans=not savepoints):
            if row["source"] is not None:
                seen[row["topic"], row["partition"]][row["source"]] = row["sequence_number"]
            if row["dead"]:
                dead.add(row["topic"])
        for portion, items in zip(self.portions, self._read, strict=True):
            await self._drop_duplicates(tx, portion, items, seen[portion.topic.name, portion.partition])
        for topic in dict.fromkeys(portion.topic for portion in self.portions):
            await self._park(tx, topic, has_dead=topic.name in dead)
        await self._handle(tx, handle, savepoints=savepoints)
        await dead_records.store(tx, self.service, self.dead_records)

    def count(self) -> None:
        """Update metrics and run the handlers' callbacks; call after the commit."""
        for act in self._afterwards:
            act()
        for (topic, result), count in self.counts.items():
            CONSUMED.labels(topic, result).inc(count)

    def _sequences(self) -> dict[Sequenced, int]:
        """The highest sequence number of each source in a partition."""
        highest: dict[Sequenced, int] = {}
        for portion, items in zip(self.portions, self._read, strict=True):
            for _, envelope, _ in items if portion.topic.numbered else ():
                if envelope is not None and (number := envelope.sequence_number) is not None:
                    source = portion.topic.name, portion.partition, envelope.sequence_source or envelope.source
                    highest[source] = max(number, highest.get(source, 0))
        return highest

    def _leave_out(self, record: Record, result: str) -> None:
        self.left_out.append(record)
        self.counts[record.topic, result] += 1

    def _dead_letter(
        self, topic: Topic, record: Record, subject: str, state: str, reason: str, event: Received | None = None
    ) -> None:
        self.dead_records.append(DeadRecord(topic, record, subject, state, reason, event))
        self.counts[record.topic, state] += 1

    async def _drop_duplicates(
        self, tx: Connection, portion: Portion, items: Sequence[Item], last_of: dict[str, int]
    ) -> None:
        """Drop duplicates and record gaps by sequence number.

        External producers have no sequence numbers; their (source, id) pairs are stored instead, unless an event that
        is applied again has no effect. Numbers in a topic that they may write count for nothing."""
        topic = portion.topic
        numbered = topic.numbered
        external = [
            (e.source, e.id) for _, e, _ in items if e is not None and (e.sequence_number is None or not numbered)
        ]
        if topic.latest_wins:
            external = []
        new: set[tuple[str, str]] = set()
        if external:
            rows = await tx.fetch(RECORD_EVENT_IDS, topic.name, *zip(*external, strict=True))
            new = {(row["source"], row["event_id"]) for row in rows}
        for record, envelope, event in items:
            if envelope is None:
                self._refuse(topic, record, event)
                continue
            number = envelope.sequence_number if numbered else None
            if number is None:
                if not topic.latest_wins and (envelope.source, envelope.id) not in new:
                    self._leave_out(record, "duplicate")
                    continue
                new.discard((envelope.source, envelope.id))
            else:
                source = envelope.sequence_source or envelope.source
                last = last_of.get(source)
                if last is not None and number <= last:
                    self._leave_out(record, "duplicate")
                    continue
                # Compaction creates gaps by design.
                if last is not None and (envelope.previous or 0) > last and not topic.compacted:
                    self.counts[topic.name, "gap"] += 1
                    detail = f"{source}: {number} followed {last}, but its predecessor is {envelope.previous}"
                    await record_gap(tx, self.service, (topic.name, portion.partition), "sequence-gap", detail)
                last_of[source] = number
            if type(event) is Received:
                self.fresh.append((topic, record, event))
            elif isinstance(event, UnknownType):
                self._leave_out(record, "unknown_type")
            else:
                subject = envelope.subject or text_of(record.key)
                self._dead_letter(topic, record, subject, "dead", reason_of(event))

    def _refuse(self, topic: Topic, record: Record, error: Exception) -> None:
        """Dead-letter a record without a valid envelope. A bare null in a compacted topic of ours is left out: nothing
        of ours was deleted by it."""
        if topic.compacted and is_bare_null(record):
            self._leave_out(record, "tombstone")
        else:
            self._dead_letter(topic, record, text_of(record.key), "dead", reason_of(error))

    async def _park(self, tx: Connection, topic: Topic, *, has_dead: bool) -> None:
        """Park events behind a dead event of their subject, in this batch or an earlier one, to keep their order."""
        if not (topic.parks and self.fresh):
            return
        blocked: set[str] = set()
        if has_dead:
            subjects = sorted({event.subject for own_topic, _, event in self.fresh if own_topic is topic})
            blocked = {row["subject"] for row in await tx.fetch(BLOCKED_SUBJECTS, topic.name, subjects)}
        first_dead: dict[str, tuple[int, int]] = {}
        for dead in self.dead_records:
            if dead.topic is topic:
                first_dead.setdefault(dead.subject, (dead.record.partition, dead.record.offset))
        if not blocked and not first_dead:
            return
        fresh, self.fresh = self.fresh, []
        for own_topic, record, event in fresh:
            behind = own_topic is topic and (record.partition, record.offset) > first_dead.get(event.subject, LAST)
            if behind or (own_topic is topic and event.subject in blocked):
                self._dead_letter(topic, record, event.subject, "parked", "behind a dead event of its subject", event)
            else:
                self.fresh.append((own_topic, record, event))

    async def _handle(self, tx: Connection, handle: Handler, *, savepoints: bool) -> None:
        """Handle all events at once; if the data is at fault, one by one, dead-lettering each that fails."""
        if not self.fresh:
            return
        events = [event for _, _, event in self.fresh]
        try:
            async with tx.transaction() if savepoints else contextlib.nullcontext():
                afterwards = await handle(tx, events)
        except Exception as error:
            if not savepoints or is_infrastructure(error):
                raise
            topics = sorted({topic.name for topic, _, _ in self.fresh})
            LOG.warning("batch failed, retrying record by record", topics=topics, error=repr(error))
        else:
            for name, count in Counter(event.topic for event in events).items():
                self.counts[name, "applied"] += count
            self._defer(afterwards)
            return
        blocked: set[tuple[str, str]] = set()
        for topic, record, event in self.fresh:
            if topic.parks and (topic.name, event.subject) in blocked:
                self._dead_letter(topic, record, event.subject, "parked", "behind a dead event of its subject", event)
                continue
            try:
                async with tx.transaction():
                    afterwards = await handle(tx, [event])
            except Exception as error:
                if is_infrastructure(error):
                    raise
                self._dead_letter(topic, record, event.subject, "dead", reason_of(error), event)
                blocked.add((topic.name, event.subject))
            else:
                self.counts[topic.name, "applied"] += 1
                self._defer(afterwards)

    def _defer(self, act: Callable[[], None] | None) -> None:
        if act is not None:
            self._afterwards.append(act)
