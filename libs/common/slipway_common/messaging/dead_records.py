"""Dead letters as rows, and as records of dead-letter topics. Knows no Kafka client.

Rows keep every byte of a record: those of a name that is not text are beside it, and a record batch that cannot be
decoded is the value of one row.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from slipway_api.events.topics import Topic, dead_letter_topic
from slipway_common.base.errors import BadEvent
from slipway_common.base.ids import new_id
from slipway_common.base.redaction import described, redacted
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_common.messaging.records import VALUE_BYTES_MAX, Received, Record, Undecoded, text_of, written_at
from slipway_common.observability.telemetry import current_trace, logger

LOG = logger(__name__)

REASON_CHARACTERS_MAX: Final = 1000

# A row at the same place is either that of the same record, read again, or was left by an earlier log of the topic.
INSERT: Final = """
INSERT INTO dead_letter AS d
    (topic, partition, "offset", subject, state, reason, key, value, headers, record_at, undecoded)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (topic, partition, "offset") DO UPDATE SET subject = excluded.subject, state = excluded.state,
    reason = excluded.reason, key = excluded.key, value = excluded.value, headers = excluded.headers,
    record_at = excluded.record_at, undecoded = excluded.undecoded, at = excluded.at
WHERE (d.key, d.value, d.record_at) IS DISTINCT FROM (excluded.key, excluded.value, excluded.record_at)
RETURNING true"""
# The subject of a record batch that cannot be decoded is unknown.
DELETE_OLDER: Final = """
DELETE FROM dead_letter
WHERE topic = $1 AND subject = $2 AND NOT undecoded AND (partition, "offset") <> ($3, $4::bigint)"""


class DeadRecord(msgspec.Struct, frozen=True):
    """A record that was not applied: `dead` itself, or `parked` behind a dead one of its subject.

    `event` is None if the record could not be decoded."""

    topic: Topic
    record: Record
    subject: str
    state: str
    reason: str
    event: Received | None = None


def reason_of(error: Exception) -> str:
    """Reason for people why a record is dead, without likely secrets; a BadEvent is worded for them."""
    if isinstance(error, BadEvent):
        return redacted(str(error), REASON_CHARACTERS_MAX)
    return described(error, REASON_CHARACTERS_MAX)


async def store(tx: Connection, service: str, dead_records: Sequence[DeadRecord]) -> None:
    """Insert rows in the transaction of the offsets, and records for the dead-letter topics in the outbox. On
    latest-wins topics, rows of older records of the subject are deleted."""
    for dead in dead_records:
        await _insert(tx, service, dead)
    newest = {
        (dead.topic.name, dead.subject): dead.record
        for dead in dead_records
        if dead.topic.latest_wins and not isinstance(dead.record.value, Undecoded)
    }
    for (topic, subject), record in sorted(newest.items(), key=lambda item: item[0]):  # transactions lock in one order
        await tx.execute(DELETE_OLDER, topic, subject, record.partition, record.offset)


async def _insert(tx: Connection, service: str, dead: DeadRecord) -> None:
    record, subject, state = dead.record, dead.subject, dead.state
    reason = text_of(dead.reason.encode(errors="replace"), REASON_CHARACTERS_MAX)
    undecoded = isinstance(record.value, Undecoded)
    headers = [_stored(name, value) for name, value in record.headers]
    inserted = await tx.fetchval(
        INSERT,
        record.topic,
        record.partition,
        record.offset,
        subject,
        state,
        reason,
        record.key,
        record.value,
        headers,
        written_at(record),
        undecoded,
    )
    if state != "dead" or not inserted:
        return
    LOG.error("dead letter", topic=record.topic, partition=record.partition, offset=record.offset, reason=reason)
    error: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    error["message"] = reason
    if undecoded:
        error["undecoded"] = "true"
    value = record.value
    sent = [[text or "" for text in header[:2]] for header in headers]
    size = len(value or b"") + len(record.key or b"") + sum(len(name) + len(text) for name, text in sent)
    if size > VALUE_BYTES_MAX:
        # Too large for a batch of the relay; the row in `dead_letter` has the whole record.
        value, sent, error["omitted_bytes"] = None, [], size
    sent += [[f"__dlq.errors.{name}", str(text).encode().hex()] for name, text in error.items()]
    key = None if record.key is None else text_of(record.key)
    target = dead_letter_topic(dead.topic, service)
    await tx.execute(outbox.DEAD, new_id(), target, "dead", subject, key, value, current_trace(), sent)


def _stored(name: str, value: bytes | None) -> list[str | None]:
    """A header as stored: its name as text and its value in hexadecimal. The bytes of a name that is no text which a
    column can store follow them."""
    raw = name.encode(errors="surrogateescape")
    text = text_of(raw)
    header = [text, None if value is None else value.hex()]
    return header if text.encode() == raw else [*header, raw.hex()]


def record_in(row: Any) -> Record:
    """The record in a row, as it was consumed."""
    headers = [
        (
            bytes.fromhex(raw[0]).decode(errors="surrogateescape") if raw else name,
            None if value is None else bytes.fromhex(value),
        )
        for name, value, *raw in row["headers"]
    ]
    value = Undecoded(row["value"], row["reason"]) if row["undecoded"] else row["value"]
    stored_ms = int(row["record_at"].timestamp() * 1000)
    return Record(row["topic"], row["partition"], row["offset"], row["key"], value, headers, stored_ms)
