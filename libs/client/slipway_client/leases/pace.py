"""Pace of unleased starts while the broker is unavailable: the pool's last known rate. Pure: time and chance are
arguments.

A lease pool of limit L and hold H sustains L starts per H seconds, whatever its pacing allows for a while. A start is
charged to the lease pool as soon as the broker is back.
"""

from math import inf

import msgspec
from msgspec.structs import replace

from slipway_api.http.lease_pools import LeasePool
from slipway_client.view.phrases import limit_in_force


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Last known terms of a lease pool. `waiting_units` were queued then. `next_start_at` (wall clock, seconds) is when
    this host's next start may be; 0: there was none yet."""

    limit_units: int
    hold_seconds: float
    interval_seconds: float = 0.0
    waiting_units: int = 0
    next_start_at: float = 0.0

    @property
    def start_seconds(self) -> float:
        """Seconds between two starts of one unit: the pool's pacing or its sustained rate, whichever is slower."""
        return max(self.interval_seconds, self.hold_seconds / self.limit_units) if self.limit_units > 0 else inf


def unknown(hold_seconds: float) -> Pace:
    """Pace for a lease pool that was never seen: as if its limit were 1."""
    return Pace(limit_units=1, hold_seconds=hold_seconds)


def seen(pool: LeasePool, operation: str, before: Pace | None) -> Pace:
    """Pace of an operation from the terms of a lease pool. A drained pool lets nothing start, also without its
    broker."""
    in_force = pool.pacing_in_force
    pacing = in_force.operations.get(operation, in_force.default)
    return Pace(
        limit_units=limit_in_force(pool),
        hold_seconds=pool.hold_seconds,
        interval_seconds=0.0 if pacing is None else pacing.interval_seconds,
        waiting_units=pool.waiting,
        next_start_at=before.next_start_at if before else 0.0,
    )


def slot(pace: Pace, units: int, now: float, chance: float) -> tuple[float, Pace]:
    """Time at which `units` may start (wall clock, seconds; infinite: never), and the pace after them.

    The first start of an outage is at a random time within the span that all queued units would take, since as many
    hosts begin at the same moment; later ones on this host keep the pace's interval.
    """
    if pace.start_seconds == inf:
        return inf, pace
    start_at = pace.next_start_at
    if start_at <= now:
        start_at = now + chance * pace.start_seconds * max(1, pace.waiting_units)
    return start_at, replace(pace, next_start_at=start_at + pace.start_seconds * units)
