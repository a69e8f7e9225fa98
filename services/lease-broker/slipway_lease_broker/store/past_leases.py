"""Past leases of a pool for its report: each request with its lease and the result that its holder reported. Locks
nothing."""

from datetime import datetime
from typing import Final

from slipway_common.database.postgres import Connection
from slipway_lease_broker.domain.report import PastLease
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import COUNTED, WAITING, condition

# A lost lease ends when it stops counting. Leases of unleased starts may have no request. Units whose partial release
# is no longer in the history count until the end of the lease.
PAST_LEASES: Final = f"""
SELECT coalesce(r.requested_at, l.granted_at) AS requested_at, l.operation, l.granted_units AS units, l.granted_at,
    l.ended_at, reported.confirmed_at, coalesce(reported.throttled, false) AS throttled,
    coalesce(reported.returned, '[]') AS returned
FROM leases AS l LEFT JOIN requests AS r ON r.lease_pool_id = l.lease_pool_id AND r.id = l.request_id,
    LATERAL (SELECT min(at) FILTER (WHERE kind = 'confirmed') AS confirmed_at, bool_or(kind = 'throttled') AS throttled,
                    jsonb_agg(jsonb_build_array(at, units) ORDER BY id)
                        FILTER (WHERE kind = 'released' AND ({condition(COUNTED, "l.")} OR at < l.ended_at)) AS returned
             FROM history WHERE lease_id = l.id) AS reported
WHERE l.lease_pool_id = $1 AND ({condition(COUNTED, "l.")} OR l.ended_at >= $2)
UNION ALL
SELECT requested_at, operation, waiting_units, NULL, NULL, NULL, false, '[]' FROM requests
WHERE lease_pool_id = $1 AND {condition(WAITING)}
ORDER BY requested_at DESC LIMIT $3"""


async def since(db: Connection, lease_pool_id: str, at: datetime, *, limit: int) -> list[PastLease]:
    """Leases and requests that overlap the time from `at` on, newest first."""
    return structs(await db.fetch(PAST_LEASES, lease_pool_id, at, limit), PastLease)
