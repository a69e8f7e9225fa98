"""Launch stops: no launches anywhere, in an account or in a pool, until a time or until the stop is lifted."""

from datetime import datetime
from typing import Any, Final

from slipway_common.database.postgres import Connection

# Excludes every start statement, which shares this row: a start that begins later sees the stop.
EXCLUDE_STARTS: Final = "SELECT FROM launch_stop_guard FOR UPDATE"
PUT: Final = """
INSERT INTO launch_stop (scope, scope_id, reason, by, until, at) VALUES ($1, $2, $3, $4, $5, slipway_clock())
ON CONFLICT (scope, scope_id) DO UPDATE SET reason = $3, by = $4, until = $5, at = slipway_clock()"""
LIFT: Final = "DELETE FROM launch_stop WHERE scope = $1 AND scope_id = $2"
# Every pool is planned again at once, and when the stop expires.
MARK: Final = """
INSERT INTO dirty_pool (pool_id, reason, due_at)
SELECT id, 'launch stop', coalesce($1, slipway_clock()) FROM worker_pool WHERE NOT deleted ORDER BY id"""
IN_FORCE: Final = """
SELECT scope, scope_id, reason, by, until, at FROM launch_stop WHERE until IS NULL OR until > slipway_clock()
ORDER BY scope, scope_id"""
TARGETS: Final = {
    "account": "SELECT EXISTS (SELECT FROM account WHERE id = $1)",
    "pool": "SELECT EXISTS (SELECT FROM worker_pool WHERE id = $1 AND NOT deleted)",
}


async def in_force(db: Connection) -> list[dict[str, Any]]:
    """Launch stops in force now."""
    return [dict(row) for row in await db.fetch(IN_FORCE)]


async def has_target(tx: Connection, scope: str, scope_id: str) -> bool:
    """True if the account or pool exists. Scope "all" has no id."""
    return not scope_id if scope == "all" else bool(await tx.fetchval(TARGETS[scope], scope_id))


async def put(tx: Connection, scope: str, scope_id: str, *, reason: str, by: str, until: datetime | None) -> None:
    """Set a launch stop, or replace its reason and end."""
    await tx.execute(EXCLUDE_STARTS)
    await tx.execute(PUT, scope, scope_id, reason, by, until)
    await tx.execute(MARK, None)
    if until is not None:
        await tx.execute(MARK, until)


async def lift(tx: Connection, scope: str, scope_id: str) -> bool:
    """Lift a launch stop; False if none was set."""
    await tx.execute(EXCLUDE_STARTS)
    deleted: str = await tx.execute(LIFT, scope, scope_id)
    await tx.execute(MARK, None)
    return deleted != "DELETE 0"
