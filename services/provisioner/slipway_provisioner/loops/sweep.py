"""The level under the edges: every pool is planned for now and then, old rows are forgotten, states republished.

A lost wake-up, a late write of a zombie and a bug in marking heal within one round.
"""

from collections.abc import Callable
from typing import Final

from slipway_common import outbox
from slipway_common.events.launch_config import LaunchConfigUpdated
from slipway_common.events.pool import PoolUpdated
from slipway_common.postgres import Pool
from slipway_common.telemetry import logger
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import configs, declarations, marks

LOG = logger(__name__)
UNFOLDED_SECONDS: Final = 3600  # longer than any record is late whose calculator is heard
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
UPDATE launch_config_outcomes f SET failures = shown.failures, unfolded_since = NULL FROM (
    SELECT w.launch_config_id, count(*) AS failures FROM worker w JOIN launch_batch b ON b.id = w.batch_id
    JOIN launch_config c ON c.id = w.launch_config_id AND w.requested_at >= c.declared_at
    WHERE w.state = 'stopped' AND w.launched_at IS NULL AND w.registered_at IS NULL AND b.state = 'known'
    GROUP BY w.launch_config_id) AS shown
WHERE f.launch_config_id = shown.launch_config_id AND f.stage = 'launch' AND f.failures < shown.failures
RETURNING f.launch_config_id"""
# A failure whose record is dead and names nobody is folded by nobody. Nobody can tell which one it is; but what was
# sent and has not been folded for an hour, by a calculator heard at each sweep ($2), will not be. A new failure
# begins the hour anew, so that none is over before its own hour. What is folded after all is over no more.
OVER: Final = f"""
WITH found AS (
    SELECT o.launch_config_id, o.stage, o.over AS before,
        greatest(0, o.failures - (g.record -> 'stages' -> o.stage ->> 'failures_folded')::bigint) AS unfolded,
        $2 AND NOT EXISTS (SELECT FROM outbox WHERE at < slipway_clock() - interval '1 min') AS told
    FROM launch_config_outcomes o JOIN launch_config c ON c.id = o.launch_config_id
    JOIN weight g ON g.launch_config_id = c.id
    WHERE c.pool_id = $1 AND c.state <> 'archived' ORDER BY o.launch_config_id, o.stage FOR UPDATE OF o)
UPDATE launch_config_outcomes o SET
    over = CASE WHEN f.told AND o.unfolded_since <= slipway_clock() - interval '{UNFOLDED_SECONDS} s' THEN f.unfolded
        ELSE least(o.over, f.unfolded) END,
    unfolded_since = CASE WHEN f.told AND f.unfolded > 0 THEN coalesce(o.unfolded_since, slipway_clock()) END
FROM found f WHERE (o.launch_config_id, o.stage) = (f.launch_config_id, f.stage)
RETURNING o.launch_config_id, o.stage, o.over - f.before AS forgotten"""
FORGET: Final = (
    "DELETE FROM claim WHERE ended_at < slipway_clock() - interval '1 day'",
    "DELETE FROM decision WHERE last_at < slipway_clock() - interval '7 days'",
    "DELETE FROM worker WHERE state = 'stopped' AND ended_at < slipway_clock() - interval '14 days'",
    "DELETE FROM launch_batch WHERE state = 'known' AND known_at < slipway_clock() - interval '14 days'",
    "DELETE FROM lease WHERE state = 'ended' AND renewed_at < slipway_clock() - interval '14 days'",
)


async def sweep_next(pool: Pool, *, settings: Settings, calculator_silent_seconds: Callable[[], float]) -> bool:
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
        for row in await db.fetch(OVER, pool_id, not calculator_silent_seconds()):
            if row["forgotten"] > 0:
                LOG.warning("failures that nobody has folded for an hour hold no window any more", **row)
        for statement in FORGET:
            await db.execute(statement)
    return True
