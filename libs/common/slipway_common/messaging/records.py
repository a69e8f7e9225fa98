"""Decoding of topic records into envelopes and events, or into the error that prevents it. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from slipway_api.events.topics import DECODERS, TOPICS
from slipway_api.limits import KEY, NAME
from slipway_common.base.errors import BadEvent
from slipway_common.messaging.envelope import TRACEPARENT_CHARACTERS_MAX, Envelope, decode, decode_data, of_relay

# Of what is sent and of what is consumed. A row too large for a Kafka batch would block the relay forever.
VALUE_BYTES_MAX: Final = 500_000
BIGINT_MAX: Final = 2**63 - 1
_TOPICS: Final = {topic.name: topic for topic in TOPICS}
# Topic → type as in a header → type as text, and its decoder.
_KNOWN: Final = {
    topic.name: {event.type.encode(): (event.type, DECODERS[event.type].decode) for event in topic.events}
    for topic in TOPICS
}


class Undecoded(bytes):
    """Bytes of a record batch that cannot be decoded, as the value of one record in place of those in the batch."""

    reason: str

    def __new__(cls, raw: bytes, reason: str) -> "Undecoded":
        value = super().__new__(cls, raw)
        value.reason = reason
        return value


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as read by any client. `topic` is the name in the registry, without a prefix.

    Bytes that are not UTF-8 in the name of a header are surrogates, as in names of files."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


class Received(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event for a handler. For a tombstone, `event` is None and `subject` names what was deleted.

    `stored_ms` is the record's timestamp in milliseconds, as set by its producer; 0 if unknown.
    """

    event: Any
    type: str
    id: str
    source: str
    subject: str
    time: datetime
    sequence_number: int | None
    revision: int | None
    topic: str
    partition: int
    offset: int
    traceparent: str = ""
    stored_ms: int = 0
    previous: int | None = None
    sequence_source: str = ""


Item = tuple[Record, Envelope | Received | None, Any]
"""A record, its attributes if they can be decoded, and its event or the error that prevented decoding it."""


def read(records: Iterable[Record]) -> Iterator[Item]:
    """Decode each record; an error takes the place of the event and is never raised."""
    for record in records:
        if (quick := _read_fast(record)) is not None:
            yield record, quick, quick
            continue
        if record.value is None and (deleted := _deletion(record)) is not None:
            yield record, deleted, deleted
            continue
        try:
            envelope = opened(record)
        except BadEvent as error:
            yield record, None, error
            continue
        try:
            event: Any = received(record, envelope)
        except Exception as error:  # decoding depends on the record alone, so every error is its fault
            event = error
        yield record, envelope, event


def _read_fast(record: Record) -> Received | None:
    """Fast path for records written by a relay, one third faster than `opened` and `received`.

    None for every other record, which then takes the general path."""
    try:
        attributes = of_relay(record.headers)
        if attributes is None or record.value is None or len(record.value) > VALUE_BYTES_MAX:
            return None
        _, _, id_, type_, source, time, subject, sequence_source, number_, previous_, revision_, traceparent = (
            attributes
        )
        names = id_ + source + sequence_source
        if len(names) > NAME.characters or len(subject) > KEY.characters or b"\0" in names + subject:
            return None
        if not (id_ and source and subject) or len(traceparent) > TRACEPARENT_CHARACTERS_MAX:
            return None
        type_name, decode_value = _KNOWN[record.topic][type_]
        number, previous, revision = int(number_), int(previous_), int(revision_)
        at = datetime.fromisoformat(time.decode())
        if not (0 <= number <= BIGINT_MAX and 0 <= previous <= BIGINT_MAX and 0 <= revision <= BIGINT_MAX):
            return None
        if at.tzinfo is None:
            return None
        return Received(
            event=decode_value(record.value),
            type=type_name,
            id=id_.decode(),
            source=source.decode(),
            subject=subject.decode(),
            time=at,
            sequence_number=number,
            revision=revision,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            traceparent=traceparent.decode(),
            stored_ms=record.timestamp_ms,
            previous=previous,
            sequence_source=sequence_source.decode(),
        )
    except Exception:  # the general path reports the error
        return None


def opened(record: Record) -> Envelope:
    """Decode the envelope of a record. Raises BadEvent, also for values that no column or index can store."""
    if isinstance(record.value, Undecoded):
        raise BadEvent(record.value.reason)
    envelope = decode(record.headers, received_at=written_at(record))
    # Storing such a value would fail the transaction on every retry, so it is refused here.
    for name, text, limit in (
        ("id", envelope.id, NAME),
        ("source", envelope.source, NAME),
        ("subject", envelope.subject, KEY),
        ("slipwaysource", envelope.sequence_source, NAME),
    ):
        if wrong := limit.problem(text):
            raise BadEvent(f"ce_{name} {wrong}")
    for name, number in (
        ("number", envelope.sequence_number),
        ("previous", envelope.previous),
        ("revision", envelope.revision),
    ):
        if number is not None and not 0 <= number <= BIGINT_MAX:
            raise BadEvent(f"ce_slipway{name} {number} is out of range")
    return envelope


def received(record: Record, envelope: Envelope) -> Received:
    """Decode the event of a record. Raises UnknownType, BadEvent, and any error of a decoder on malformed bytes."""
    topic, size = _TOPICS[record.topic], len(record.value or b"")
    if size > VALUE_BYTES_MAX:
        raise BadEvent(f"{envelope.type}: the value has {size:,} bytes; at most {VALUE_BYTES_MAX:,} are allowed")
    event = decode_data(envelope.type, record.value)
    if envelope.type.encode() not in _KNOWN[topic.name]:
        raise BadEvent(f"{envelope.type} does not belong to topic {topic.name}")
    if record.value is None and not topic.compacted:
        raise BadEvent(f"{envelope.type}: null value; only records of compacted topics can be deleted by one")
    if topic.parks and not (envelope.subject or record.key):
        raise BadEvent(f"{envelope.type}: neither ce_subject nor a key names the subject")
    return Received(
        event=event,
        type=envelope.type,
        id=envelope.id,
        source=envelope.source,
        subject=envelope.subject or text_of(record.key),
        time=envelope.time,
        sequence_number=envelope.sequence_number,
        revision=envelope.revision,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        traceparent=envelope.traceparent,
        stored_ms=record.timestamp_ms,
        previous=envelope.previous,
        sequence_source=envelope.sequence_source,
    )


def is_bare_null(record: Record) -> bool:
    """True if the record has a null value and no CloudEvents attribute, as generic tools write a tombstone."""
    return record.value is None and not any(name.startswith("ce_") for name, _ in record.headers)


def _deletion(record: Record) -> Received | None:
    """A bare null in an input of monitors, as an event without attributes; its key names what is deleted. None for any
    other record."""
    if not (record.key and _TOPICS[record.topic].latest_wins and is_bare_null(record)):
        return None
    key = record.key.decode(errors="replace")
    if KEY.problem(key):
        return None
    return Received(
        event=None,
        type="",
        id="",
        source="",
        subject=key,
        time=written_at(record),
        sequence_number=None,
        revision=None,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        stored_ms=record.timestamp_ms,
    )


def text_of(raw: bytes | None, characters_max: int = KEY.bytes // 4) -> str:
    """Untrusted bytes as text that every column and index can store."""
    return (raw or b"").decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")[:characters_max]


def written_at(record: Record) -> datetime:
    """Timestamp of the record; the Unix epoch if it is out of range."""
    try:
        return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
