"""Deletion of old rows that are kept only as history for operators."""

from typing import Any, Final

import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_common.events.lifecycle import ENDED
from slipway_provisioner.domain.launching import BatchState, LeaseState
from slipway_provisioner.store.tables import (
    account,
    audit,
    claim,
    decision,
    in_states,
    launch_batch,
    launch_config,
    lease,
    orphan_instance,
    pool_revision,
    unreachable_machine,
    worker,
)

REVISIONS_KEPT: Final = 100
"""Revisions kept of the history of a pool."""
AUDIT_DAYS: Final = 400


def _older(at: sa.ColumnElement[Any], days: int) -> sa.ColumnElement[bool]:
    return at < sa.func.slipway_clock() - sa.text(f"interval '{days} days'")


DELETE_OLD: Final = (
    Statement(sa.delete(claim).where(_older(claim.c.ended_at, 1))),
    Statement(sa.delete(decision).where(_older(decision.c.last_at, 7))),
    Statement(sa.delete(worker).where(in_states(ENDED), _older(worker.c.ended_at, 14))),
    # A batch outlives its instances: the instance reaper terminates none of an unknown batch.
    Statement(
        sa.delete(launch_batch).where(
            launch_batch.c.state == BatchState.KNOWN,
            _older(launch_batch.c.known_at, 14),
            ~sa.exists().where(worker.c.batch_id == launch_batch.c.id),
            ~sa.exists().where(unreachable_machine.c.batch_id == launch_batch.c.id),
            ~sa.exists().where(orphan_instance.c.batch_id == sa.cast(launch_batch.c.id, sa.Text)),
        )
    ),
    Statement(sa.delete(lease).where(lease.c.state == LeaseState.ENDED, _older(lease.c.renewed_at, 14))),
    Statement(sa.delete(unreachable_machine).where(_older(unreachable_machine.c.since, 400))),
)


_OLDEST: Final = sa.select(audit.c.id, audit.c.at).order_by(audit.c.id).limit(1000).subquery()
DELETE_OLD_AUDIT: Final = Statement(
    sa.delete(audit).where(audit.c.id.in_(sa.select(_OLDEST.c.id).where(_older(_OLDEST.c.at, AUDIT_DAYS))))
)
_POOL: Final = sa.bindparam("pool_id", type_=sa.Text)
DELETE_OLD_REVISIONS: Final = Statement(
    sa.delete(pool_revision).where(
        pool_revision.c.pool_id == _POOL,
        pool_revision.c.revision
        <= sa.select(pool_revision.c.revision)
        .where(pool_revision.c.pool_id == _POOL)
        .order_by(pool_revision.c.revision.desc())
        .offset(REVISIONS_KEPT)
        .limit(1)
        .scalar_subquery(),
    )
)
DELETE_REMOVED_ACCOUNTS: Final = Statement(
    sa.delete(account).where(
        account.c.removed,
        ~sa.exists().where(launch_config.c.account_id == account.c.id),
        ~sa.exists().where(worker.c.account_id == account.c.id, ~in_states(ENDED)),
        ~sa.exists().where(unreachable_machine.c.account_id == account.c.id),
    )
)


async def delete_old(db: Connection, pool_id: str) -> None:
    """Delete old rows, and those of the history of one pool."""
    for statement in (*DELETE_OLD, DELETE_OLD_AUDIT, DELETE_REMOVED_ACCOUNTS):
        await db.execute(statement.text)
    await db.execute(DELETE_OLD_REVISIONS.text, *DELETE_OLD_REVISIONS.arguments(pool_id=pool_id))
