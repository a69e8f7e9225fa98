"""Workers past a deadline: read without locks, as candidates. Deadlines count uptime: the time up to the newest pass,
less the downtime between passes, in which no report could be received."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_common.events.lifecycle import ASKED_TO_STOP, IN_FLIGHT, REGISTERED
from slipway_provisioner.domain.identity import Age
from slipway_provisioner.domain.silence import SILENT_PART, Silence
from slipway_provisioner.store import accounts
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.tables import FINISHING, in_states

# A pass is recorded before the deadlines are read. The time between two passes beyond the regular $1 is downtime: so
# slow passes do not suspend deadlines. Downtime ahead of the clock was recorded before the clock was set back; the part
# of it that is behind the clock still counts.
RECORD: Final = """
WITH pass AS (
    INSERT INTO deadline_pass (at) VALUES (slipway_clock())
    ON CONFLICT (id) DO UPDATE SET at = slipway_clock(), previous_at = deadline_pass.at
    RETURNING at, previous_at),
outdated AS (
    DELETE FROM downtime d USING pass WHERE d.from_at >= pass.at OR d.until_at < pass.at - interval '30 days'),
shortened AS (
    UPDATE downtime d SET until_at = pass.at FROM pass WHERE d.from_at < pass.at AND d.until_at > pass.at)
INSERT INTO downtime (from_at, until_at)
SELECT previous_at + $1 * interval '1 s', at FROM pass WHERE at > previous_at + $1 * interval '1 s'
RETURNING extract(epoch FROM until_at - from_at)::float8"""
# A worker that has not been seen since the newest downtime may have claimed a task meanwhile, so that it is not known
# to be idle. Workers without an agent are never seen.
SEEN_SINCE_DOWNTIME: Final = "NOT EXISTS (SELECT FROM downtime d WHERE d.until_at > w.last_seen_at)"
# Within $1 after a downtime only what was settled before it counts as old.
LISTED: Final = """
SELECT coalesce((
    SELECT least(p.at, (SELECT min(d.from_at) FROM downtime d WHERE d.until_at > p.at - $1 * interval '1 s'))
    FROM deadline_pass p), slipway_clock())"""
# Before the first pass nothing is old.
AGE: Final = """
SELECT coalesce(uptime_since($1), 0) AS uptime_seconds,
    extract(epoch FROM $1 - slipway_clock())::float8 AS ahead_seconds"""
# The first condition is implied by the second, which costs a call for each row.
OVERDUE_BOOTS: Final = f"""
SELECT id::text FROM worker
WHERE state IN ({states(IN_FLIGHT["boot"])}) AND launched_at < slipway_clock() - $1 * interval '1 s'
    AND uptime_since(launched_at) > $1
ORDER BY id LIMIT 200"""
# Idle although a source of its pool has had pending tasks for as long; `throughout`: during all of its idle time. Where
# claims are not reported by a hook, the worker may be busy unless no source has seen a claimed task in that time.
IDLE_DESPITE_DEMAND: Final = f"""
SELECT w.id::text, w.idle_since, bool_or(d.pending_since <= w.idle_since) AS throughout
FROM worker w JOIN launch_config c ON c.id = w.launch_config_id JOIN demand d ON d.pool_id = w.pool_id
WHERE w.state IN ({states(REGISTERED)}) AND w.idle_since < slipway_clock() - $1 * interval '1 s'
    AND d.pending_since < slipway_clock() - $1 * interval '1 s'
    AND uptime_since(greatest(w.idle_since, d.pending_since)) > $1 AND {SEEN_SINCE_DOWNTIME}
    AND d.observed_at + d.valid_for_seconds * interval '1 s' > slipway_clock()
    AND (c.claim_evidence = 'hook' OR (c.claim_evidence = 'queue' AND NOT EXISTS (
        SELECT FROM demand q WHERE q.pool_id = w.pool_id AND q.claimed_seen_at >= w.idle_since)))
GROUP BY w.id ORDER BY w.id LIMIT 200"""
# Only pools whose boot evidence is `register` have an agent that sends heartbeats.
_SENDING_HEARTBEATS: Final = f"""worker
    JOIN launch_config c ON c.id = worker.launch_config_id AND c.boot_evidence = 'register'
    AND ({Statement(in_states(REGISTERED) | FINISHING).text})"""
_UNRESPONSIVE: Final = f"""
SELECT {{columns}} FROM {_SENDING_HEARTBEATS}
WHERE worker.last_seen_at < slipway_clock() - $1 * interval '1 s' AND uptime_since(worker.last_seen_at) > $1"""
UNRESPONSIVE: Final = f"""
{_UNRESPONSIVE.format(columns="worker.id::text, worker.last_seen_at")} AND worker.account_id <> ALL($2)
ORDER BY worker.id LIMIT 200"""
UNRESPONSIVE_IN: Final = f"""
{_UNRESPONSIVE.format(columns="worker.id::text, worker.last_seen_at")} AND worker.account_id = $2
ORDER BY worker.id LIMIT 200"""
# Accounts with an unresponsive worker, and those whose unresponsive workers are kept.
SILENT: Final = f"""
SELECT a.id AS account_id, a.silent AS kept, count(worker.id)::int AS registered,
    (count(worker.id) FILTER (WHERE worker.last_seen_at < slipway_clock() - $1::float8 * $2::float8 * interval '1 s'
        AND uptime_since(worker.last_seen_at) > $1 * $2))::int AS silent
