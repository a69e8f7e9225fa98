"""Pools that are held: pause and resume, with their events."""

from datetime import datetime
from typing import Final

from slipway_common import outbox
from slipway_common.events import pool as events
from slipway_common.postgres import Connection
from slipway_provisioner.store import declarations, marks

# Every start statement shares the pool's row: what starts after us sees the pause.
PAUSE: Final = """
UPDATE worker_pool SET paused = true, paused_reason = $2, paused_by = $3, paused_until = $4, revision = revision + 1
WHERE id = $1 AND NOT deleted AND ($4::timestamptz IS NULL OR $4 > slipway_clock()) RETURNING true"""
RESUME: Final = """
UPDATE worker_pool SET paused = false, paused_reason = '', paused_by = '', paused_until = NULL, revision = revision + 1
WHERE id = $1 AND NOT deleted AND paused RETURNING true"""
# The deadline is looked at again under the row's lock: somebody may have paused anew meanwhile.
RESUME_OVERDUE: Final = """
UPDATE worker_pool SET paused = false, paused_reason = '', paused_by = '', paused_until = NULL, revision = revision + 1
WHERE id = $1 AND NOT deleted AND paused AND paused_until <= slipway_clock() RETURNING true"""
OVERDUE: Final = "SELECT id FROM worker_pool WHERE paused AND paused_until <= slipway_clock() ORDER BY id"


async def pause(tx: Connection, pool_id: str, *, reason: str, by: str, until: datetime | None) -> bool:
    """Pause a pool, or renew its pause; once committed no start statement for it commits, and what waits is cancelled.

    False: no such pool, or `until` has passed.
    """
    if not await tx.fetchval(PAUSE, pool_id, reason, by, until):
        return False
    state = await declarations.pool_state(tx, pool_id)
    await outbox.enqueue(tx, [events.PoolPaused(**state, reason=reason, by=by, until=until)])
    await marks.dirty(tx, {pool_id}, because="paused")
    return True


async def resume(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Let a paused pool launch again. False: it was not paused."""
    return await _resumed(tx, RESUME, pool_id, reason, by)


async def resume_overdue(tx: Connection) -> int:
    """Resume pools whose pause has run out; returns how many."""
    reason, by = "the pause ran out", "provisioner"
    return sum([await _resumed(tx, RESUME_OVERDUE, row["id"], reason, by) for row in await tx.fetch(OVERDUE)])


async def _resumed(tx: Connection, statement: str, pool_id: str, reason: str, by: str) -> bool:
    if not await tx.fetchval(statement, pool_id):
        return False
    state = await declarations.pool_state(tx, pool_id)
    await outbox.enqueue(tx, [events.PoolResumed(**state, reason=reason, by=by)])
    await marks.dirty(tx, {pool_id}, because="resumed")
    return True
