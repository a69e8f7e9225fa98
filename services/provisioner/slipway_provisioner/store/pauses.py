"""Pause and resume, freeze and unfreeze of pools, with their events."""

from datetime import datetime
from typing import Any, Final

from slipway_common.database.postgres import Connection
from slipway_common.events import pool as events
from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.messaging import outbox
from slipway_provisioner.domain import freezing
from slipway_provisioner.domain.pool import Shared
from slipway_provisioner.store import declarations, marks

# Every start statement takes the pool's row FOR SHARE, so a start that begins later sees the pause.
PAUSE: Final = """
UPDATE worker_pool SET paused = true, paused_reason = $2, paused_by = $3, paused_until = $4, revision = revision + 1
WHERE id = $1 AND NOT deleted AND ($4::timestamptz IS NULL OR $4 > slipway_clock()) RETURNING true"""
RESUME: Final = """
UPDATE worker_pool SET paused = false, paused_reason = '', paused_by = '', paused_until = NULL, revision = revision + 1
WHERE id = $1 AND NOT deleted AND paused RETURNING true"""
# The deadline is checked again under the row's lock, since the pool may have been paused anew.
RESUME_OVERDUE: Final = """
UPDATE worker_pool SET paused = false, paused_reason = '', paused_by = '', paused_until = NULL, revision = revision + 1
WHERE id = $1 AND NOT deleted AND paused AND paused_until <= slipway_clock() RETURNING true"""
OVERDUE: Final = "SELECT id FROM worker_pool WHERE paused AND paused_until <= slipway_clock() ORDER BY id"

FREEZE: Final = """
UPDATE worker_pool SET frozen = true, frozen_reason = $2, frozen_by = $3, revision = revision + 1
WHERE id = $1 AND NOT deleted AND NOT frozen RETURNING true"""
UNFREEZE: Final = """
WITH before AS (SELECT id, frozen_by FROM worker_pool WHERE id = $1 AND NOT deleted AND frozen FOR UPDATE)
UPDATE worker_pool p SET frozen = false, frozen_reason = '', frozen_by = '', revision = revision + 1
FROM before b WHERE p.id = b.id RETURNING b.frozen_by"""
# Failures up to now are known to the person who unfreezes the pool.
DELETE_FORGIVEN: Final = "DELETE FROM forgiven WHERE pool_id = $1"
FORGIVE: Final = """
INSERT INTO forgiven (pool_id, key, stage, unconfirmed)
SELECT $1, key, stage, unconfirmed FROM shared_window
WHERE unconfirmed > 0 AND key IN (SELECT image_key FROM launch_config WHERE pool_id = $1 AND state <> 'archived')"""
# Evidence for the alert: the newest failures, then the longest boots.
EVIDENCE: Final = """
SELECT w.id::text, w.instance_id, w.account_id, w.state, w.reason FROM worker w
JOIN launch_config c ON c.id = w.launch_config_id
WHERE c.pool_id = $1 AND c.image_key = $2 AND (w.failed_at IS NOT NULL OR w.state = 'starting')
ORDER BY w.failed_at DESC NULLS LAST, w.launched_at LIMIT 10"""


async def pause(tx: Connection, pool_id: str, *, reason: str, by: str, until: datetime | None) -> bool:
    """Pause a pool, or replace its pause. No start statement for it commits afterwards; waiting intents are cancelled.

    False if there is no such pool or `until` has passed.
    """
    if not await tx.fetchval(PAUSE, pool_id, reason, by, until):
        return False
    state = await declarations.pool_state(tx, pool_id)
    await outbox.enqueue(tx, [events.PoolPaused(**state, reason=reason, by=by, until=until)])
    await marks.dirty(tx, {pool_id}, reason="paused")
    return True


async def resume(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Resume a paused pool. False if it was not paused."""
    return await _resumed(tx, RESUME, pool_id, reason, by)


async def resume_overdue(tx: Connection) -> int:
    """Resume pools whose pause has expired; returns their number."""
    reason, by = "the pause expired", "provisioner"
    return sum([await _resumed(tx, RESUME_OVERDUE, row["id"], reason, by) for row in await tx.fetch(OVERDUE)])


async def _resumed(tx: Connection, statement: str, pool_id: str, reason: str, by: str) -> bool:
    if not await tx.fetchval(statement, pool_id):
        return False
    state = await declarations.pool_state(tx, pool_id)
    await outbox.enqueue(tx, [events.PoolResumed(**state, reason=reason, by=by)])
    await marks.dirty(tx, {pool_id}, reason="resumed")
    return True


async def freeze(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Freeze a pool until it is unfrozen. No start statement for it commits afterwards. False if there is no such pool
    or it is already frozen."""
    if not await tx.fetchval(FREEZE, pool_id, reason, by):
        return False
    state = await declarations.pool_state(tx, pool_id)
    await outbox.enqueue(tx, [events.PoolFrozen(**state, reason=reason, by=by)])
    await marks.dirty(tx, {pool_id}, reason="frozen")
    return True


async def freeze_for(tx: Connection, pool_id: str, image: Shared, *, tasks: int, now: datetime) -> None:
    """Freeze a pool for a bad image and raise an alert; `tasks` need a worker. The pool is locked.

    If the image has tripped, its own alert is the page and this one a notice, unless the pool was unfrozen before.
    """
    reason = freezing.description(image)
    if not await freeze(tx, pool_id, reason=reason, by=freezing.BY):
        return
    evidence = [
        f"worker {row['id']}, instance {row['instance_id'] or 'none'} of {row['account_id']}: "
        + ("still booting" if row["state"] == "starting" else row["reason"])
        for row in await tx.fetch(EVIDENCE, pool_id, image.key)
    ]
    alert = AlertRaised(
        **freezing.alert(pool_id),
        summary=f"pool {pool_id} is frozen: {reason}",
        effect=f"{tasks} {'task gets' if tasks == 1 else 'tasks get'} no new worker",
        doing="launches nothing and cancels waiting launches; running workers are not affected",
        command=f"slipway pool unfreeze {pool_id} --reason …",
        since=now,
        cause=image.reason or image.key,
        severity="notice" if image.tripped and not image.forgiven else "page",
        evidence=tuple(evidence),
    )
    await outbox.enqueue(tx, [alert])


async def unfreeze(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Unfreeze a pool; the same image freezes it again only after `freeze_after` more failed starts. False if it was
    not frozen."""
    frozen_by: str | None = await tx.fetchval(UNFREEZE, pool_id)
    if frozen_by is None:
        return False
    await tx.execute(DELETE_FORGIVEN, pool_id)
    await tx.execute(FORGIVE, pool_id)
    state = await declarations.pool_state(tx, pool_id)
    published: list[Any] = [events.PoolUnfrozen(**state, reason=reason, by=by)]
    if frozen_by == freezing.BY:
        published.append(AlertResolved(**freezing.alert(pool_id), summary=f"pool {pool_id} is unfrozen: {reason}"))
    await outbox.enqueue(tx, published)
    await marks.dirty(tx, {pool_id}, reason="unfrozen")
    return True
