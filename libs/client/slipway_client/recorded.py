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
    """One record of `topic`. `unreadable` says why it could not be read when it was kept."""

    topic: str
    id: str
    source: str
    type: str
    time: Time
    subject: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")
    unreadable: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`event` is None for a tombstone of `subject`."""

    topic: str
    id: str
    source: str
    subject: str
    time: datetime
    event: Any


_LINE: Final = msgspec.json.Decoder(Line)


def events(file: Path) -> Iterator[Event]:
    """The events of a file, in its order. Raises Invalid, with the line, for the first that is none."""
    found = False
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    found = True
                    yield _event(line, number)
    except OSError as error:
        raise Invalid([Problem("", f"cannot be read: {error.strerror}")]) from error
    if not found:
        raise Invalid([Problem("", "holds no event")])


def _event(line: bytes, number: int) -> Event:
    def wrong(reason: str) -> Invalid:
        return Invalid([Problem("", reason, number)])

    try:
        kept = _LINE.decode(line)
    except msgspec.ValidationError as error:
        raise wrong(f"is no event: {error}; `slipway events tail -o json` prints such lines") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise wrong("is cut off" if "truncated" in str(error) else f"is not JSON: {error}") from error
    if kept.unreadable:
        raise wrong(f"could not be read when it was kept: {kept.unreadable}")
    try:
        value = bytes(kept.data)
        event = decode_data(kept.type, None if value == b"null" else value)
    except UnknownType as error:
        raise wrong(f"{error}: of a newer version, or misspelled") from error
    except BadEvent as error:
        raise wrong(f"does not fit its schema: {error}") from error
    return Event(
        topic=kept.topic, id=kept.id, source=kept.source, subject=kept.subject, time=kept.time, event=event
    )
