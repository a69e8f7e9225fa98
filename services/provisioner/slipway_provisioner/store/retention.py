"""Deletion of old rows that are kept only as history for operators."""

from typing import Any, Final

import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_common.events.lifecycle import ENDED
from slipway_provisioner.domain.launching import BatchState, LeaseState
from slipway_provisioner.store.tables import claim, decision, in_states, launch_batch, lease, worker


def _older(at: sa.Column[Any], days: int) -> sa.ColumnElement[bool]:
    return at < sa.func.slipway_clock() - sa.text(f"interval '{days} days'")


DELETE_OLD: Final = (
    Statement(sa.delete(claim).where(_older(claim.c.ended_at, 1))),
    Statement(sa.delete(decision).where(_older(decision.c.last_at, 7))),
    Statement(sa.delete(worker).where(in_states(ENDED), _older(worker.c.ended_at, 14))),
    Statement(
        sa.delete(launch_batch).where(launch_batch.c.state == BatchState.KNOWN, _older(launch_batch.c.known_at, 14))
    ),
    Statement(sa.delete(lease).where(lease.c.state == LeaseState.ENDED, _older(lease.c.renewed_at, 14))),
)


async def delete_old(db: Connection) -> None:
    for statement in DELETE_OLD:
        await db.execute(statement.text)
