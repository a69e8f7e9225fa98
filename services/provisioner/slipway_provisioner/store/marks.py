"""Dirty marks, which trigger the planning of a pool. Append-only: a writer never waits for a planner's pool lock."""

from collections.abc import Iterable
from typing import Final

from slipway_common.database.postgres import Connection

DIRTY: Final = "INSERT INTO dirty_pool (pool_id, reason) SELECT unnest($1::text[]), $2"
# Not needed if a mark is due no later: the decision that it triggers schedules the next one.
LATER: Final = """
INSERT INTO dirty_pool (pool_id, reason, due_at) SELECT $1, 'time', slipway_clock() + $2 * interval '1 s'
WHERE NOT EXISTS (
    SELECT FROM dirty_pool WHERE pool_id = $1 AND due_at <= slipway_clock() + $2 * interval '1 s')"""
# Reason of a mark: the last planning of its pool failed. Marks that another planner has locked are skipped, since that
# planner is deciding for the pool.
FAILED: Final = "failed"
POSTPONE: Final = f"""
UPDATE dirty_pool SET due_at = slipway_clock() + $2 * interval '1 s', reason = '{FAILED}' WHERE id IN (
    SELECT id FROM dirty_pool WHERE pool_id = $1 AND due_at <= slipway_clock() FOR UPDATE SKIP LOCKED)"""


async def dirty(tx: Connection, pool_ids: Iterable[str], *, reason: str) -> None:
    """Mark pools dirty, so that each is planned now."""
    ids = sorted(set(pool_ids))
    if ids:
        await tx.execute(DIRTY, ids, reason)


async def later(tx: Connection, pool_id: str, after_seconds: float) -> None:
    """Mark a pool dirty for a later time."""
    await tx.execute(LATER, pool_id, after_seconds)


async def postpone(tx: Connection, pool_id: str, after_seconds: float) -> bool:
    """Postpone the marks of a pool whose planning failed. False if the previous planning had failed too."""
    failed = "SELECT EXISTS (SELECT FROM dirty_pool WHERE pool_id = $1 AND reason = $2)"
    failed_before: bool = await tx.fetchval(failed, pool_id, FAILED)
    await tx.execute(POSTPONE, pool_id, after_seconds)
    return not failed_before
