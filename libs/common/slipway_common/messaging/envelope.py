"""CloudEvents 1.0 in binary content mode: attributes in `ce_*` headers, the plain JSON data as the value.

Extension attributes: `slipwaysource` (service and incarnation), `slipwaynumber` and `slipwayprevious` (sequence numbers
per source and partition, assigned by the relay), `slipwayrevision` (version of the subject). Malformed attributes raise
BadEvent with the reason.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final

import msgspec

from slipway_api.events.topics import DECODERS, EVENT_OF
from slipway_common.base.errors import BadEvent

Headers = list[tuple[str, bytes]]

ATTRIBUTES: Final = (
    "specversion",
    "id",
    "type",
    "source",
    "time",
    "subject",
    "slipwaysource",
    "slipwaynumber",
    "slipwayprevious",
    "slipwayrevision",
    "traceparent",
)
CONTENT_TYPE: Final = "content-type"
JSON: Final = b"application/json"
PLAIN: Final = frozenset({CONTENT_TYPE, "traceparent"})  # without the ce_ prefix of the others
# Bounds of the cache; producers use only a few layouts.
LAYOUTS_MAX: Final = 100
LAYOUT_CHARACTERS_MAX: Final = 1_000
TRACEPARENT_CHARACTERS_MAX: Final = 200  # of the present version 55; rows and later events have it too


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Attributes of one record. `sequence_number` and `previous` are None for external producers."""

    id: str
    type: str
    source: str
    subject: str = ""
    time: datetime
    sequence_number: int | None = None
    previous: int | None = None
    sequence_source: str = ""
    revision: int | None = None
    traceparent: str = ""


class UnknownType(BadEvent):
    """The event type is unknown to this version: skipped and counted, never dead-lettered."""


def encode(envelope: Envelope) -> Headers:
    """Encode an envelope as Kafka record headers."""
    headers: Headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", envelope.id.encode()),
        ("ce_type", envelope.type.encode()),
        ("ce_source", envelope.source.encode()),
        ("ce_time", envelope.time.astimezone(UTC).isoformat().replace("+00:00", "Z").encode()),
        (CONTENT_TYPE, JSON),
    ]
    if envelope.subject:
        headers.append(("ce_subject", envelope.subject.encode()))
    if envelope.sequence_number is not None:
        headers.append(("ce_slipwaysource", (envelope.sequence_source or envelope.source).encode()))
        headers.append(("ce_slipwaynumber", b"%d" % envelope.sequence_number))
        headers.append(("ce_slipwayprevious", b"%d" % (envelope.previous or 0)))
    if envelope.revision is not None:
        headers.append(("ce_slipwayrevision", b"%d" % envelope.revision))
    if envelope.traceparent:
        headers.append(("traceparent", envelope.traceparent.encode()))
    return headers


def decode(headers: Collection[tuple[str, bytes | None]], *, received_at: datetime) -> Envelope:
    """Decode the attributes from headers; raises BadEvent with the reason.

    `ce_time` is optional in CloudEvents; `received_at` is used if it is absent.
    """
    names, values = zip(*headers, strict=False) if headers else ((), ())
    layout = _layouts.get(names) or _layout(names)
    try:
        texts = [None if place < 0 else (values[place] or b"").decode() for place in layout]
    except UnicodeDecodeError as error:
        name = next(names[place] for place in layout if place >= 0 and values[place] == error.object)
        raise BadEvent(f"header {name} is not UTF-8: {error.reason}") from error
    version, id_, type_, source, time, subject, sequence_source, number, previous, revision, traceparent, *_ = texts
    if not (version and id_ and type_ and source):
        given = zip(ATTRIBUTES, (version, id_, type_, source), strict=False)
        raise BadEvent(f"CloudEvents attributes missing: {', '.join('ce_' + name for name, text in given if not text)}")
    if not version.startswith("1."):
        raise BadEvent(f"CloudEvents version {version} is not 1.x")
    return Envelope(
        id=id_,
        type=type_,
        source=source,
        subject=subject or "",
        time=_time(time) if time else received_at,
        sequence_number=None if number is None else _number(number, "slipwaynumber"),
        previous=None if previous is None else _number(previous, "slipwayprevious"),
        sequence_source=sequence_source or "",
        revision=None if revision is None else _number(revision, "slipwayrevision"),
        traceparent=traceparent if traceparent and len(traceparent) <= TRACEPARENT_CHARACTERS_MAX else "",
    )


# Header names of a record → index of each attribute (-1 if absent), then of every other header that must be text. A
# producer always writes the same names in the same order, so layouts are cached.
_layouts: dict[tuple[str, ...], tuple[int, ...]] = {}
# For records of relays: header names → getter of the version, the content type and all other attributes.
_chosen: dict[tuple[str, ...], Callable[[Any], Sequence[bytes]]] = {}


def _layout(names: tuple[str, ...]) -> tuple[int, ...]:
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:  # a byte that is not UTF-8 is a surrogate
        raw = [name.encode(errors="surrogateescape") for name in names]
        raise BadEvent(f"names of headers are not UTF-8: {raw}") from error
    texts = {p: n.removeprefix("ce_") for p, n in enumerate(names) if n.startswith("ce_") or n in PLAIN}
    places = {attribute: place for place, attribute in texts.items()}  # the last one wins if a header is repeated
    chosen = [places.get(attribute, -1) for attribute in ATTRIBUTES]
    layout = (*chosen, *(place for place in texts if place not in chosen))
    if len(_layouts) < LAYOUTS_MAX and sum(map(len, names)) <= LAYOUT_CHARACTERS_MAX:
        _layouts[names] = layout
        kind = [place for place, name in enumerate(names) if name == CONTENT_TYPE]
        if -1 not in chosen and [*layout[len(chosen) :]] == kind:
            _chosen[names] = itemgetter(chosen[0], *kind, *chosen[1:])
    return layout


def of_relay(headers: Collection[tuple[str, bytes | None]]) -> Sequence[bytes] | None:
    """Raw attribute values of headers written by a relay: version 1.0, the content type, then the other ATTRIBUTES in
    order. None for headers written by other producers."""
    names, values = zip(*headers, strict=False)
    chosen = _chosen.get(names)
    if chosen is None:
        return None
    found = chosen(values)
    return found if found[0] == b"1.0" and found[1] == JSON else None


def decode_data(type_: str, value: bytes | None) -> Any:
    """Decode the event; None for a tombstone. Raises UnknownType or BadEvent."""
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


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise BadEvent(f"ce_{name} {text!r} is not a number") from error
