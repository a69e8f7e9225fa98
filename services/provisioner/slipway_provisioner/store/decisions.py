"""Planning decisions as rows. A decision to do nothing that equals the last one only updates it."""

from typing import Any, Final

from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_provisioner.domain.planning import Plan

SELECT: Final = "SELECT id::text, pool_id, at, last_at, times, launched, reason, details FROM decision"
REPEAT: Final = """
UPDATE decision SET last_at = slipway_clock(), times = times + 1, details = $3
WHERE id = (SELECT id FROM decision WHERE pool_id = $1 ORDER BY at DESC, id DESC LIMIT 1)
    AND launched = 0 AND reason = $2
RETURNING id::text"""
INSERT: Final = """
INSERT INTO decision (id, pool_id, at, last_at, launched, reason, details)
VALUES ($1, $2, slipway_clock(), slipway_clock(), $3, $4, $5)"""


async def record(tx: Connection, pool_id: str, plan: Plan) -> str:
    """Store a decision with its reasons; returns its id."""
    reason = plan.details["reason"]
    if not (plan.units or plan.cancel or plan.stop):
        repeated: str | None = await tx.fetchval(REPEAT, pool_id, reason, plan.details)
        if repeated is not None:
            return repeated
    decision_id = new_id()
    await tx.execute(INSERT, decision_id, pool_id, plan.units, reason, plan.details)
    return decision_id


async def recent(db: Connection, pool_id: str, limit: int) -> list[dict[str, Any]]:
    """Decisions of a pool, newest first."""
    rows = await db.fetch(f"{SELECT} WHERE pool_id = $1 ORDER BY at DESC, id DESC LIMIT $2", pool_id, limit)
    return [dict(row) for row in rows]


async def get(db: Connection, decision_id: str) -> dict[str, Any] | None:
    row = await db.fetchrow(f"{SELECT} WHERE id = $1", decision_id)
    return None if row is None else dict(row)
