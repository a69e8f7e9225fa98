"""Changes to a lease pool at run time by operators and controllers, beside its declared terms (pools.py). Written under
the pool's lock; they apply from the next decision on."""

from datetime import datetime
from typing import Final

from slipway_common.database.postgres import Connection

PIN: Final = "UPDATE lease_pools SET pinned_reason = $2, dirty = true WHERE id = $1"
DRAIN: Final = "UPDATE lease_pools SET drained_reason = $2, dirty = true WHERE id = $1"
REPORT_UNITS: Final = "UPDATE lease_pools SET derived_units = $2, derived_until = $3, dirty = true WHERE id = $1"


async def pin(tx: Connection, lease_pool_id: str, reason: str | None) -> None:
    """Pin the limit to the declared one, so that evidence does not change it; a reason of None unpins it."""
    await tx.execute(PIN, lease_pool_id, reason)


async def drain(tx: Connection, lease_pool_id: str, reason: str | None) -> None:
    """Drain the pool, which stops granting; a reason of None undrains it."""
    await tx.execute(DRAIN, lease_pool_id, reason)


async def report_units(tx: Connection, lease_pool_id: str, units: int, until: datetime) -> None:
    """Record the units that a derived limit follows until then; afterwards the limit keeps its last value."""
    await tx.execute(REPORT_UNITS, lease_pool_id, units, until)
