"""Events that were kept in a file, a CloudEvent a line as `slipway events tail -o json` prints them."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_common.envelope import UnknownType, decode_data
from slipway_common.errors import BadEvent
from slipway_common.events import Time
from slipway_common.strict_yaml import Invalid, Problem


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One record of `topic`, and when Kafka stored it, if that was kept."""

    topic: str
    id: str
    source: str
    type: str
    time: Time
    subject: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")
    stored: Time | None = None


class Unread(msgspec.Struct, frozen=True):
    """What a line holds of a record that nobody could read when it was kept: `unreadable` says why."""

    unreadable: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`event` is None for a tombstone of `subject`."""

    topic: str
    id: str
    source: str
    subject: str
    time: datetime
    event: Any
    stored_at: datetime | None = None


_LINE: Final = msgspec.json.Decoder(Line)
_UNREAD: Final = msgspec.json.Decoder(Unread)
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
GZIP: Final = b"\x1f\x8b"


class Recording:
    """The events of a file, in its order. `unreadable` counts the records on the way that could not be read when they
    were kept, or are of a type that is not known here: they are left out, as they are on Kafka.

    Raises Invalid, with the line, for the first line that is no record at all.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.unreadable = 0

    def __iter__(self) -> Iterator[Event]:
        found = False
        try:
            with self.file.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
                    if number == 1 and text.startswith(GZIP):
                        raise Invalid([Problem("", "is compressed; unpack it with gunzip")])
                    if text.strip():
                        found = True
                        event = _event(text, number)
                        if event is None:
                            self.unreadable += 1
                        else:
                            yield event
        except OSError as error:
            raise Invalid([Problem("", f"cannot be read: {error.strerror}")]) from error
        if not found:
            raise Invalid([Problem("", "holds no event")])


def _event(line: bytes, number: int) -> Event | None:
    """None for a record that is left out."""

    def wrong(reason: str) -> Invalid:
        return Invalid([Problem("", reason, number)])

    try:
        if b'"unreadable"' in line and _UNREAD.decode(line).unreadable:
            return None
        kept = _LINE.decode(line)
    except msgspec.ValidationError as error:
        raise wrong(f"is no event: {error}; `slipway events tail -o json` prints such lines") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise wrong("is cut off" if "truncated" in str(error) else f"is not JSON: {error}") from error
    try:
        value = bytes(kept.data)
        event = decode_data(kept.type, None if value == b"null" else value)
    except UnknownType:
        return None
    except BadEvent as error:
        raise wrong(f"does not fit its schema: {error}") from error
    return Event(
        topic=kept.topic,
        id=kept.id,
        source=kept.source,
        subject=kept.subject,
        time=kept.time,
        event=event,
        stored_at=kept.stored,
    )
