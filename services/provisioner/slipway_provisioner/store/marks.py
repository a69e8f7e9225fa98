"""Marks that ask for a decision on a pool. Append-only: a marker never waits for a planner that holds the pool."""

from collections.abc import Iterable
from typing import Final

from slipway_common.postgres import Connection

DIRTY: Final = "INSERT INTO dirty_pool (pool_id, because) SELECT unnest($1::text[]), $2"
# A mark that is due no later makes this one needless: the decision it asks for asks for the next.
LATER: Final = """
INSERT INTO dirty_pool (pool_id, because, due_at) SELECT $1, 'time', slipway_clock() + $2 * interval '1 s'
WHERE NOT EXISTS (
    SELECT FROM dirty_pool WHERE pool_id = $1 AND due_at <= slipway_clock() + $2 * interval '1 s')"""
# While a mark says so, deciding for its pool failed and has not worked since. Whom another planner holds at this moment
# is being decided for.
FAILED: Final = "failed"
POSTPONE: Final = f"""
UPDATE dirty_pool SET due_at = slipway_clock() + $2 * interval '1 s', because = '{FAILED}' WHERE id IN (
    SELECT id FROM dirty_pool WHERE pool_id = $1 AND due_at <= slipway_clock() FOR UPDATE SKIP LOCKED)"""


async def dirty(tx: Connection, pool_ids: Iterable[str], *, because: str) -> None:
    """Ask for a decision on each pool now."""
    ids = sorted(set(pool_ids))
    if ids:
        await tx.execute(DIRTY, ids, because)


async def later(tx: Connection, pool_id: str, after_seconds: float) -> None:
    """Ask for a decision once time alone may have changed it."""
    await tx.execute(LATER, pool_id, after_seconds)


async def postpone(tx: Connection, pool_id: str, after_seconds: float) -> bool:
    """Its decision failed: ask again later. False when the one before it had failed as well."""
    failed = "SELECT EXISTS (SELECT FROM dirty_pool WHERE pool_id = $1 AND because = $2)"
    failed_before: bool = await tx.fetchval(failed, pool_id, FAILED)
    await tx.execute(POSTPONE, pool_id, after_seconds)
    return not failed_before
