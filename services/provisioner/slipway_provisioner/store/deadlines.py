"""Workers past a deadline: read without locks, as candidates."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_common.events.lifecycle import ASKED_TO_STOP, IN_FLIGHT, REGISTERED
from slipway_provisioner.store.tables import FINISHING, in_states, states

OVERDUE_BOOTS: Final = f"""
SELECT id::text FROM worker
WHERE state IN ({states(IN_FLIGHT["boot"])}) AND launched_at < slipway_clock() - $1 * interval '1 s'
ORDER BY id LIMIT 200"""
# Idle although a source of its pool has had pending tasks for as long; `throughout`: during all of its idle time. Where
# claims are not reported by a hook, the worker may be busy unless no source has seen a claimed task in that time.
IDLE_DESPITE_DEMAND: Final = f"""
SELECT w.id::text, w.idle_since, bool_or(d.pending_since <= w.idle_since) AS throughout
FROM worker w JOIN launch_config c ON c.id = w.launch_config_id JOIN demand d ON d.pool_id = w.pool_id
WHERE w.state IN ({states(REGISTERED)}) AND w.idle_since < slipway_clock() - $1 * interval '1 s'
    AND d.pending_since < slipway_clock() - $1 * interval '1 s'
    AND d.observed_at + d.valid_for_seconds * interval '1 s' > slipway_clock()
    AND (c.claim_evidence = 'hook' OR (c.claim_evidence = 'queue' AND NOT EXISTS (
        SELECT FROM demand q WHERE q.pool_id = w.pool_id AND q.claimed_seen_at >= w.idle_since)))
GROUP BY w.id ORDER BY w.id LIMIT 200"""
# Only pools whose boot evidence is `register` have an agent that sends heartbeats.
UNRESPONSIVE: Final = f"""
SELECT worker.id::text, worker.last_seen_at FROM worker JOIN launch_config c ON c.id = worker.launch_config_id
WHERE ({Statement(in_states(REGISTERED) | FINISHING).text})
    AND worker.last_seen_at < slipway_clock() - $1 * interval '1 s' AND c.boot_evidence = 'register'
ORDER BY worker.id LIMIT 200"""
# A worker that never registered cannot be asked to stop; the others get the grace period to stop by themselves. For one
# that was asked to stop as idle it begins after the task that it may have claimed at that moment. A row that is taken
# moves to the end of the queue whatever the call's result, so a failing account does not block others.
TAKE_STOPPING: Final = f"""
UPDATE worker SET termination_requested_at = slipway_clock() WHERE id IN (
    SELECT id FROM worker WHERE state IN ({states(ASKED_TO_STOP)}) AND instance_id IS NOT NULL
        AND (registered_at IS NULL OR (stopping_at < slipway_clock() - $1 * interval '1 s'
            AND (NOT may_finish OR idle_since < slipway_clock() - $1 * interval '1 s')))
        AND (termination_requested_at IS NULL OR termination_requested_at < slipway_clock() - $2 * interval '1 s')
    ORDER BY termination_requested_at NULLS FIRST, id LIMIT 50 FOR UPDATE SKIP LOCKED)
RETURNING account_id, instance_id"""


class IdleTime(msgspec.Struct, frozen=True):
    """Idle time of a worker, and True if tasks were pending throughout."""

    since: datetime
    throughout: bool


class Terminable(msgspec.Struct, frozen=True):
    """An instance that may be terminated now."""

    account_id: str
    instance_id: str


async def overdue_boots(db: Connection, timeout_seconds: float) -> list[str]:
    """Workers whose instance has not registered within `timeout_seconds` of its launch."""
    return [row["id"] for row in await db.fetch(OVERDUE_BOOTS, timeout_seconds)]


async def idle_despite_demand(db: Connection, idle_seconds: float) -> Mapping[str, IdleTime]:
    """Workers idle for `idle_seconds` in a pool whose tasks were pending for as long."""
    rows = await db.fetch(IDLE_DESPITE_DEMAND, idle_seconds)
    return {row["id"]: IdleTime(row["idle_since"], row["throughout"]) for row in rows}


async def unresponsive(db: Connection, timeout_seconds: float) -> Mapping[str, datetime]:
    """Workers without contact for `timeout_seconds`, with the time of their last contact."""
    return {row["id"]: row["last_seen_at"] for row in await db.fetch(UNRESPONSIVE, timeout_seconds)}


async def take_terminable(db: Connection, *, grace_seconds: float, again_seconds: float) -> list[Terminable]:
    """Take up to 50 instances of stopping workers past the grace period, each at most once in `again_seconds`."""
    return [Terminable(**row) for row in await db.fetch(TAKE_STOPPING, grace_seconds, again_seconds)]
