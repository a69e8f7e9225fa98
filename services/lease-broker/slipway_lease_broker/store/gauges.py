"""Gauges of lease pools for Prometheus: the same numbers as in GET /lease-pools. Locks nothing."""

from typing import Final

from slipway_common.database.postgres import Connection
from slipway_common.observability.metrics import Readings
from slipway_lease_broker.domain.ledger import LIVE, State
from slipway_lease_broker.store import pools
from slipway_lease_broker.store.tables import COUNTED, WAITING, condition

NAMES: Final = (
    "slipway_lease_held_units",
    "slipway_lease_limit_units",
    "slipway_lease_waiting_units",
    "slipway_lease_oldest_wait_seconds",
    "slipway_leases",
    "slipway_lease_tenant_held_units",
    "slipway_lease_tenant_waiting_units",
)
HELD: Final = f"""
SELECT lease_pool_id, state, count(*) AS number FROM leases WHERE {condition(COUNTED)} GROUP BY lease_pool_id, state"""
# The 50 largest tenants of each pool: callers choose the names, and every label value costs memory in Prometheus.
TENANTS: Final = f"""
SELECT lease_pool_id, tenant, held::bigint, waiting::bigint FROM (
    SELECT lease_pool_id, tenant, sum(held) AS held, sum(waiting) AS waiting,
        row_number() OVER (PARTITION BY lease_pool_id ORDER BY sum(held + waiting) DESC, tenant) AS place
    FROM (SELECT lease_pool_id, tenant, units AS held, 0 AS waiting FROM leases WHERE {condition(COUNTED)}
          UNION ALL SELECT lease_pool_id, tenant, 0, waiting_units FROM requests
          WHERE {condition(WAITING)}) AS used
    GROUP BY lease_pool_id, tenant) AS tenants
WHERE place <= 50"""
STATES: Final = (*LIVE, State.LOST)


async def read(db: Connection) -> Readings:
    """Readings of NAMES for the lease pools that are declared or in use."""
    shown = await pools.overview(db)
    leases = {(pool.id, state): 0 for pool in shown for state in STATES}
    leases |= {(row["lease_pool_id"], row["state"]): row["number"] for row in await db.fetch(HELD)}
    tenants = {(row["lease_pool_id"], row["tenant"]): row for row in await db.fetch(TENANTS)}
    return {
        "slipway_lease_held_units": {(pool.id,): pool.held for pool in shown},
        "slipway_lease_limit_units": {
            (pool.id,): pool.limit_units if pool.limit_in_force is None else pool.limit_in_force for pool in shown
        },
        "slipway_lease_waiting_units": {(pool.id,): pool.waiting for pool in shown},
        "slipway_lease_oldest_wait_seconds": {(pool.id,): pool.oldest_wait_seconds or 0 for pool in shown},
        "slipway_leases": leases,
        "slipway_lease_tenant_held_units": {key: row["held"] for key, row in tenants.items()},
        "slipway_lease_tenant_waiting_units": {key: row["waiting"] for key, row in tenants.items()},
    }
