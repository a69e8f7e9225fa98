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
# Shared: a pause that commits meanwhile would be overwritten by the older state.
CONFIGS: Final = f"""
SELECT {configs.COLUMNS} FROM launch_config WHERE pool_id = $1 AND state <> 'archived' ORDER BY id FOR SHARE"""
# Counters are never lower than what the rows of failed workers show. Of a config that came back late they began anew.
REPAIR: Final = """
UPDATE launch_config_outcomes f SET failures = shown.failures FROM (
    SELECT w.launch_config_id, count(*) AS failures FROM worker w JOIN launch_batch b ON b.id = w.batch_id
    JOIN launch_config c ON c.id = w.launch_config_id AND w.requested_at >= c.declared_at
    WHERE w.state = 'stopped' AND w.launched_at IS NULL AND w.registered_at IS NULL AND b.state = 'known'
    GROUP BY w.launch_config_id) AS shown
WHERE f.launch_config_id = shown.launch_config_id AND f.stage = 'launch' AND f.failures < shown.failures
RETURNING f.launch_config_id"""
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
        for row in await db.fetch(REPAIR):
            LOG.error("a failure counter was below its rows", config=row["launch_config_id"])
        for statement in FORGET:
            await db.execute(statement)
    return True
