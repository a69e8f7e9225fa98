"""Pause and resume, freeze and unfreeze of pools, with their events."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa

from slipway_api.events import pool as events
from slipway_api.events.lifecycle import IN_FLIGHT
from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_common.database.tables import TIME
from slipway_common.messaging import outbox
from slipway_provisioner.domain.freezing import UnconfirmedStart
from slipway_provisioner.store import marks
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.declarations import POOL_STATE
from slipway_provisioner.store.tables import forgiven, in_states, launch_config, shared_window, worker, worker_pool

P: Final = worker_pool.c
C: Final = launch_config.c
W: Final = worker.c
S: Final = shared_window.c
POOL_ID: Final = sa.bindparam("pool_id", type_=sa.Text)
_KNOWN: Final = sa.and_(P.id == POOL_ID, ~P.deleted)
UNTIL: Final = sa.bindparam("until", type_=TIME)

# Every start statement takes the pool's row FOR SHARE, so a start that begins later sees the pause.
PAUSE: Final = Statement(
    sa.update(worker_pool)
    .where(_KNOWN, UNTIL.is_(None) | (sa.func.slipway_clock() < UNTIL))
    .values(
        paused=True,
        paused_reason=sa.bindparam("reason"),
        paused_by=sa.bindparam("by"),
        paused_until=UNTIL,
        revision=P.revision + 1,
    )
    .returning(*POOL_STATE)
)
_RESUMED: Final = (
    sa.update(worker_pool)
    .where(_KNOWN, P.paused)
    .values(paused=False, paused_reason="", paused_by="", paused_until=sa.null(), revision=P.revision + 1)
    .returning(*POOL_STATE)
)
RESUME: Final = Statement(_RESUMED)
# The deadline is checked again under the row's lock, since the pool may have been paused anew.
RESUME_OVERDUE: Final = Statement(_RESUMED.where(P.paused_until <= sa.func.slipway_clock()))
OVERDUE: Final = Statement(sa.select(P.id).where(P.paused, P.paused_until <= sa.literal_column(NOW)).order_by(P.id))

FREEZE: Final = Statement(
    sa.update(worker_pool)
    .where(_KNOWN, ~P.frozen)
    .values(frozen=True, frozen_reason=sa.bindparam("reason"), frozen_by=sa.bindparam("by"), revision=P.revision + 1)
    .returning(*POOL_STATE)
)
_FOUND: Final = sa.select(P.id, P.frozen_by).where(_KNOWN, P.frozen).with_for_update().cte("found")
UNFREEZE: Final = Statement(
    sa.update(worker_pool)
    .where(P.id == _FOUND.c.id)
    .values(frozen=False, frozen_reason="", frozen_by="", revision=P.revision + 1)
    .returning(_FOUND.c.frozen_by, *POOL_STATE)
)
# Failures up to now are known to the person who unfreezes the pool.
DELETE_FORGIVEN: Final = Statement(sa.delete(forgiven).where(forgiven.c.pool_id == POOL_ID))
FORGIVE: Final = Statement(
    sa.insert(forgiven).from_select(
        forgiven.c.keys(),
        sa.select(POOL_ID, S.key, S.stage, S.unconfirmed).where(
            S.unconfirmed > 0, S.key.in_(sa.select(C.image_key).where(C.pool_id == POOL_ID, C.state != "archived"))
        ),
    )
)
# Evidence for the alert: the newest failures, then the longest boots.
_BOOTING: Final = in_states(IN_FLIGHT["boot"])
UNCONFIRMED_STARTS: Final = Statement(
    sa.select(
        sa.cast(W.id, sa.Text).label("worker_id"), W.instance_id, W.account_id, _BOOTING.label("booting"), W.reason
    )
    .join(launch_config, C.id == W.launch_config_id)
    .where(C.pool_id == POOL_ID, C.image_key == sa.bindparam("image_key"), W.failed_at.is_not(None) | _BOOTING)
    .order_by(W.failed_at.desc().nulls_last(), W.launched_at)
    .limit(10)
)


async def pause(tx: Connection, pool_id: str, *, reason: str, by: str, until: datetime | None) -> bool:
    """Pause a pool, or replace its pause. No start statement for it commits afterwards; waiting intents are cancelled.

    False if there is no such pool or `until` has passed.
    """
    row = await tx.fetchrow(PAUSE.text, *PAUSE.arguments(pool_id=pool_id, reason=reason, by=by, until=until))
    if row is None:
        return False
    await outbox.enqueue(tx, [events.PoolPaused(**row, reason=reason, by=by, until=until)])
    await audit.record_command(tx, AuditedKind.POOL, pool_id, "pause", by=by, paused=True, reason=reason, until=until)
    await marks.dirty(tx, {pool_id}, reason="paused")
    return True


async def resume(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Resume a paused pool. False if it was not paused."""
    return await _resume(tx, RESUME, pool_id, reason, by)


