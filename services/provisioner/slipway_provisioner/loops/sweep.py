"""Periodic sweep: plans every pool now and then, republishes states, repairs counters and deletes old rows.

Level-triggered: a lost wake-up, a late write of a fenced process or a bug in marking heals within one round.
"""

from collections.abc import Callable
from typing import Final

from slipway_common.database.postgres import Database
from slipway_common.events.launch_config import LaunchConfigUpdated
from slipway_common.events.pool import PoolUpdated
from slipway_common.messaging import outbox
from slipway_common.observability.telemetry import logger
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import configs, declarations, marks

LOG = logger(__name__)
UNFOLDED_SECONDS: Final = 3600  # longer than any record is late while the calculator is available
NEXT: Final = """
UPDATE worker_pool SET swept_at = slipway_clock() WHERE id = (
    SELECT id FROM worker_pool WHERE swept_at < slipway_clock() - $1 * interval '1 s' AND NOT deleted
    ORDER BY swept_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id"""
# FOR SHARE: otherwise the older state could be published after a pause that commits meanwhile.
CONFIGS: Final = f"""
SELECT {configs.COLUMNS} FROM launch_config WHERE pool_id = $1 AND state <> 'archived' ORDER BY id FOR SHARE"""
# A counter must not be below the number of failed workers. Counters of a config that was declared again start at zero.
REPAIR: Final = """
UPDATE launch_config_outcomes f SET failures = shown.failures, unfolded_since = NULL FROM (
    SELECT w.launch_config_id, count(*) AS failures FROM worker w JOIN launch_batch b ON b.id = w.batch_id
    JOIN launch_config c ON c.id = w.launch_config_id AND w.requested_at >= c.declared_at
    WHERE w.state = 'stopped' AND w.launched_at IS NULL AND w.registered_at IS NULL AND b.state = 'known'
    GROUP BY w.launch_config_id) AS shown
WHERE f.launch_config_id = shown.launch_config_id AND f.stage = 'launch' AND f.failures < shown.failures
RETURNING f.launch_config_id"""
# A failure whose event was dead-lettered is never folded by the calculator, and its config cannot always be identified.
# So failures that were published and not folded for an hour, while the calculator was available at each sweep ($2), are
# written off. A new failure restarts the hour, so that none is written off early. A failure that is folded after all
# is no longer written off.
WRITE_OFF: Final = f"""
WITH found AS (
    SELECT o.launch_config_id, o.stage, o.written_off AS before,
        greatest(0, o.failures - (g.record -> 'stages' -> o.stage ->> 'failures_folded')::bigint) AS unfolded,
        $2 AND NOT EXISTS (SELECT FROM outbox WHERE at < slipway_clock() - interval '1 min') AS published
    FROM launch_config_outcomes o JOIN launch_config c ON c.id = o.launch_config_id
    JOIN weight g ON g.launch_config_id = c.id
    WHERE c.pool_id = $1 AND c.state <> 'archived' ORDER BY o.launch_config_id, o.stage FOR UPDATE OF o)
UPDATE launch_config_outcomes o SET
    written_off = CASE WHEN f.published AND o.unfolded_since <= slipway_clock() - interval '{UNFOLDED_SECONDS} s'
        THEN f.unfolded
        ELSE least(o.written_off, f.unfolded) END,
    unfolded_since = CASE WHEN f.published AND f.unfolded > 0 THEN coalesce(o.unfolded_since, slipway_clock()) END
FROM found f WHERE (o.launch_config_id, o.stage) = (f.launch_config_id, f.stage)
RETURNING o.launch_config_id, o.stage, o.written_off - f.before AS written_off"""
DELETE_OLD: Final = (
    "DELETE FROM claim WHERE ended_at < slipway_clock() - interval '1 day'",
    "DELETE FROM decision WHERE last_at < slipway_clock() - interval '7 days'",
    "DELETE FROM worker WHERE state = 'stopped' AND ended_at < slipway_clock() - interval '14 days'",
    "DELETE FROM launch_batch WHERE state = 'known' AND known_at < slipway_clock() - interval '14 days'",
    "DELETE FROM lease WHERE state = 'ended' AND renewed_at < slipway_clock() - interval '14 days'",
)


async def sweep_next(
    database: Database, *, settings: Settings, calculator_unavailable_seconds: Callable[[], float]
) -> bool:
    """Sweep one pool that is due; False if none is."""
    async with database.acquire() as db, db.transaction():
        pool_id = await db.fetchval(NEXT, settings.sweep_seconds)
        if pool_id is None:
            return False
        await marks.dirty(db, {pool_id}, reason="sweep")
        states = [LaunchConfigUpdated(**configs.state(row)) for row in await db.fetch(CONFIGS, pool_id)]
        state = PoolUpdated(**await declarations.pool_state(db, pool_id))
        await outbox.enqueue(db, [state, *states])
    async with database.acquire() as db:
        for row in await db.fetch(REPAIR):
            LOG.error(
                "a failure counter was below the number of failed workers and was repaired",
                config=row["launch_config_id"],
            )
        for row in await db.fetch(WRITE_OFF, pool_id, not calculator_unavailable_seconds()):
            if row["written_off"] > 0:
                LOG.warning("failures not folded into a weight for an hour no longer count against the window", **row)
        for statement in DELETE_OLD:
            await db.execute(statement)
    return True
