"""Why: every decision as a row. A decision to do nothing that repeats the last one only renews it."""

from typing import Any, Final

from slipway_common.ids import new_id
from slipway_common.postgres import Connection
from slipway_provisioner.domain.planning import Plan

SELECT: Final = "SELECT id::text, pool_id, at, last_at, times, launched, because, why FROM decision"
REPEAT: Final = """
UPDATE decision SET last_at = slipway_clock(), times = times + 1, why = $3
WHERE id = (SELECT id FROM decision WHERE pool_id = $1 ORDER BY at DESC, id DESC LIMIT 1)
    AND launched = 0 AND because = $2
RETURNING id::text"""
INSERT: Final = """
INSERT INTO decision (id, pool_id, at, last_at, launched, because, why)
VALUES ($1, $2, slipway_clock(), slipway_clock(), $3, $4, $5)"""


async def record(tx: Connection, pool_id: str, plan: Plan) -> str:
    """Keep a plan's reasons; returns the decision's id."""
    because = plan.why["because"]
    if not (plan.units or plan.cancel or plan.tell):
        repeated: str | None = await tx.fetchval(REPEAT, pool_id, because, plan.why)
        if repeated is not None:
            return repeated
    decision_id = new_id()
    await tx.execute(INSERT, decision_id, pool_id, plan.units, because, plan.why)
    return decision_id


async def recent(db: Connection, pool_id: str, limit: int) -> list[dict[str, Any]]:
    """Newest decisions of a pool first."""
    rows = await db.fetch(f"{SELECT} WHERE pool_id = $1 ORDER BY at DESC, id DESC LIMIT $2", pool_id, limit)
    return [dict(row) for row in rows]


async def get(db: Connection, decision_id: str) -> dict[str, Any] | None:
    row = await db.fetchrow(f"{SELECT} WHERE id = $1", decision_id)
    return None if row is None else dict(row)
