"""Pause and resume, freeze and unfreeze of pools, with their events."""

from datetime import datetime
from typing import Any, Final

from slipway_common.database.postgres import Connection
from slipway_common.events import pool as events
from slipway_common.events.lifecycle import IN_FLIGHT
from slipway_common.messaging import outbox
from slipway_provisioner.domain.freezing import UnconfirmedStart
from slipway_provisioner.store import marks
from slipway_provisioner.store.declarations import POOL_STATE
from slipway_provisioner.store.tables import states

# Every start statement takes the pool's row FOR SHARE, so a start that begins later sees the pause.
PAUSE: Final = f"""
UPDATE worker_pool p SET paused = true, paused_reason = $2, paused_by = $3, paused_until = $4, revision = revision + 1
WHERE id = $1 AND NOT deleted AND ($4::timestamptz IS NULL OR $4 > slipway_clock()) RETURNING {POOL_STATE}"""
RESUME: Final = f"""
UPDATE worker_pool p SET paused = false, paused_reason = '', paused_by = '', paused_until = NULL,
    revision = revision + 1
WHERE id = $1 AND NOT deleted AND paused RETURNING {POOL_STATE}"""
# The deadline is checked again under the row's lock, since the pool may have been paused anew.
RESUME_OVERDUE: Final = f"""
UPDATE worker_pool p SET paused = false, paused_reason = '', paused_by = '', paused_until = NULL,
    revision = revision + 1
WHERE id = $1 AND NOT deleted AND paused AND paused_until <= slipway_clock() RETURNING {POOL_STATE}"""
OVERDUE: Final = "SELECT id FROM worker_pool WHERE paused AND paused_until <= slipway_clock() ORDER BY id"

FREEZE: Final = f"""
UPDATE worker_pool p SET frozen = true, frozen_reason = $2, frozen_by = $3, revision = revision + 1
WHERE id = $1 AND NOT deleted AND NOT frozen RETURNING {POOL_STATE}"""
UNFREEZE: Final = f"""
WITH before AS (SELECT id, frozen_by FROM worker_pool WHERE id = $1 AND NOT deleted AND frozen FOR UPDATE)
UPDATE worker_pool p SET frozen = false, frozen_reason = '', frozen_by = '', revision = revision + 1
FROM before b WHERE p.id = b.id RETURNING b.frozen_by, {POOL_STATE}"""
# Failures up to now are known to the person who unfreezes the pool.
DELETE_FORGIVEN: Final = "DELETE FROM forgiven WHERE pool_id = $1"
FORGIVE: Final = """
INSERT INTO forgiven (pool_id, key, stage, unconfirmed)
SELECT $1, key, stage, unconfirmed FROM shared_window
WHERE unconfirmed > 0 AND key IN (SELECT image_key FROM launch_config WHERE pool_id = $1 AND state <> 'archived')"""
# Evidence for the alert: the newest failures, then the longest boots.
UNCONFIRMED_STARTS: Final = f"""
SELECT w.id::text AS worker_id, w.instance_id, w.account_id,
    w.state IN ({states(IN_FLIGHT["boot"])}) AS booting, w.reason
FROM worker w
JOIN launch_config c ON c.id = w.launch_config_id
WHERE c.pool_id = $1 AND c.image_key = $2 AND (w.failed_at IS NOT NULL OR w.state IN ({states(IN_FLIGHT["boot"])}))
ORDER BY w.failed_at DESC NULLS LAST, w.launched_at LIMIT 10"""


async def pause(tx: Connection, pool_id: str, *, reason: str, by: str, until: datetime | None) -> bool:
    """Pause a pool, or replace its pause. No start statement for it commits afterwards; waiting intents are cancelled.

    False if there is no such pool or `until` has passed.
    """
    row = await tx.fetchrow(PAUSE, pool_id, reason, by, until)
    if row is None:
        return False
    await outbox.enqueue(tx, [events.PoolPaused(**row, reason=reason, by=by, until=until)])
    await marks.dirty(tx, {pool_id}, reason="paused")
    return True


async def resume(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Resume a paused pool. False if it was not paused."""
    return await _resumed(tx, await tx.fetchrow(RESUME, pool_id), reason, by)


async def resume_overdue(tx: Connection) -> int:
    """Resume pools whose pause has expired; returns their number."""
    reason, by, resumed = "the pause expired", "provisioner", 0
    for pool in await tx.fetch(OVERDUE):
        resumed += await _resumed(tx, await tx.fetchrow(RESUME_OVERDUE, pool["id"]), reason, by)
    return resumed


async def _resumed(tx: Connection, row: Any, reason: str, by: str) -> bool:
    if row is None:
        return False
    await outbox.enqueue(tx, [events.PoolResumed(**row, reason=reason, by=by)])
    await marks.dirty(tx, {row["pool_id"]}, reason="resumed")
    return True


async def freeze(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Freeze a pool until it is unfrozen. No start statement for it commits afterwards. False if there is no such pool
    or it is already frozen."""
    row = await tx.fetchrow(FREEZE, pool_id, reason, by)
    if row is None:
        return False
    await outbox.enqueue(tx, [events.PoolFrozen(**row, reason=reason, by=by)])
    await marks.dirty(tx, {pool_id}, reason="frozen")
    return True


async def unfreeze(tx: Connection, pool_id: str, *, reason: str, by: str) -> str | None:
    """Unfreeze a pool and forgive the failures of its images up to now; returns who froze it, or None if it was not
    frozen."""
    row = await tx.fetchrow(UNFREEZE, pool_id)
    if row is None:
        return None
    await tx.execute(DELETE_FORGIVEN, pool_id)
    await tx.execute(FORGIVE, pool_id)
    state = dict(row)
    frozen_by: str = state.pop("frozen_by")
    await outbox.enqueue(tx, [events.PoolUnfrozen(**state, reason=reason, by=by)])
    await marks.dirty(tx, {pool_id}, reason="unfrozen")
    return frozen_by


async def unconfirmed_starts(db: Connection, pool_id: str, image_key: str) -> list[UnconfirmedStart]:
    """Starts of an image that failed or are still booting: the newest failures first, at most ten."""
    return [UnconfirmedStart(**row) for row in await db.fetch(UNCONFIRMED_STARTS, pool_id, image_key)]
