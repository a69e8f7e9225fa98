"""Pacing of starts: the minimum distance between them. Pure.

The generic cell rate algorithm (ITU-T I.371): each unit that starts moves `paced_until` on by one interval, from now or
from its value in the future. A request that finds it in the past starts at once, so a single job never waits; others
wait until it is near enough. The state is one timestamp per operation of a lease pool (paces.py).
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

START_RATIO: Final = 2
"""Starts per hold and unit of limit. At 1 an empty pool takes a whole hold to fill; at 2 half a hold, and the highest
rate of starts is twice the lowest rate that uses the whole limit."""
MAX_INTERVAL_SECONDS: Final = 30.0
"""Longest interval by default."""
INTERVAL_SECONDS_MIN: Final = 1e-6  # resolution of a timestamp
AHEAD_SECONDS_MAX: Final = 31_536_000  # the longest duration that can be declared; keeps dates within their range


class Pacing(msgspec.Struct, frozen=True):
    """One unit every `interval_seconds` in the long run, `burst` of them at once after a pause. Both above zero."""

    interval_seconds: float
    burst: int = 1

    @property
    def interval(self) -> timedelta:
        return timedelta(seconds=max(self.interval_seconds, INTERVAL_SECONDS_MIN))


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """State of the pacing of one operation: `until` is the theoretical arrival time of its next start, computed with
    this interval."""

    until: datetime
    interval_seconds: float


def default_pacing(limit_units: int, hold_seconds: float, max_interval_seconds: float) -> Pacing:
    """Two starts per hold for each unit of the limit, min(hold / (2 × limit), maximum) between them. Without the
    maximum the second start of a small pool would wait for a quarter of its hold, with every other unit free."""
    return Pacing(min(hold_seconds / (START_RATIO * max(1, limit_units)), max_interval_seconds))


def free_at(paced_until: datetime | None, now: datetime, units: int, pacing: Pacing | None) -> datetime:
    """The time at which `units` may start together; `now` when they may start at once, and always without pacing.

    More units than a burst start like one burst: they wait until nothing lies ahead, and delay later starts instead.
    """
    if pacing is None or paced_until is None:
        return now
    return now + max(timedelta(), paced_until - now - (pacing.burst - min(units, pacing.burst)) * pacing.interval)


def units_now(paced_until: datetime | None, now: datetime, pacing: Pacing) -> int:
    """Number of units that may start now of a request that may be granted in parts."""
    ahead = max(paced_until - now, timedelta()) if paced_until is not None else timedelta()
    return max(0, (pacing.burst * pacing.interval - ahead) // pacing.interval)


def most_ahead(pacing: Pacing | None, limit_units: int, hold_seconds: float) -> timedelta:
    """Maximum distance of `paced_until` from now: a whole limit, at least a hold, and no more than a year. Otherwise
    starts over the limit (of shadow pools, or past their maximum wait) could stop a pool for years."""
    units, interval_seconds = (0, 0.0) if pacing is None else (max(limit_units, pacing.burst), pacing.interval_seconds)
    return timedelta(seconds=min(max(hold_seconds, units * interval_seconds), AHEAD_SECONDS_MAX))


def spend(
    paced_until: datetime | None, now: datetime, units: int, pacing: Pacing | None, most: timedelta = timedelta.max
) -> datetime | None:
    """`paced_until` after `units` started now, at most `most` ahead of now. Unchanged without pacing."""
    if pacing is None:
        return paced_until
    return now + min(max(paced_until or now, now) - now + units * pacing.interval, most)


def repaced(
    paced_until: datetime | None, now: datetime, before: Pacing | None, after: Pacing | None
) -> datetime | None:
    """`paced_until` when the terms change: the same number of starts lies ahead, each at its new interval, but for no
    longer than before, or than one burst takes if that is longer.

    Without the conversion a pool that was slowed down by mistake would stay stopped for the whole mistaken interval.
    Without the bound a pool that is slowed down after many starts would be stopped for days: a whole limit may lie
    ahead, and with a tiny interval that is millions of starts.
    """
    if after is None or before is None or paced_until is None or paced_until <= now:
        return None
    ahead = paced_until - now
    starts, burst = ahead / before.interval, min(after.burst * after.interval, timedelta(seconds=AHEAD_SECONDS_MAX))
    most = max(ahead, burst)
    return now + (most if starts >= most / after.interval else starts * after.interval)
