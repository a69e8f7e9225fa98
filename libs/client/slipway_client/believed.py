"""When recorded events happened, as far as their times can be believed. Pure.

An event names its own time, by the clock of whoever tells it, and one clock that is wrong would carry a whole replay
into another year. So a time is held against when its record was stored, where that is known, and against its
neighbours in the log: the nearest time that can be right takes the place of one that cannot.
"""

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, Generic, TypeVar

CLOCK_SECONDS_MAX: Final = 120.0  # as far from when it was stored the services believe a time, too
STORED_SECONDS: Final = 0.001  # Kafka counts milliseconds, and cuts off the rest
NEIGHBOURS: Final = 20
GAP_SECONDS_MAX: Final = 86_400.0  # a longer rest is believed once several events come behind it
SEVERAL: Final = 5

Told = TypeVar("Told")


def by_store(told_at: datetime, stored_at: datetime | None) -> float:
    """Seconds since the epoch: a fact is told within two minutes, and not before it happens."""
    at = told_at.timestamp()
    if stored_at is None:
        return at
    stored = stored_at.timestamp()
    return min(max(at, stored - CLOCK_SECONDS_MAX), stored + STORED_SECONDS)


class Times(Generic[Told]):
    """Gives each event of a log the time at which it is taken to have happened, in the order of the log. An event waits
    until so many that follow it are known. `when` says what is known of one event: (told, stored or None)."""

    def __init__(self, when: Callable[[Told], tuple[datetime, datetime | None]]) -> None:
        self.clamped = 0
        self._when = when
        self._waiting: deque[tuple[Told, float, bool]] = deque()
        self._before: deque[float] = deque(maxlen=NEIGHBOURS)
        self._newest: float | None = None

    def add(self, event: Told) -> Iterator[tuple[Told, float]]:
        """The next event; yields those whose time is known by it, in seconds since the epoch."""
        told, stored = self._when(event)
        at = by_store(told, stored)
        self._waiting.append((event, at, abs(at - told.timestamp()) > CLOCK_SECONDS_MAX))
        while len(self._waiting) > NEIGHBOURS:
            yield self._next()

    def rest(self) -> Iterator[tuple[Told, float]]:
        """Those that still wait; nothing follows them."""
        while self._waiting:
            yield self._next()

    def _next(self) -> tuple[Told, float]:
        event, told, was_clamped = self._waiting.popleft()
        at = self._plausible(told)
        self.clamped += was_clamped or at != told
        self._before.append(at)
        self._newest = at if self._newest is None else max(self._newest, at)
        return event, at

    def _plausible(self, at: float) -> float:
        """The time itself, if most of those around it do not speak against it."""
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
