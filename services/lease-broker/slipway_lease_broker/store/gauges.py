"""What there is, for Prometheus: the same numbers as people see. Locks nothing."""

from typing import Final

from slipway_common.metrics import Readings
from slipway_common.postgres import Connection
from slipway_lease_broker.store import pools

NAMES: Final = (
    "slipway_lease_held_units", "slipway_lease_limit_units", "slipway_lease_waiting_units",
    "slipway_lease_oldest_wait_seconds", "slipway_leases",
)  # fmt: skip
COUNTED: Final = """
SELECT lease_pool_id, state, count(*)::int AS number FROM leases WHERE ended_at IS NULL
GROUP BY lease_pool_id, state"""
STATES: Final = ("reserved", "confirmed", "lost")


async def read(db: Connection) -> Readings:
    """Readings of NAMES; of lease pools that are in use or declared."""
    shown = await pools.overview(db)
    leases = {(pool.id, state): 0 for pool in shown for state in STATES}
    leases |= {(row["lease_pool_id"], row["state"]): row["number"] for row in await db.fetch(COUNTED)}
    return {
        "slipway_lease_held_units": {(pool.id,): pool.held for pool in shown},
        "slipway_lease_limit_units": {(pool.id,): pool.limit_units for pool in shown},
        "slipway_lease_waiting_units": {(pool.id,): pool.waiting for pool in shown},
        "slipway_lease_oldest_wait_seconds": {(pool.id,): pool.oldest_wait_seconds or 0 for pool in shown},
        "slipway_leases": leases,
    }