FROM account a LEFT JOIN ({_SENDING_HEARTBEATS}) ON worker.account_id = a.id
WHERE a.silent OR a.id IN ({_UNRESPONSIVE.format(columns="worker.account_id")})
GROUP BY a.id ORDER BY a.id"""
# A worker that never registered cannot be asked to stop; the others get the grace period to stop by themselves. For one
# that was asked to stop as idle it begins after the task that it may have claimed at that moment. A row that is taken
# moves to the end of the queue whatever the call's result, so a failing account does not block others. A request in the
# future was made before the clock was set back.
TAKE_STOPPING: Final = f"""
UPDATE worker SET termination_requested_at = slipway_clock() WHERE id = ANY (ARRAY(
    SELECT id FROM worker WHERE state IN ({states(ASKED_TO_STOP)}) AND instance_id IS NOT NULL
        AND NOT {accounts.unreachable("worker")}
        AND (registered_at IS NULL OR (uptime_since(stopping_at) > $1
            AND (NOT may_finish OR uptime_since(idle_since) > $1)))
        AND (termination_requested_at IS NULL
            OR termination_requested_at NOT BETWEEN slipway_clock() - $2 * interval '1 s' AND slipway_clock())
    ORDER BY termination_requested_at NULLS FIRST, id LIMIT 50 FOR UPDATE SKIP LOCKED))
RETURNING account_id, instance_id"""


class IdleTime(msgspec.Struct, frozen=True):
    """Idle time of a worker, and True if tasks were pending throughout."""

    since: datetime
    throughout: bool


class Terminable(msgspec.Struct, frozen=True):
    """An instance that may be terminated now."""

    account_id: str
    instance_id: str


async def record_pass(tx: Connection, *, regular_seconds: float) -> float:
    """Record that a pass over the deadlines begins; returns the seconds of downtime before it, beyond the regular time
    between two passes."""
    downtime_seconds: float | None = await tx.fetchval(RECORD, regular_seconds)
    return downtime_seconds or 0.0


async def listed_at(db: Connection, *, settled_seconds: float) -> datetime:
    """Time of a listing that begins now: a jump of the clock makes nothing older than `settled_seconds` of uptime."""
    at: datetime = await db.fetchval(LISTED, settled_seconds)
    return at


async def age(db: Connection, at: datetime) -> Age:
    """Age of something that began at a time."""
    return Age(**await db.fetchrow(AGE, at))


async def overdue_boots(db: Connection, timeout_seconds: float) -> list[str]:
    """Workers whose instance has not registered within `timeout_seconds` of uptime after its launch."""
    return [row["id"] for row in await db.fetch(OVERDUE_BOOTS, timeout_seconds)]


async def idle_despite_demand(db: Connection, idle_seconds: float) -> Mapping[str, IdleTime]:
    """Workers idle for `idle_seconds` in a pool whose tasks were pending for as long."""
    rows = await db.fetch(IDLE_DESPITE_DEMAND, idle_seconds)
    return {row["id"]: IdleTime(row["idle_since"], row["throughout"]) for row in rows}


async def silences(db: Connection, timeout_seconds: float) -> list[Silence]:
    """Silent workers of each account that has an unresponsive one, or whose unresponsive ones are kept."""
    return [Silence(**row) for row in await db.fetch(SILENT, timeout_seconds, SILENT_PART)]


async def unresponsive(db: Connection, timeout_seconds: float, *, kept: Sequence[str] = ()) -> Mapping[str, datetime]:
    """Up to 200 workers without contact for `timeout_seconds` of uptime, with the time of their last contact, but for
    those of the accounts that are `kept`."""
    return {row["id"]: row["last_seen_at"] for row in await db.fetch(UNRESPONSIVE, timeout_seconds, kept)}


async def unresponsive_in(db: Connection, account_id: str, timeout_seconds: float) -> Mapping[str, datetime]:
    """Up to 200 workers of an account without contact for `timeout_seconds` of uptime, with the time of the last."""
    return {row["id"]: row["last_seen_at"] for row in await db.fetch(UNRESPONSIVE_IN, timeout_seconds, account_id)}


async def take_terminable(db: Connection, *, grace_seconds: float, again_seconds: float) -> list[Terminable]:
    """Take up to 50 instances of stopping workers past the grace period, each at most once in `again_seconds`."""
    return [Terminable(**row) for row in await db.fetch(TAKE_STOPPING, grace_seconds, again_seconds)]
