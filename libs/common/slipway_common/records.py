"""What a record of a topic says: its envelope and its event, or what is wrong with it. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from slipway_common.envelope import Envelope, decode, decode_data, of_relay
from slipway_common.errors import BadEvent
from slipway_common.topics import DECODERS

SUBJECT_BYTES_MAX: Final = 1000  # two of them fit into one index row of PostgreSQL (2,704 bytes)
BIGINT_MAX: Final = 2**63 - 1
_KNOWN: Final = {type_.encode(): (type_, decoder.decode) for type_, decoder in DECODERS.items()}


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as any client read it. `topic` is the registry's name, without a prefix."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


class Received(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event for a handler. `event` is None for a tombstone: then `subject` says what was deleted.

    `stored_ms` is the record's own time, as its client set it; 0: not known.
    """

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
    stored_ms: int = 0
    previous: int | None = None
    number_source: str = ""


Item = tuple[Record, Envelope | Received | None, Any]
"""A record, its attributes if they can be read, and its event, or the error that says why there is none."""


def read(records: Iterable[Record]) -> Iterator[Item]:
    """Each record with what it says; whatever is wrong with one is told in its place."""
    for record in records:
        if (quick := _quickly(record)) is not None:
            yield record, quick, quick
            continue
        try:
            envelope = opened(record)
        except BadEvent as error:
            yield record, None, error
            continue
        try:
            event: Any = received(record, envelope)
        except Exception as error:  # it touches nothing but the record: whatever it raises is the record's fault
            event = error
        yield record, envelope, event


def _quickly(record: Record) -> Received | None:
    """What `received` makes of a record as a relay writes it, in two thirds of the time; None for whatever looks
    different, which is then read in the general way."""
    try:
        attributes = of_relay(record.headers)
        if attributes is None or record.value is None:
            return None
        _, _, id_, type_, source, time, subject, number_source, number_, previous_, revision_, traceparent = attributes
        texts = id_ + source + subject + number_source
        if b"\0" in texts or len(texts) > SUBJECT_BYTES_MAX or not (id_ and source and subject):
            return None
        type_name, decode_value = _KNOWN[type_]
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
            number=number,
            revision=revision,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            traceparent=traceparent.decode(),
            stored_ms=record.timestamp_ms,
            previous=previous,
            number_source=number_source.decode(),
        )
    except Exception:  # the general way says what is wrong with it
        return None


def opened(record: Record) -> Envelope:
    """The envelope of a record. Raises BadEvent, also for what no column or index takes."""
    envelope = decode(record.headers, received_at=written_at(record))
    # It would fail the transaction again and again, so it has to be dead beforehand.
    texts = envelope.id + envelope.source + envelope.subject + envelope.number_source
    if "\0" in texts or len(texts) > SUBJECT_BYTES_MAX // 4:
        for name in ("id", "source", "subject", "number_source"):
            text: str = getattr(envelope, name)
            if "\0" in text or len(text.encode()) > SUBJECT_BYTES_MAX:
                raise BadEvent(f"ce_{name} has a NUL character or more than {SUBJECT_BYTES_MAX} bytes")
    for name, number in (("number", envelope.number), ("previous", envelope.previous), ("revision", envelope.revision)):
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
        subject=envelope.subject or text_of(record.key),
        time=envelope.time,
        number=envelope.number,
        revision=envelope.revision,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        traceparent=envelope.traceparent,
        stored_ms=record.timestamp_ms,
        previous=envelope.previous,
        number_source=envelope.number_source,
    )


def text_of(raw: bytes | None, characters_max: int = SUBJECT_BYTES_MAX // 4) -> str:
    """Foreign bytes as text that every column and index takes."""
    return (raw or b"").decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")[:characters_max]


def written_at(record: Record) -> datetime:
    """When the record was written; the epoch for a time that no calendar has."""
    try:
        return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
