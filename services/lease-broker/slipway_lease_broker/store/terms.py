"""What people and controllers change of a lease pool while it works, beside its declared terms (pools.py). Written
under the pool's lock; the next decision goes by it."""

from datetime import datetime
from typing import Final

from slipway_common.postgres import Connection

PIN: Final = "UPDATE lease_pools SET pinned_reason = $2, dirty = true WHERE id = $1"
DRAIN: Final = "UPDATE lease_pools SET drained_reason = $2, dirty = true WHERE id = $1"
REPORT_UNITS: Final = "UPDATE lease_pools SET derived_units = $2, derived_until = $3, dirty = true WHERE id = $1"


async def pin(tx: Connection, lease_pool_id: str, reason: str | None) -> None:
    """Hold the declared limit whatever evidence says; None: no longer."""
    await tx.execute(PIN, lease_pool_id, reason)


async def drain(tx: Connection, lease_pool_id: str, reason: str | None) -> None:
    """Let nothing start; None: let it again."""
    await tx.execute(DRAIN, lease_pool_id, reason)


async def report_units(tx: Connection, lease_pool_id: str, units: int, until: datetime) -> None:
    """What a derived limit follows until then, and holds afterwards."""
    await tx.execute(REPORT_UNITS, lease_pool_id, units, until)
