"""Reception of lease commands, over Kafka and over HTTP: until when they were received, and the downtimes before. Pure.

A deadline counts only time in which commands could be received. While nobody reads the requests of a lease pool,
renewals wait in Kafka or in the outboxes of their holders; leases that ended meanwhile would be granted again while
they are in use. So downtimes are recorded, and a lease whose deadlines a command could have moved gets the downtimes
since it was last extended.
"""

from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

DOWNTIME_SECONDS: Final = 5.0
"""Shorter interruptions are no downtimes: a holder renews when a third of the TTL has passed."""
DOWNTIMES_MAX: Final = 100
ENDS_MAX: Final = 60


class Downtime(msgspec.Struct, frozen=True):
    """Time in which commands could not be received."""

    began_at: datetime
    ended_at: datetime


class Reception(msgspec.Struct, frozen=True):
    """Commands of one way in that were sent by `received_until` have been received."""

    received_until: datetime
    downtimes: tuple[Downtime, ...] = ()  # in order


class Receiving(msgspec.Struct, frozen=True, kw_only=True):
    """Downtimes of both ways in for one lease pool; None for one that does not receive commands now."""

    kafka: Sequence[Downtime] | None = ()
    http: Sequence[Downtime] | None = ()
    reads: bool = True  # this process reads the requests of the pool

    @property
    def both(self) -> bool:
        return self.kafka is not None and self.http is not None

    @property
    def either(self) -> bool:
        return self.kafka is not None or self.http is not None


def continued(before: Reception | None, until: datetime) -> Reception:
    """The reception after everything sent by `until` was received."""
    if before is None:
        return Reception(until)
    if until <= before.received_until:
        return before
    downtimes = before.downtimes
    if (until - before.received_until).total_seconds() > DOWNTIME_SECONDS:
        downtimes = (*downtimes, Downtime(before.received_until, until))
    if len(downtimes) > DOWNTIMES_MAX:  # deadlines get too much time rather than too little
        downtimes = (Downtime(downtimes[0].began_at, downtimes[1].ended_at), *downtimes[2:])
    return Reception(until, downtimes)


def set_back(before: Reception, until: datetime, now: datetime) -> Reception:
    """The reception once the clock is `now`, when everything sent by `until` has been received.

    Nothing was received in the future: the clock has been set back since. Otherwise no downtime would be noticed before
    it is where it was, and one that it has jumped over would postpone deadlines.
    """
    if before.received_until <= now:
        return before
    downtimes = (Downtime(one.began_at, min(one.ended_at, until)) for one in before.downtimes if one.began_at < until)
    return Reception(until, tuple(downtimes))


def downtime_since(downtimes: Sequence[Downtime], since: datetime) -> timedelta:
    """Length of the downtimes after `since`."""
    return sum((one.ended_at - max(one.began_at, since) for one in downtimes if one.ended_at > since), timedelta())


class Reading:
    """Progress of a process in one partition of the requests, as observed from time to time (monotonic seconds)."""

    def __init__(self, now: float, polled: int | None) -> None:
        """`polled` changes with every answer of the broker."""
        self.received_until: float | None = None
        """Everything that was in the log by then is read; None before that is known of any time."""
        self._observed_at = now
        self._polled = polled
        self._ends = deque[tuple[float, int]](maxlen=ENDS_MAX)  # of the log at a time, not read to yet

    def observe(self, now: float, polled: int, end: int, position: int) -> None:
        """Observe the last answer of the broker, which had the end of the log, and the position read to."""
        if polled != self._polled:
            self._ends.append((self._observed_at, end))
        while self._ends and position >= self._ends[0][1]:
            self.received_until = self._ends.popleft()[0]
        self._observed_at, self._polled = now, polled
