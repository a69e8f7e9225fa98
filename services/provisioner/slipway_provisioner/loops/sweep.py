"""The level under the edges: every pool is planned for now and then, old rows are forgotten, states republished.

A lost wake-up, a late write of a zombie and a bug in marking heal within one round.
"""

from typing import Final

from slipway_common import outbox
from slipway_common.events.launch_config import LaunchConfigUpdated
from slipway_common.events.pool import PoolUpdated
from slipway_common.postgres import Pool
from slipway_common.telemetry import logger
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import configs, declarations, marks

LOG = logger(__name__)
NEXT: Final = """
UPDATE worker_pool SET swept_at = slipway_clock() WHERE id = (
    SELECT id FROM worker_pool WHERE swept_at < slipway_clock() - $1 * interval '1 s' AND NOT deleted
    ORDER BY swept_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id"""
CONFIGS: Final = f"SELECT {configs.COLUMNS} FROM launch_config WHERE pool_id = $1 AND state <> 'archived' ORDER BY id"
# Counters are never lower than what the rows of live workers show; a failed worker's row proves its failure.
DRIFT: Final = """
SELECT launch_config_id, stage, failures FROM launch_config_failures f WHERE stage = 'launch' AND failures < (
    SELECT count(*) FROM worker w JOIN launch_batch b ON b.id = w.batch_id
    WHERE w.launch_config_id = f.launch_config_id AND w.state = 'stopped' AND w.launched_at IS NULL
    AND w.registered_at IS NULL AND b.state = 'known' AND b.outcome NOT IN ('launched', 'throttled'))"""
FORGET: Final = (
    "DELETE FROM claim WHERE ended_at < slipway_clock() - interval '1 day'",
    "DELETE FROM decision WHERE last_at < slipway_clock() - interval '7 days'",
    "DELETE FROM worker WHERE state = 'stopped' AND ended_at < slipway_clock() - interval '14 days'",
    "DELETE FROM launch_batch WHERE state = 'known' AND known_at < slipway_clock() - interval '14 days'",
    "DELETE FROM lease WHERE state = 'ended' AND renewed_at < slipway_clock() - interval '14 days'",
)


async def sweep_next(pool: Pool, *, settings: Settings) -> bool:
    """Sweep one pool that is due; False when none is."""
    async with pool.acquire() as db, db.transaction():
        pool_id = await db.fetchval(NEXT, settings.sweep_seconds)
        if pool_id is None:
            return False
        await marks.dirty(db, {pool_id}, because="sweep")
        states = [LaunchConfigUpdated(**configs.state(row)) for row in await db.fetch(CONFIGS, pool_id)]
        state = PoolUpdated(**await declarations.pool_state(db, pool_id))
        await outbox.enqueue(db, [state, *states])
    async with pool.acquire() as db:
        for row in await db.fetch(DRIFT):
            LOG.error("counter below its rows", config=row["launch_config_id"], stage=row["stage"])
        for statement in FORGET:
            await db.execute(statement)
    return True
