"""Workers that a pool needs or can spare. Pure: no clock, no randomness, no I/O."""

from collections.abc import Iterable
from math import ceil

from slipway_provisioner.domain.pool import Demand, Fleet, Pool


def tasks(demands: Iterable[Demand], *, trust_stale: bool) -> int:
    """Tasks that need a worker: pending + claimed − gone, over all sources.

    A report is a sample while the fleet is current: without `gone`, a worker that ends just after the sample would be
    replaced needlessly. A stale source causes no launches, but its last report still protects workers (`trust_stale`).
    """
    return sum(max(0, d.pending + d.claimed - d.gone) for d in demands if trust_stale or not d.stale)


def wanted(pool: Pool, count: int) -> int:
    """Serving workers for `count` tasks: count × ratio, exact, rounded up, within the pool's limits."""
    return max(pool.min_capacity, min(ceil(count * pool.scaling_ratio), pool.max_capacity))


def places_freed_max(pool: Pool) -> int:
    """Stuck workers that may be replaced at most: a tenth of the maximum, but one. Each is a machine that is billed and
    does nothing, so the others go on holding their places."""
    return max(1, pool.max_capacity // 10)


def freed(pool: Pool, fleet: Fleet) -> int:
    """Places of stuck workers that others may take."""
    return min(fleet.stuck, places_freed_max(pool))


def missing(pool: Pool, count: int, fleet: Fleet) -> int:
    """Serving workers that `count` tasks want beyond those that serve, whether or not there is room for them."""
    return max(0, wanted(pool, count) - fleet.serving)


def shortfall(pool: Pool, count: int, fleet: Fleet) -> int:
    """Workers to launch now for `count` tasks; never negative.

    Keeps serving <= max and serving + leaving <= max + min + freed places. Leaving workers count towards the maximum,
    so that a slow delete does not pay for a second machine; only the minimum may be refilled beside them, and only
    once.
    """
    room = pool.max_capacity - fleet.serving - fleet.leaving + freed(pool, fleet)
    refill = min(pool.min_capacity - fleet.serving, room + pool.min_capacity)
    return max(0, min(missing(pool, count, fleet), max(room, refill)))


def surplus(pool: Pool, count: int, fleet: Fleet) -> int:
    """Serving workers beyond those wanted for `count` tasks."""
    return max(0, fleet.serving - wanted(pool, count))
