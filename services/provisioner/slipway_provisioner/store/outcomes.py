"""Counters of outcomes per config and stage: repair, and failures that will never be folded into a weight."""

from typing import Any, Final

from slipway_api.events.lifecycle import ENDED
from slipway_common.database.postgres import Connection
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.store.columns import states

LATE_RECORD_SECONDS: Final = 60  # longest delay of a weight record
UNFOLDED_SECONDS: Final = 3600  # longer than a record can be delayed while the calculator is available
# A counter must not be below the number of failed workers.
REPAIR: Final = f"""
UPDATE launch_config_outcomes f SET failures = shown.failures, unfolded_since = NULL FROM (
    SELECT w.launch_config_id, count(*) AS failures FROM worker w JOIN launch_batch b ON b.id = w.batch_id
    WHERE w.pool_id = $1 AND w.state IN ({states(ENDED)}) AND w.launched_at IS NULL AND w.registered_at IS NULL
        AND b.state = '{BatchState.KNOWN}'
    GROUP BY w.launch_config_id) AS shown
WHERE f.launch_config_id = shown.launch_config_id AND f.stage = 'launch' AND f.failures < shown.failures
RETURNING f.launch_config_id"""
# A failure whose event was dead-lettered is never folded by the calculator, and its config cannot always be identified.
# So failures that were published and not folded for an hour, while the calculator was available at each sweep ($2), are
# written off. A new failure restarts the hour, so that none is written off early. A failure that is folded after all
# is no longer written off. Archived revisions get no more records: theirs are written off once a last one cannot be
# late.
WRITE_OFF: Final = f"""
WITH found AS (
    SELECT o.launch_config_id, o.stage, o.written_off AS before,
        greatest(0, o.failures - o.folded) AS unfolded,
        c.archived_at < slipway_clock() - interval '{LATE_RECORD_SECONDS} s' AS archived,
        $2 AND g.launch_config_id IS NOT NULL
            AND NOT EXISTS (SELECT FROM outbox WHERE at < slipway_clock() - interval '1 min') AS published
    FROM launch_config_outcomes o JOIN launch_config c ON c.id = o.launch_config_id
    LEFT JOIN weight g ON g.launch_config_id = c.id
    WHERE o.launch_config_id = ANY(ARRAY(
            SELECT id FROM launch_config WHERE pool_id = $1 AND state <> 'archived'
            UNION ALL SELECT launch_config_id FROM launch_config_outcomes WHERE unfolded > 0))
        AND c.pool_id = $1 AND (c.state <> 'archived' OR o.unfolded > 0)
    ORDER BY o.launch_config_id, o.stage FOR UPDATE OF o)
UPDATE launch_config_outcomes o SET
    written_off = CASE WHEN f.archived
            OR f.published AND o.unfolded_since <= slipway_clock() - interval '{UNFOLDED_SECONDS} s'
        THEN f.unfolded
        ELSE least(o.written_off, f.unfolded) END,
    unfolded_since = CASE WHEN f.published AND f.unfolded > 0 THEN coalesce(o.unfolded_since, slipway_clock()) END
FROM found f WHERE (o.launch_config_id, o.stage) = (f.launch_config_id, f.stage)
    AND (f.unfolded > 0 OR o.written_off > 0 OR o.unfolded_since IS NOT NULL)
RETURNING o.launch_config_id, o.stage, o.written_off - f.before AS written_off"""


async def repair(db: Connection, pool_id: str) -> list[str]:
    """Raise counters of a pool's configs that are below the number of failed workers; returns their config ids."""
    return [row["launch_config_id"] for row in await db.fetch(REPAIR, pool_id)]


async def write_off(db: Connection, pool_id: str, *, calculator_available: bool) -> list[dict[str, Any]]:
    """Write off failures of a pool's configs that were not folded in time; returns config, stage and number of each
    counter."""
    return [dict(row) for row in await db.fetch(WRITE_OFF, pool_id, calculator_available)]
