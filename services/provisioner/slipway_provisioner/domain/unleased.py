"""How fast intents start without a lease while the lease-broker is silent: no faster than it last let them. Pure."""

from datetime import datetime, timedelta

import msgspec


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What a lease pool granted us last: `units` in the hold that ended with the grant at `last_at`."""

    units: int
    hold_seconds: float
    last_at: datetime

    @property
    def interval(self) -> timedelta:
        """Between two starts: as many in a hold as were granted in the last. So whatever an outage adds to what is
        held, within any hold it is no more than the lease pool gave out itself."""
        return timedelta(seconds=self.hold_seconds / self.units)


def next_start(pace: Pace | None, not_before: datetime | None, now: datetime) -> datetime | None:
    """When the start after one that begins now may begin; None when none may begin now. A lease pool that never
    granted anything has no pace: what it would allow is not known. Time without starts is not saved up."""
    if pace is None or now < max(not_before or now, pace.last_at + pace.interval):
        return None
    return now + pace.interval
