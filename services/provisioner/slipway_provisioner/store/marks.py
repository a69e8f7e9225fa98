"""Dirty marks, which trigger the planning of a pool. Append-only: a writer never waits for a planner's pool lock."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from slipway_common.database.postgres import Connection
from slipway_provisioner.store.clock import NOW

DIRTY: Final = "INSERT INTO dirty_pool (pool_id, reason) SELECT * FROM unnest($1::text[], $2::text[])"
# By the first of its index: of marks for later there is one for each pool.
ARE_DUE: Final = f"SELECT coalesce((SELECT min(due_at) FROM dirty_pool) <= {NOW}, false)"
SHORT: Final = "SELECT mark_short($1, $2)"
REGISTERED: Final = "registered"
"""Reason of a mark: a worker has registered."""
# Reason of a mark: the last planning of its pool failed. Marks that another planner has locked are skipped, since that
# planner is deciding for the pool.
FAILED: Final = "failed"
FAILED_BEFORE: Final = f"SELECT EXISTS (SELECT FROM dirty_pool WHERE pool_id = $1 AND reason = '{FAILED}')"
REQUEUE: Final = """
WITH due AS (
    DELETE FROM dirty_pool WHERE id IN (
        SELECT id FROM dirty_pool WHERE pool_id = $1 AND due_at <= slipway_clock() FOR UPDATE SKIP LOCKED)
    RETURNING pool_id, reason, coalesce(dirty_since, due_at) AS since)
INSERT INTO dirty_pool (pool_id, reason, dirty_since)
SELECT pool_id, reason, min(since) FROM due GROUP BY pool_id, reason"""
PUT_BACK: Final = """
INSERT INTO dirty_pool (pool_id, reason, due_at) SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[])"""
POSTPONE: Final = f"""
UPDATE dirty_pool SET due_at = slipway_clock() + $2 * interval '1 s', reason = '{FAILED}' WHERE id IN (
    SELECT id FROM dirty_pool WHERE pool_id = $1 AND due_at <= slipway_clock() FOR UPDATE SKIP LOCKED)"""


async def are_due(db: Connection) -> bool:
    """True if a pool is due for planning, perhaps one that a planner holds. Cheaper than an attempt to claim one."""
    return bool(await db.fetchval(ARE_DUE))


async def dirty(tx: Connection, pool_ids: Iterable[str], *, reason: str) -> None:
    """Mark pools dirty, so that each is planned now."""
    await dirty_each(tx, dict.fromkeys(sorted(pool_ids), reason))


async def dirty_each(tx: Connection, reasons: Mapping[str, str]) -> None:
    """Mark pools dirty, each for a reason of its own, so that they are planned in this order."""
    if reasons:
        await tx.execute(DIRTY, list(reasons), list(reasons.values()))


async def dirty_if_short(tx: Connection, pool_ids: Iterable[str], *, reason: str) -> None:
    """Mark pools dirty whose last plans needed more headroom of their own launch configs. Those that lack headroom of
    shared windows are woken for it, and for all others nothing has changed."""
    ids = sorted(set(pool_ids))
    if ids:
        await tx.execute(SHORT, ids, reason)


async def requeue(db: Connection, pool_id: str) -> None:
    """Put a pool behind all others that are dirty."""
    await db.execute(REQUEUE, pool_id)


async def put_back(tx: Connection, dirty: Sequence[tuple[str, str, datetime]]) -> None:
    """Mark claimed pools dirty again, each for a reason and since a time, at their former places."""
    if dirty:
        await tx.execute(PUT_BACK, *map(list, zip(*dirty, strict=True)))


async def postpone(tx: Connection, pool_id: str, after_seconds: float) -> bool:
    """Postpone the marks of a pool whose planning failed. False if the previous planning had failed too."""
    failed_before: bool = await tx.fetchval(FAILED_BEFORE, pool_id)
    await tx.execute(POSTPONE, pool_id, after_seconds)
    return not failed_before
