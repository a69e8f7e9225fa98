"""Clock skew in recorded events: implausible timestamps are clamped. Pure.

An event's timestamp is by the clock of its producer, and a single wrong clock would move a whole replay into another
year. A timestamp is compared with the time at which Kafka stored its record, where that is known, and with its
neighbours in the log; one that cannot be right is replaced by the nearest plausible time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, Generic, TypeVar

CLOCK_SECONDS_MAX: Final = 120.0  # the services accept the same distance from the time of storage
STORED_SECONDS: Final = 0.001  # Kafka truncates to milliseconds
NEIGHBOURS: Final = 20
GAP_SECONDS_MAX: Final = 86_400.0  # a longer pause is accepted only if several events follow it
SEVERAL: Final = 5

Item = TypeVar("Item")


def clamped(at: datetime, stored_at: datetime | None) -> float:
    """Seconds since the epoch, clamped to the two minutes before the record was stored."""
    seconds = at.timestamp()
    if stored_at is None:
        return seconds
    stored = stored_at.timestamp()
    return min(max(seconds, stored - CLOCK_SECONDS_MAX), stored + STORED_SECONDS)


class Times(Generic[Item]):
    """Assigns each event of a log a plausible time, in the order of the log. An event is held back until NEIGHBOURS
    following ones are known. `when` returns an event's own timestamp, and when it was stored if that is known.
    `clamped` counts the timestamps that were replaced."""

    def __init__(self, when: Callable[[Item], tuple[datetime, datetime | None]]) -> None:
        self.clamped = 0
        self._when = when
        self._waiting: deque[tuple[Item, float, bool]] = deque()
        self._before: deque[float] = deque(maxlen=NEIGHBOURS)
        self._newest: float | None = None

    def add(self, event: Item) -> Iterator[tuple[Item, float]]:
        """Add the next event; yields events whose time is known now, in seconds since the epoch."""
        own, stored = self._when(event)
        at = clamped(own, stored)
        self._waiting.append((event, at, abs(at - own.timestamp()) > CLOCK_SECONDS_MAX))
        while len(self._waiting) > NEIGHBOURS:
            yield self._next()

    def rest(self) -> Iterator[tuple[Item, float]]:
        """Yield the remaining events at the end of the log."""
        while self._waiting:
            yield self._next()

    def _next(self) -> tuple[Item, float]:
        event, given, was_clamped = self._waiting.popleft()
        at = self._plausible(given)
        self.clamped += was_clamped or at != given
        self._before.append(at)
        self._newest = at if self._newest is None else max(self._newest, at)
        return event, at

    def _plausible(self, at: float) -> float:
        """The time itself, unless most of its neighbours contradict it."""
        newest, after = self._newest, [each for _, each, _ in self._waiting]
        if newest is not None and abs(at - newest) <= CLOCK_SECONDS_MAX:
            return at
        as_late = sum(each >= at - CLOCK_SECONDS_MAX for each in after)
        if newest is None:
            return min(after) if 2 * as_late < len(after) else at
        if at > newest:
            alone = at > newest + GAP_SECONDS_MAX and as_late < SEVERAL
            return newest if alone or 2 * as_late < len(after) else at
        later = [sum(each > at + CLOCK_SECONDS_MAX for each in those) for those in (self._before, after)]
        behind = 2 * later[0] > len(self._before) and 2 * later[1] >= len(after)
        return newest - CLOCK_SECONDS_MAX if behind else at
