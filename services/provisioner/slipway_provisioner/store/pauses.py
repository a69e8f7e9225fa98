"""Pools that are held: pause and resume, freeze and unfreeze, with their events."""

from datetime import datetime
from typing import Any, Final

from slipway_common import outbox
from slipway_common.events import pool as events
from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.postgres import Connection
from slipway_provisioner.domain import freezing
from slipway_provisioner.domain.pool import Shared
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

FREEZE: Final = """
UPDATE worker_pool SET frozen = true, frozen_reason = $2, frozen_by = $3, revision = revision + 1
WHERE id = $1 AND NOT deleted AND NOT frozen RETURNING true"""
UNFREEZE: Final = """
WITH before AS (SELECT id, frozen_by FROM worker_pool WHERE id = $1 AND NOT deleted AND frozen FOR UPDATE)
UPDATE worker_pool p SET frozen = false, frozen_reason = '', frozen_by = '', revision = revision + 1
FROM before b WHERE p.id = b.id RETURNING b.frozen_by"""
# What has come to nothing by now was seen by whoever unfreezes.
FORGET: Final = "DELETE FROM forgiven WHERE pool_id = $1"
FORGIVE: Final = """
INSERT INTO forgiven (pool_id, key, stage, unconfirmed)
SELECT $1, key, stage, unconfirmed FROM shared_window
WHERE unconfirmed > 0 AND key IN (SELECT image_key FROM launch_config WHERE pool_id = $1 AND state <> 'archived')"""
# Whom to look at: the newest that came to nothing, and those that boot for longest.
EVIDENCE: Final = """
SELECT w.id::text, w.instance_id, w.account_id, w.state, w.reason FROM worker w
JOIN launch_config c ON c.id = w.launch_config_id
WHERE c.pool_id = $1 AND c.image_key = $2 AND (w.failed_at IS NOT NULL OR w.state = 'starting')
ORDER BY w.failed_at DESC NULLS LAST, w.launched_at LIMIT 10"""


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


async def freeze(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Stop a pool until it is unfrozen; once committed no start statement for it commits. False: it is frozen already,
    or there is none."""
    if not await tx.fetchval(FREEZE, pool_id, reason, by):
        return False
    state = await declarations.pool_state(tx, pool_id)
    await outbox.enqueue(tx, [events.PoolFrozen(**state, reason=reason, by=by)])
    await marks.dirty(tx, {pool_id}, because="frozen")
    return True


async def freeze_for(tx: Connection, pool_id: str, image: Shared, *, tasks: int, now: datetime) -> None:
    """Stop a pool for a bad image, and tell people; `tasks` want a worker. The pool is locked.

    The image's own alert is the page, if it has closed; but whoever unfroze the pool has to hear that it was in vain.
    """
    reason = freezing.words(image)
    if not await freeze(tx, pool_id, reason=reason, by=freezing.BY):
        return
    evidence = [
        f"worker {row['id']}, instance {row['instance_id'] or 'none'} of {row['account_id']}: "
        + ("boots still" if row["state"] == "starting" else row["reason"])
        for row in await tx.fetch(EVIDENCE, pool_id, image.key)
    ]
    alert = AlertRaised(
        **freezing.alert(pool_id),
        summary=f"pool {pool_id} is frozen: {reason}",
        effect=f"{tasks} tasks get no new worker",
        doing="launches nothing and cancels what waits for admission; running workers go on",
        command=f"slipway pool unfreeze {pool_id} --reason …",
        since=now,
        cause=image.reason or image.key,
        severity="notice" if image.closed and not image.forgiven else "page",
        evidence=tuple(evidence),
    )
    await outbox.enqueue(tx, [alert])


async def unfreeze(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Let a frozen pool launch again; the same image freezes it only after as many starts more. False: it was not
    frozen."""
    frozen_by: str | None = await tx.fetchval(UNFREEZE, pool_id)
    if frozen_by is None:
        return False
    await tx.execute(FORGET, pool_id)
    await tx.execute(FORGIVE, pool_id)
    state = await declarations.pool_state(tx, pool_id)
    told: list[Any] = [events.PoolUnfrozen(**state, reason=reason, by=by)]
    if frozen_by == freezing.BY:
        told.append(AlertResolved(**freezing.alert(pool_id), summary=f"pool {pool_id} goes on: {reason}"))
    await outbox.enqueue(tx, told)
    await marks.dirty(tx, {pool_id}, because="unfrozen")
    return True
