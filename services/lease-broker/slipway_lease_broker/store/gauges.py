"""Gauges of lease pools for Prometheus: the same numbers as in GET /lease-pools. Locks nothing.

They are read of some pools at a time, so that a reading costs the same however many leases and requests there are.
"""

from collections.abc import Mapping
from typing import Any, Final

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
POOLS_AT_ONCE: Final = 200
ROWS_AT_ONCE: Final = 10_000
"""Leases and requests of the pools that are read at a time; more if the last of these has more."""
# `found` counts one pool more than are read, if there is one.
NEXT_POOLS: Final = f"""
SELECT id, found FROM (
    SELECT id, count(*) OVER () AS found, row_number() OVER pools AS number,
        sum(rows) OVER pools - rows AS rows_before
    FROM (SELECT id, held_units + waiting_requests AS rows FROM lease_pools
        WHERE id > $1 AND {pools.SHOWN_POOL} ORDER BY id LIMIT {POOLS_AT_ONCE + 1}) AS next
    WINDOW pools AS (ORDER BY id ROWS UNBOUNDED PRECEDING)) AS counted
WHERE number <= {POOLS_AT_ONCE} AND rows_before < {ROWS_AT_ONCE} ORDER BY id"""
HELD: Final = f"""
SELECT lease_pool_id, state, count(*) AS number FROM leases
WHERE lease_pool_id = ANY($1) AND {condition(COUNTED)} GROUP BY lease_pool_id, state"""
# The 50 largest tenants of each pool: callers choose the names, and every label value costs memory in Prometheus.
TENANTS: Final = f"""
SELECT lease_pool_id, tenant, held::bigint, waiting::bigint FROM (
    SELECT lease_pool_id, tenant, sum(held) AS held, sum(waiting) AS waiting,
        row_number() OVER (PARTITION BY lease_pool_id ORDER BY sum(held + waiting) DESC, tenant) AS place
    FROM (SELECT lease_pool_id, tenant, units AS held, 0 AS waiting FROM leases
          WHERE lease_pool_id = ANY($1) AND {condition(COUNTED)}
          UNION ALL SELECT lease_pool_id, tenant, 0, waiting_units FROM requests
          WHERE lease_pool_id = ANY($1) AND {condition(WAITING)}) AS used
    GROUP BY lease_pool_id, tenant) AS tenants
WHERE place <= 50"""
STATES: Final = (*LIVE, State.LOST)


async def read_next(db: Connection, after: str) -> tuple[Mapping[str, Readings], bool]:
    """Readings of NAMES by lease pool, of the next pools that are declared or in use, whose ids follow `after`, in
    their order; and whether there are more."""
    following = await db.fetch(NEXT_POOLS, after)
    ids = [row["id"] for row in following]
    found: dict[str, dict[str, dict[tuple[str, ...], Any]]] = {id_: {name: {} for name in NAMES} for id_ in ids}
    for pool in await pools.overview(db, ids):
        of_pool, labels = found[pool.id], (pool.id,)
        of_pool["slipway_lease_held_units"][labels] = pool.held
        of_pool["slipway_lease_limit_units"][labels] = pool.limit
        of_pool["slipway_lease_waiting_units"][labels] = pool.waiting
        of_pool["slipway_lease_oldest_wait_seconds"][labels] = pool.oldest_wait_seconds or 0
        # A pool has a value for every state, so that series fall to zero instead of ending.
        of_pool["slipway_leases"] = {(pool.id, state): 0 for state in STATES}
    for row in await db.fetch(HELD, ids):
        found[row["lease_pool_id"]]["slipway_leases"][row["lease_pool_id"], row["state"]] = row["number"]
    for row in await db.fetch(TENANTS, ids):
        of_pool, of_tenant = found[row["lease_pool_id"]], (row["lease_pool_id"], row["tenant"])
        of_pool["slipway_lease_tenant_held_units"][of_tenant] = row["held"]
        of_pool["slipway_lease_tenant_waiting_units"][of_tenant] = row["waiting"]
    return found, len(ids) < max((row["found"] for row in following), default=0)
