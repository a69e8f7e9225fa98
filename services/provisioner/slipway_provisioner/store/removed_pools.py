"""Removed pools of which nothing is left: they are deleted with their history, and their subject ends with a tombstone.

Rows that refer to a pool are inserted under a lock on its row, so that none appears while it is being deleted.
"""

from typing import Final

import sqlalchemy as sa

from slipway_api.events.pool import PoolDeleted
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, seconds
from slipway_common.messaging import outbox
from slipway_common.messaging.outbox import Tombstone
from slipway_provisioner.store.declarations import POOL_STATE
from slipway_provisioner.store.tables import (
    demand,
    forgiven,
    launch_config_name,
    pool_balance,
    pool_revision,
    spend_usage,
    waiting_pool,
    worker_pool,
)

P: Final = worker_pool.c
R: Final = pool_revision.c
_NAMED: Final = P.id == sa.bindparam("id")
_EXPIRED: Final = sa.select(*POOL_STATE).where(
    P.deleted,
    ~sa.exists().where(launch_config_name.c.pool_id == P.id),
    ~sa.exists().where(demand.c.pool_id == P.id),
    ~sa.exists().where(R.pool_id == P.id, R.at > sa.func.slipway_clock() - seconds("kept")),
)
EXPIRED: Final = Statement(_EXPIRED.order_by(P.id).limit(100))
IS_EXPIRED: Final = Statement(_EXPIRED.where(_NAMED))
LOCK: Final = Statement(sa.select(P.id).where(_NAMED).with_for_update())
DELETE: Final = (
    Statement(sa.delete(pool_revision).where(R.pool_id == sa.bindparam("id"))),
    Statement(sa.delete(forgiven).where(forgiven.c.pool_id == sa.bindparam("id"))),
    Statement(sa.delete(pool_balance).where(pool_balance.c.pool_id == sa.bindparam("id"))),
    Statement(sa.delete(waiting_pool).where(waiting_pool.c.pool_id == sa.bindparam("id"))),
    Statement(sa.delete(spend_usage).where(spend_usage.c.pool_id == sa.bindparam("id"))),
    Statement(sa.delete(worker_pool).where(_NAMED)),
)


async def expired(db: Connection, kept_seconds: float) -> list[str]:
    """Ids of some pools that were removed longer ago than `kept_seconds`, without launch configs and demand."""
    return [row["pool_id"] for row in await db.fetch(EXPIRED.text, *EXPIRED.arguments(kept=kept_seconds))]


async def delete(tx: Connection, pool_id: str, kept_seconds: float) -> bool:
    """Delete a removed pool; False if it has been declared again or is used."""
    await tx.execute(LOCK.text, *LOCK.arguments(id=pool_id))
    row = await tx.fetchrow(IS_EXPIRED.text, *IS_EXPIRED.arguments(id=pool_id, kept=kept_seconds))
    if row is None:
        return False
    await outbox.enqueue(tx, [Tombstone(PoolDeleted(**row))])
    for statement in DELETE:
        await tx.execute(statement.text, *statement.arguments(id=pool_id))
    return True
