"""Pace of unleased launches: last grants and the earliest time of the next start. All replicas share one row per lease
pool, so they keep one pace together."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slipway_api.events.lifecycle import WAITING
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_provisioner.domain.unleased import Pace
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.configs import MAY_START
from slipway_provisioner.store.tables import lease_request, unleased_pace

C: Final = unleased_pace.c
PENDING: Final = Statement(sa.select(lease_request.c.lease_pool_id).distinct().order_by(lease_request.c.lease_pool_id))
_PACE: Final = postgresql.insert(unleased_pace).values(lease_pool_id=sa.bindparam("lease_pool_id"))
LOCK: Final = Statement(
    _PACE.on_conflict_do_update(index_elements=[C.lease_pool_id], set_={"next_at": C.next_at}).returning(C.next_at)
)
SPEND: Final = Statement(
    sa.update(unleased_pace).where(C.lease_pool_id == sa.bindparam("pool")).values(next_at=sa.bindparam("next_at"))
)
PACE: Final = """
SELECT sum(l.granted_units)::int AS units, last.hold_seconds, last.granted_at AS last_at
FROM (
    SELECT granted_at, extract(epoch FROM hold_until - granted_at)::float8 AS hold_seconds FROM lease
    WHERE lease_pool_id = $1 AND granted_units > 0 ORDER BY granted_at DESC LIMIT 1) AS last
JOIN lease l ON l.granted_at > last.granted_at - last.hold_seconds * interval '1 s'
WHERE l.lease_pool_id = $1 AND last.hold_seconds > 0 GROUP BY last.granted_at, last.hold_seconds"""
# Request ids are ordered by time.
LONGEST: Final = f"""
SELECT r.id FROM lease_request r
JOIN launch_config c ON c.id = r.launch_config_id
JOIN launch_config_name n ON n.name = c.name JOIN worker_pool p ON p.id = c.pool_id
WHERE r.lease_pool_id = $1 AND {MAY_START}
    AND EXISTS (
        SELECT FROM worker w
        WHERE w.request_id = r.id AND w.state IN ({states(WAITING)}) AND w.lease_id IS NULL)
ORDER BY r.id LIMIT 1"""


async def waiting(db: Connection) -> list[str]:
    """Lease pools with pending requests."""
    return [row["lease_pool_id"] for row in await db.fetch(PENDING.text)]


async def lock(tx: Connection, lease_pool_id: str) -> datetime | None:
    """Lock the pace of a lease pool, before any other lock; returns the earliest time of the next start, or None."""
    not_before: datetime | None = await tx.fetchval(LOCK.text, *LOCK.arguments(lease_pool_id=lease_pool_id))
    return not_before


async def pace(tx: Connection, lease_pool_id: str) -> Pace | None:
    """Pace of a lease pool; None if it never granted anything."""
    row = await tx.fetchrow(PACE, lease_pool_id)
    return None if row is None else Pace(**row)


async def longest_waiting(tx: Connection, lease_pool_id: str) -> str | None:
    """Oldest request under which a worker may start; None if there is none."""
    request_id: str | None = await tx.fetchval(LONGEST, lease_pool_id)
    return request_id


async def spend(tx: Connection, lease_pool_id: str, next_at: datetime) -> None:
    await tx.execute(SPEND.text, *SPEND.arguments(pool=lease_pool_id, next_at=next_at))
