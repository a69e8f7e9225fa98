"""Rounds over all pools: the next one to sweep, and the states that it publishes anew."""

from typing import Final

import sqlalchemy as sa

from slipway_api.events.launch_config import LaunchConfigUpdated
from slipway_api.events.pool import PoolUpdated
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_common.messaging import outbox
from slipway_provisioner.store import configs, tables
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.configs import OF_NAME
from slipway_provisioner.store.declarations import POOL_STATE

P: Final = tables.worker_pool.c
N: Final = tables.launch_config_name.c
C: Final = tables.launch_config.c
# Found by an index in its order. A sweep in the future was recorded before the clock was set back.
NEXT_TO_SWEEP: Final = f"""
UPDATE worker_pool SET swept_at = slipway_clock() WHERE id = coalesce(
        (SELECT id FROM worker_pool WHERE NOT deleted AND swept_at < {NOW} - $1 * interval '1 s'
            ORDER BY swept_at LIMIT 1 FOR UPDATE SKIP LOCKED),
        (SELECT id FROM worker_pool WHERE NOT deleted AND swept_at > {NOW}
            ORDER BY swept_at DESC LIMIT 1 FOR UPDATE SKIP LOCKED))
RETURNING id"""
# Once a round, that is.
IS_FIRST: Final = "SELECT $1 = (SELECT min(id) FROM worker_pool WHERE NOT deleted)"
STATE_OF_POOL: Final = Statement(sa.select(*POOL_STATE).where(P.id == sa.bindparam("pool_id")))
# FOR SHARE: otherwise the older state could be published after a pause that commits meanwhile.
CONFIGS_OF: Final = Statement(
    sa.select(*configs.FIELDS)
    .select_from(tables.launch_config_name.join(tables.launch_config, OF_NAME))  # names are locked first
    .where(C.pool_id == sa.bindparam("pool_id"), C.state != "archived")
    .order_by(N.name, C.id)
    .with_for_update(read=True)
)


async def next_to_sweep(tx: Connection, every_seconds: float) -> str | None:
    """Take the pool that was swept longest ago; None if none is due."""
    pool_id: str | None = await tx.fetchval(NEXT_TO_SWEEP, every_seconds)
    return pool_id


async def is_first(tx: Connection, pool_id: str) -> bool:
    """True if the pool is the first one, so that its sweep also does what a round does once for all pools."""
    first: bool = await tx.fetchval(IS_FIRST, pool_id)
    return first


async def republish(tx: Connection, pool_id: str) -> None:
    """Publish the states of a pool and its configs again, unchanged."""
    rows = await tx.fetch(CONFIGS_OF.text, *CONFIGS_OF.arguments(pool_id=pool_id))
    pool = await tx.fetchrow(STATE_OF_POOL.text, *STATE_OF_POOL.arguments(pool_id=pool_id))
    states = [LaunchConfigUpdated(**configs.state(row)) for row in rows]
    await outbox.enqueue(tx, [PoolUpdated(**pool), *states])
