"""Reader for recorded events: a file of one CloudEvent per line, as `slipway events tail -o json` prints them."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_common.base.errors import BadEvent
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid
from slipway_common.events.time import Time
from slipway_common.messaging.envelope import UnknownType, decode_data


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One record of `topic`; `stored` is when Kafka stored it, if recorded."""

    topic: str
    id: str
    source: str
    type: str
    time: Time
    subject: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")
    stored: Time | None = None


class Unread(msgspec.Struct, frozen=True):
    """Line of a record that could not be read when it was recorded; `unreadable` is the reason."""

    unreadable: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded event; `event` is None for a tombstone of `subject`."""

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
    """Events of a file, in its order. `unreadable` counts skipped records: those that could not be read when they were
    recorded, and those of unknown types.

    Raises Invalid, with the line, for the first line that is not a record.
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
                        raise Invalid([DocumentProblem("", "is compressed; unpack it with gunzip")])
                    if text.strip():
                        found = True
                        event = _event(text, number)
                        if event is None:
                            self.unreadable += 1
                        else:
                            yield event
        except OSError as error:
            raise Invalid([DocumentProblem("", f"cannot be read: {error.strerror}")]) from error
        if not found:
            raise Invalid([DocumentProblem("", "contains no events")])


def _event(line: bytes, number: int) -> Event | None:
    """Parse one line; None for a record that is skipped."""

    def wrong(reason: str) -> Invalid:
        return Invalid([DocumentProblem("", reason, number)])

    try:
        if b'"unreadable"' in line and _UNREAD.decode(line).unreadable:
            return None
        kept = _LINE.decode(line)
    except msgspec.ValidationError as error:
        raise wrong(f"is not an event as `slipway events tail -o json` prints it: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise wrong("is truncated" if "truncated" in str(error) else f"is not JSON: {error}") from error
    try:
        value = bytes(kept.data)
        event = decode_data(kept.type, None if value == b"null" else value)
    except UnknownType:
        return None
    except BadEvent as error:
        raise wrong(f"does not match its schema: {error}") from error
    return Event(
        topic=kept.topic,
        id=kept.id,
        source=kept.source,
        subject=kept.subject,
        time=kept.time,
        event=event,
        stored_at=kept.stored,
    )
