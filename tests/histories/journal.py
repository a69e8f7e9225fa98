"""Journal of client calls, written before each call is sent and again when it is answered. A client that is killed in
between leaves a call without an answer."""

from collections.abc import Callable, Iterable

import msgspec

from tests.histories.history import Call


class Line(msgspec.Struct, frozen=True):
    number: int
    call: Call


class Journal:
    def __init__(self, write: Callable[[bytes], object]) -> None:
        """`write` takes one line at a time and has stored it when it returns."""
        self._write = write
        self._next = 0

    def note(self, call: Call, number: int | None = None) -> int:
        """Record a call or its update; returns the number of the call."""
        if number is None:
            number = self._next
            self._next += 1
        self._write(msgspec.json.encode(Line(number, call)) + b"\n")
        return number


def calls(lines: Iterable[bytes]) -> list[Call]:
    """The calls of one journal in their last recorded state. A truncated last line is left out."""
    newest: dict[int, Call] = {}
    for line in lines:
        if line.endswith(b"\n"):
            noted = msgspec.json.decode(line, type=Line)
            newest[noted.number] = noted.call
    return list(newest.values())
