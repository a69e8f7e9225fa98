"""Pace of unleased launches while the lease-broker is unavailable: no faster than its last grants. Pure."""

from datetime import datetime, timedelta

import msgspec


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Last grants of a lease pool: `units` within the hold time that ended with the grant at `last_at`."""

    units: int
    hold_seconds: float
    last_at: datetime

    @property
    def interval(self) -> timedelta:
        """Time between two starts: hold time / units. Within any hold time an outage adds no more units than the lease
        pool granted in the last one."""
        return timedelta(seconds=self.hold_seconds / self.units)


def next_start(pace: Pace | None, not_before: datetime | None, now: datetime) -> datetime | None:
    """Earliest time of the start after one that begins now; None if none may begin now. A lease pool that never granted
    anything has no pace, so nothing starts. Unused time does not accumulate."""
    if pace is None or now < max(not_before or now, pace.last_at + pace.interval):
        return None
    return now + pace.interval
