"""Time in which the lease-broker could hear from the holders of leases, over Kafka and over HTTP. Pure.

A deadline counts only this time. While nobody reads the requests of a lease pool, renewals wait in Kafka or in the
outboxes of their holders; leases that ended meanwhile would be granted again while they are in use. So such gaps are
recorded, and a lease that a command could have extended gets the length of the gaps since it was last extended.
"""

from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

QUIET_SECONDS: Final = 5.0
"""Shorter gaps are not recorded: a holder renews when a third of the ttl has passed."""
QUIETS_MAX: Final = 100
ENDS_MAX: Final = 60


class Quiet(msgspec.Struct, frozen=True):
    """Time in which no holder could be heard."""

    began_at: datetime
    ended_at: datetime


class Hearing(msgspec.Struct, frozen=True):
    """One way in which holders are heard, until `heard_at`, except in quiet times."""

    heard_at: datetime
    quiet: tuple[Quiet, ...] = ()  # in order


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """Quiet times of both ways for one lease pool; None for a way in which holders are not heard now."""

    kafka: Sequence[Quiet] | None = ()
    http: Sequence[Quiet] | None = ()
    reads: bool = True  # this process reads the requests of the pool

    @property
    def everyone(self) -> bool:
        return self.kafka is not None and self.http is not None

    @property
    def anyone(self) -> bool:
        return self.kafka is not None or self.http is not None


def heard(before: Hearing | None, at: datetime) -> Hearing:
    """The hearing after everything sent by `at` was received."""
    if before is None:
        return Hearing(at)
    if at <= before.heard_at:
        return before
    quiet = before.quiet
    if (at - before.heard_at).total_seconds() > QUIET_SECONDS:
        quiet = (*quiet, Quiet(before.heard_at, at))
    if len(quiet) > QUIETS_MAX:  # deadlines get too much time rather than too little
        quiet = (Quiet(quiet[0].began_at, quiet[1].ended_at), *quiet[2:])
    return Hearing(at, quiet)


def quiet_time(quiet: Sequence[Quiet], since: datetime) -> timedelta:
    """Time after `since` in which no holder could be heard."""
    return sum((one.ended_at - max(one.began_at, since) for one in quiet if one.ended_at > since), timedelta())


class Reading:
    """Progress of a process in one partition of the requests, looked at from time to time (monotonic seconds)."""

    def __init__(self, now: float, polled: int | None) -> None:
        """`polled` changes with every answer of the broker."""
        self.heard_at: float | None = None
        """Everything that was in the log by then is read; None before that is known of any time."""
        self._looked_at = now
        self._polled = polled
        self._ends = deque[tuple[float, int]](maxlen=ENDS_MAX)  # of the log at a time, not read to yet

    def look(self, now: float, polled: int, end: int, position: int) -> None:
        """Look at the last answer of the broker, which had the end of the log, and at the position read to."""
        if polled != self._polled:
            self._ends.append((self._looked_at, end))
        while self._ends and position >= self._ends[0][1]:
            self.heard_at = self._ends.popleft()[0]
        self._looked_at, self._polled = now, polled
