"""A lease pool's past, as a report on it is made of: each request with its lease, and what its holder told. Locks
nothing."""

from datetime import datetime
from typing import Final

from slipway_common.postgres import Connection
from slipway_lease_broker.domain.report import Stay
from slipway_lease_broker.store.rows import structs

# A lost lease ends when it stops counting. What was granted without being asked for has no request. What history has
# forgotten of units given back counts until the end.
STAYS: Final = """
SELECT coalesce(r.asked_at, l.granted_at) AS asked_at, l.granted_units AS units, l.granted_at, l.ended_at,
    told.confirmed_at, coalesce(told.throttled, false) AS throttled, coalesce(told.returned, '[]') AS returned
FROM leases AS l LEFT JOIN requests AS r ON r.lease_pool_id = l.lease_pool_id AND r.id = l.request_id,
    LATERAL (SELECT min(at) FILTER (WHERE kind = 'confirmed') AS confirmed_at, bool_or(kind = 'throttled') AS throttled,
                    jsonb_agg(jsonb_build_array(at, units) ORDER BY id)
                        FILTER (WHERE kind = 'released' AND (l.ended_at IS NULL OR at < l.ended_at)) AS returned
             FROM history WHERE lease_id = l.id) AS told
WHERE l.lease_pool_id = $1 AND (l.ended_at IS NULL OR l.ended_at >= $2)
UNION ALL
SELECT asked_at, waiting_units, NULL, NULL, NULL, false, '[]' FROM requests
WHERE lease_pool_id = $1 AND waiting_units > 0 AND NOT lapsed
ORDER BY asked_at DESC LIMIT $3"""


async def since(db: Connection, lease_pool_id: str, at: datetime, *, limit: int) -> list[Stay]:
    """All that touched the time from `at` on, the newest first."""
    return structs(await db.fetch(STAYS, lease_pool_id, at, limit), Stay)
