"""Planning decisions as rows. A decision to do nothing that equals the last one only updates it."""

from typing import Any, Final

import sqlalchemy as sa

from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_provisioner.domain.planning import Plan
from slipway_provisioner.store.tables import decision

SELECT: Final = sa.select(sa.cast(decision.c.id, sa.Text).label("id"), *list(decision.c)[1:])
GET: Final = Statement(SELECT.where(decision.c.id == sa.bindparam("id")))
RECENT: Final = Statement(
    SELECT.where(decision.c.pool_id == sa.bindparam("pool_id"))
    .order_by(decision.c.at.desc(), decision.c.id.desc())
    .limit(sa.bindparam("most", type_=sa.Integer))
)
REPEAT: Final = """
UPDATE decision SET last_at = slipway_clock(), times = times + 1, details = $3
WHERE id = (SELECT id FROM decision WHERE pool_id = $1 ORDER BY at DESC, id DESC LIMIT 1)
    AND launched = 0 AND reason = $2
RETURNING id::text"""
INSERT: Final = Statement(
    sa.insert(decision).values(
        {name: sa.bindparam(name) for name in ("id", "pool_id", "launched", "reason", "details")}
        | dict.fromkeys(("at", "last_at"), sa.func.slipway_clock())
    )
)


async def record(tx: Connection, pool_id: str, plan: Plan) -> str:
    """Store a decision with its reasons; returns its id."""
    reason = plan.details["reason"]
    if not (plan.units or plan.cancel or plan.stop or plan.drain or plan.mark or plan.unmark):
        repeated: str | None = await tx.fetchval(REPEAT, pool_id, reason, plan.details)
        if repeated is not None:
            return repeated
    decision_id = new_id()
    values = INSERT.arguments(id=decision_id, pool_id=pool_id, launched=plan.units, reason=reason, details=plan.details)
    await tx.execute(INSERT.text, *values)
    return decision_id


async def adopted(tx: Connection, pool_id: str, *, by: str) -> str:
    """Store the decision of a person to adopt orphan instances; returns its id."""
    decision_id = new_id()
    reason = f"orphan instances were adopted by {by}"
    values = INSERT.arguments(id=decision_id, pool_id=pool_id, launched=0, reason=reason, details={"reason": reason})
    await tx.execute(INSERT.text, *values)
    return decision_id


async def recent(db: Connection, pool_id: str, limit: int) -> list[dict[str, Any]]:
    """Decisions of a pool, newest first."""
    rows = await db.fetch(RECENT.text, *RECENT.arguments(pool_id=pool_id, most=limit))
    return [dict(row) for row in rows]


async def get(db: Connection, decision_id: str) -> dict[str, Any] | None:
    row = await db.fetchrow(GET.text, *GET.arguments(id=decision_id))
    return None if row is None else dict(row)
