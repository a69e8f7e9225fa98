"""CloudEvents 1.0 in binary content mode: attributes in `ce_*` headers, the plain JSON data as the value.

Extension attributes of our own: `slipwaysource` (service + incarnation), `slipwaynumber` and `slipwayprevious` (per
source and partition, given by the relay), `slipwayrevision` (the subject's version). On foreign bytes:
what cannot be read raises BadEvent with the reason, for the caller to record.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from slipway_common.errors import BadEvent
from slipway_common.topics import DECODERS, EVENT_OF

Headers = list[tuple[str, bytes]]


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of one record. `number` and `previous` are None for outsiders."""

    id: str
    type: str
    source: str
    subject: str = ""
    time: datetime
    number: int | None = None
    previous: int | None = None
    number_source: str = ""
    revision: int | None = None
    traceparent: str = ""


class UnknownType(BadEvent):
    """A type this version does not know: skipped and counted, never dead."""


def encode(envelope: Envelope) -> Headers:
    """Headers of a record, as Kafka takes them."""
    headers: Headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", envelope.id.encode()),
        ("ce_type", envelope.type.encode()),
        ("ce_source", envelope.source.encode()),
        ("ce_time", envelope.time.astimezone(UTC).isoformat().replace("+00:00", "Z").encode()),
        ("content-type", b"application/json"),
    ]
    if envelope.subject:
        headers.append(("ce_subject", envelope.subject.encode()))
    if envelope.number is not None:
        headers.append(("ce_slipwaysource", (envelope.number_source or envelope.source).encode()))
        headers.append(("ce_slipwaynumber", b"%d" % envelope.number))
        headers.append(("ce_slipwayprevious", b"%d" % (envelope.previous or 0)))
    if envelope.revision is not None:
        headers.append(("ce_slipwayrevision", b"%d" % envelope.revision))
    if envelope.traceparent:
        headers.append(("traceparent", envelope.traceparent.encode()))
    return headers


def decode(headers: Iterable[tuple[str, bytes | None]], *, received_at: datetime) -> Envelope:
    """Attributes from headers; raises BadEvent with the reason.

    `ce_time` may be absent (the CloudEvents specification makes it optional): then receipt counts.
    """
    text: dict[str, str] = {}
    for name, value in headers:
        if name.startswith("ce_") or name in {"content-type", "traceparent"}:
            try:
                text[name.removeprefix("ce_")] = (value or b"").decode()
            except UnicodeDecodeError as error:
                raise BadEvent(f"header {name} is not UTF-8: {error.reason}") from error
    missing = [name for name in ("specversion", "id", "type", "source") if not text.get(name)]
    if missing:
        raise BadEvent(f"CloudEvents attributes missing: {', '.join('ce_' + name for name in missing)}")
    if not text["specversion"].startswith("1."):
        raise BadEvent(f"CloudEvents version {text['specversion']} is not 1.x")
    return Envelope(
        id=text["id"],
        type=text["type"],
        source=text["source"],
        subject=text.get("subject", ""),
        time=_time(text["time"]) if text.get("time") else received_at,
        number=_number(text, "slipwaynumber"),
        previous=_number(text, "slipwayprevious"),
        number_source=text.get("slipwaysource", ""),
        revision=_number(text, "slipwayrevision"),
        traceparent=text.get("traceparent", ""),
    )


def decode_data(type_: str, value: bytes | None) -> Any:
    """The event itself. None for a tombstone; raises UnknownType or BadEvent."""
    if type_ not in EVENT_OF:
        raise UnknownType(f"unknown event type {type_}")
    if value is None:
        return None
    try:
        return DECODERS[type_].decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadEvent(f"{type_}: {error}") from error


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadEvent(f"ce_time {text!r} is not RFC 3339") from error
    if at.tzinfo is None:
        raise BadEvent(f"ce_time {text!r} has no time zone")
    return at


def _number(text: dict[str, str], name: str) -> int | None:
    if name not in text:
        return None
    try:
        return int(text[name])
    except ValueError as error:
        raise BadEvent(f"ce_{name} {text[name]!r} is not a number") from error