async def resume_overdue(db: Connection) -> int:
    """Resume pools whose pause has expired, each in a transaction; returns their number."""
    resumed, reason, by = 0, "the pause expired", "provisioner"
    for row in await db.fetch(OVERDUE.text):
        async with db.transaction():
            resumed += await _resume(db, RESUME_OVERDUE, row["id"], reason, by)
    return resumed


async def _resume(tx: Connection, statement: Statement, pool_id: str, reason: str, by: str) -> bool:
    row = await tx.fetchrow(statement.text, *statement.arguments(pool_id=pool_id))
    if row is None:
        return False
    await outbox.enqueue(tx, [events.PoolResumed(**row, reason=reason, by=by)])
    await audit.record_command(tx, AuditedKind.POOL, pool_id, "resume", by=by, paused=False, reason=reason)
    await marks.dirty(tx, {pool_id}, reason="resumed")
    return True


async def freeze(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Freeze a pool until it is unfrozen. No start statement for it commits afterwards. False if there is no such pool
    or it is already frozen."""
    row = await tx.fetchrow(FREEZE.text, *FREEZE.arguments(pool_id=pool_id, reason=reason, by=by))
    if row is None:
        return False
    await outbox.enqueue(tx, [events.PoolFrozen(**row, reason=reason, by=by)])
    await audit.record_command(tx, AuditedKind.POOL, pool_id, "freeze", by=by, frozen=True, reason=reason)
    await marks.dirty(tx, {pool_id}, reason="frozen")
    return True


async def unfreeze(tx: Connection, pool_id: str, *, reason: str, by: str) -> str | None:
    """Unfreeze a pool and forgive the failures of its images up to now; returns who froze it, or None if it was not
    frozen."""
    row = await tx.fetchrow(UNFREEZE.text, *UNFREEZE.arguments(pool_id=pool_id))
    if row is None:
        return None
    await tx.execute(DELETE_FORGIVEN.text, *DELETE_FORGIVEN.arguments(pool_id=pool_id))
    await tx.execute(FORGIVE.text, *FORGIVE.arguments(pool_id=pool_id))
    state = dict(row)
    frozen_by: str = state.pop("frozen_by")
    await outbox.enqueue(tx, [events.PoolUnfrozen(**state, reason=reason, by=by)])
    await audit.record_command(tx, AuditedKind.POOL, pool_id, "unfreeze", by=by, frozen=False, reason=reason)
    await marks.dirty(tx, {pool_id}, reason="unfrozen")
    return frozen_by


async def unconfirmed_starts(db: Connection, pool_id: str, image_key: str) -> list[UnconfirmedStart]:
    """Starts of an image that failed or are still booting: the newest failures first, at most ten."""
    arguments = UNCONFIRMED_STARTS.arguments(pool_id=pool_id, image_key=image_key)
    return [UnconfirmedStart(**row) for row in await db.fetch(UNCONFIRMED_STARTS.text, *arguments)]
