"""What clients call, written down before it is sent and again when it is answered. A client that is killed in between
leaves a call without an answer."""

from collections.abc import Callable, Iterable

import msgspec

from tests.histories.history import Call


class Line(msgspec.Struct, frozen=True):
    number: int
    call: Call


class Journal:
    def __init__(self, write: Callable[[bytes], object]) -> None:
        """`write` takes one line at a time, and has kept it when it returns."""
        self._write = write
        self._next = 0

    def note(self, call: Call, number: int | None = None) -> int:
        """Keep a call, or what it has become; returns the number under which it goes on."""
        if number is None:
            number = self._next
            self._next += 1
        self._write(msgspec.json.encode(Line(number, call)) + b"\n")
        return number


def calls(lines: Iterable[bytes]) -> list[Call]:
    """The calls of one journal, each as it was noted last. A last line that was cut off is left out."""
    newest: dict[int, Call] = {}
    for line in lines:
        if line.endswith(b"\n"):
            noted = msgspec.json.decode(line, type=Line)
            newest[noted.number] = noted.call
    return list(newest.values())
