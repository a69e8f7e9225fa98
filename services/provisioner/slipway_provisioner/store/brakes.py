"""Brakes: stop launching everywhere, in an account or in a pool, until a time or until released."""

from datetime import datetime
from typing import Any, Final

from slipway_common.postgres import Connection

# Excludes every start statement, which shares this row: what starts after us sees the brake.
EXCLUDE_STARTS: Final = "SELECT FROM brake_guard FOR UPDATE"
PULL: Final = """
INSERT INTO brake (scope, scope_id, reason, by, until, at) VALUES ($1, $2, $3, $4, $5, slipway_clock())
ON CONFLICT (scope, scope_id) DO UPDATE SET reason = $3, by = $4, until = $5, at = slipway_clock()"""
RELEASE: Final = "DELETE FROM brake WHERE scope = $1 AND scope_id = $2"
# Every pool decides anew at once, and when the brake ends by time.
MARK: Final = """
INSERT INTO dirty_pool (pool_id, because, due_at)
SELECT id, 'brake', coalesce($1, slipway_clock()) FROM worker_pool WHERE NOT deleted ORDER BY id"""
IN_FORCE: Final = """
SELECT scope, scope_id, reason, by, until, at FROM brake WHERE until IS NULL OR until > slipway_clock()
ORDER BY scope, scope_id"""
TARGETS: Final = {
    "account": "SELECT EXISTS (SELECT FROM account WHERE id = $1)",
    "pool": "SELECT EXISTS (SELECT FROM worker_pool WHERE id = $1 AND NOT deleted)",
}


async def in_force(db: Connection) -> list[dict[str, Any]]:
    """Brakes that stop something now."""
    return [dict(row) for row in await db.fetch(IN_FORCE)]


async def has_target(tx: Connection, scope: str, scope_id: str) -> bool:
    """Whether there is such an account or pool; everything ("all") has no id."""
    return not scope_id if scope == "all" else bool(await tx.fetchval(TARGETS[scope], scope_id))


async def pull(tx: Connection, scope: str, scope_id: str, *, reason: str, by: str, until: datetime | None) -> None:
    """Set a brake, or renew it with another reason."""
    await tx.execute(EXCLUDE_STARTS)
    await tx.execute(PULL, scope, scope_id, reason, by, until)
    await tx.execute(MARK, None)
    if until is not None:
        await tx.execute(MARK, until)


async def release(tx: Connection, scope: str, scope_id: str) -> bool:
    """Release a brake; False when it was not set."""
    await tx.execute(EXCLUDE_STARTS)
    gone: str = await tx.execute(RELEASE, scope, scope_id)
    await tx.execute(MARK, None)
    return gone != "DELETE 0"
