"""How many workers a pool still needs. Pure: no clock, no chance, no I/O."""

from collections.abc import Iterable
from math import ceil

from slipway_provisioner.domain.pool import Demand, Fleet, Pool


def tasks(demands: Iterable[Demand], *, trust_stale: bool) -> int:
    """Tasks that want a worker: pending + claimed − gone, over all sources.

    A report is a sample and the fleet is now: without `gone`, a worker that ends just after the sample is replaced
    for nothing. A stale source asks for no launch, yet its last word still protects workers (`trust_stale`).
    """
    return sum(max(0, d.pending + d.claimed - d.gone) for d in demands if trust_stale or not d.stale)


def wanted(pool: Pool, count: int) -> int:
    """Serving workers that `count` tasks call for. Need rounds up; the ratio is exact; zero stays zero."""
    return max(pool.min_capacity, min(ceil(count * pool.scaling_ratio), pool.max_capacity))


def shortfall(pool: Pool, count: int, fleet: Fleet) -> int:
    """Workers to launch now for `count` tasks; never negative.

    Keeps serving <= max and serving + leaving <= max + min. Leaving workers use up the maximum, since a slow delete
    must not buy a second machine; the minimum may be refilled beside them, but only once over.
    """
    room = pool.max_capacity - fleet.serving - fleet.leaving
    refill = min(pool.min_capacity - fleet.serving, room + pool.min_capacity)
    return max(0, min(wanted(pool, count) - fleet.serving, max(room, refill)))


def surplus(pool: Pool, count: int, fleet: Fleet) -> int:
    """Serving workers beyond what `count` tasks call for."""
    return max(0, fleet.serving - wanted(pool, count))
