"""Workers past a deadline: read without locks, as candidates. Deadlines count uptime: the time up to the newest pass,
less the downtime between passes, in which no report could be received."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_api.events.lifecycle import ENDED, IN_FLIGHT, REGISTERED
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_provisioner.domain.deadlines import DefaultDeadlines
from slipway_provisioner.domain.identity import Age
from slipway_provisioner.domain.unresponsiveness import TIMEOUT_PART, Unresponsiveness
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


def seconds(name: str, defaults: str = "$1") -> str:
    """Deadline of the workers of a revision `c` with the name `n`: as declared, else that of its profile, by the
    parameter `defaults`. NULL if there is none."""
    return f"coalesce((n.deadlines ->> '{name}')::float8, ({defaults}::jsonb -> c.profile ->> '{name}')::float8)"


def maximum_age(defaults: str, day_seconds: str) -> str:
    """Maximum age of the workers of a revision `c` with the name `n`, by these parameters: the declared one, or the
    lifetime of a spend limit. These count no more than a day for a machine, so that one of a day or more limits no
    age."""
    return f"""least({seconds("maximum_age_seconds", defaults)}, (
        SELECT min(l.lifetime_seconds) FROM launch_limit l
        WHERE l.spend_per_day IS NOT NULL AND l.lifetime_seconds < {day_seconds}
            AND ((l.scope = 'account' AND l.scope_id = c.account_id)
                OR (l.scope = 'pool' AND l.scope_id = c.pool_id))))"""


def shortest(*names: str) -> str:
    """Shortest of these deadlines of any worker, by the defaults $1 and an index for those that are declared."""
    declared = [f"(SELECT min((deadlines ->> '{name}')::float8) FROM launch_config_name)" for name in names]
    defaults = [
        f"(SELECT min((d ->> '{name}')::float8) FROM jsonb_each($1::jsonb) AS p (profile, d))" for name in names
    ]
    return f"least({', '.join([*declared, *defaults])})"


def _revision(**fields: str) -> str:
    """Fields, by expression, of the revision of a worker `w`, looked up for one worker after another: joined as a
    table, all revisions would be read for a few workers."""
    selected = ", ".join(f"{expression} AS {name}" for name, expression in fields.items())
    return f"""CROSS JOIN LATERAL (
    SELECT {selected} FROM launch_config c JOIN launch_config_name n ON n.name = c.name
    WHERE c.id = w.launch_config_id LIMIT 1) AS c"""


# A worker that can be past its deadline is found by an index on the time since when it counts, compared with the
# shortest deadline. `uptime_since`, which costs a call for each row, implies the condition before it.
OVERDUE_BOOTS: Final = f"""
WITH overdue AS (SELECT slipway_clock() - {shortest("registration_seconds")} * interval '1 s' AS since)
SELECT w.id::text FROM worker w {_revision(registration_seconds=seconds("registration_seconds"))}
WHERE w.state IN ({states(IN_FLIGHT["boot"])}) AND w.launched_at < (SELECT since FROM overdue)
    AND w.launched_at < slipway_clock() - c.registration_seconds * interval '1 s'
    AND uptime_since(w.launched_at) > c.registration_seconds
ORDER BY w.launched_at, w.id LIMIT 200"""
_NAMES: Final = (
    "registration_seconds",
    "first_claim_seconds",
    "idle_seconds",
    "idle_despite_demand_seconds",
    "unresponsive_seconds",
    "credential_seconds",
    "drain_seconds",
)
IN_FORCE: Final = f"""
SELECT {", ".join(f"{seconds(name)} AS {name}" for name in _NAMES)}, {maximum_age("$1", "$3")} AS maximum_age_seconds
FROM launch_config c JOIN launch_config_name n ON n.name = c.name WHERE c.id = $2"""
REGISTRATION: Final = f"""
SELECT {seconds("registration_seconds")} FROM launch_config c JOIN launch_config_name n ON n.name = c.name
WHERE c.id = $2"""
# Idle although a source of its pool has had pending tasks for as long; `throughout`: during all of its idle time. Where
# claims are not reported by a hook, the worker may be busy unless no source has seen a claimed task in that time.
_IDLE_SECONDS: Final = f"""CASE WHEN w.first_claimed_at IS NULL THEN {seconds("first_claim_seconds")}
    ELSE {seconds("idle_despite_demand_seconds")} END"""
IDLE_DESPITE_DEMAND: Final = f"""
WITH overdue AS (
    SELECT slipway_clock() - {shortest("first_claim_seconds", "idle_despite_demand_seconds")} * interval '1 s' AS since)
SELECT w.id::text, w.idle_since, bool_or(d.pending_since <= w.idle_since) AS throughout
FROM demand d CROSS JOIN LATERAL (
    SELECT id, pool_id, launch_config_id, first_claimed_at, idle_since, last_seen_at FROM worker
    WHERE pool_id = d.pool_id AND state IN ({states(REGISTERED)}) AND idle_since < (SELECT since FROM overdue)
    OFFSET 0) AS w
{_revision(claim_evidence="c.claim_evidence", idle_seconds=_IDLE_SECONDS)}
WHERE d.pending_since < (SELECT since FROM overdue)
    AND w.idle_since < slipway_clock() - c.idle_seconds * interval '1 s'
    AND d.pending_since < slipway_clock() - c.idle_seconds * interval '1 s'
    AND uptime_since(greatest(w.idle_since, d.pending_since)) > c.idle_seconds AND {SEEN_SINCE_DOWNTIME}
    AND d.observed_at + d.valid_for_seconds * interval '1 s' > slipway_clock()
    AND (c.claim_evidence = 'hook' OR (c.claim_evidence = 'queue' AND NOT EXISTS (
        SELECT FROM demand q WHERE q.pool_id = w.pool_id
            AND (q.claimed_seen_at >= w.idle_since OR (q.claimed IS NULL AND q.ended_at IS NULL)))))
GROUP BY w.id, w.idle_since ORDER BY w.id LIMIT 200"""
# Only pools whose boot evidence is `register` have an agent that sends heartbeats.
_HEARTBEATS: Final = "boot_evidence = 'register'"
_REGISTERED: Final = f"""
    SELECT id, account_id, launch_config_id, last_seen_at FROM worker
    WHERE state NOT IN ({states(ENDED)}) AND ({Statement(in_states(REGISTERED) | FINISHING).text})"""
# Bounded on both sides: of a comparison with an unknown time the server expects a third of all workers, and reads all.
_OUT_OF_CONTACT: Final = "contact_period >= '-infinity' AND contact_period < (SELECT since FROM overdue)"


def _overdue(part: str = "1") -> str:
    """Time of the last contact of a worker for which this part of the shortest time-out has passed."""
    return (
        f"overdue AS (SELECT slipway_clock() - {part} * {shortest('unresponsive_seconds')} * interval '1 s' AS since)"
    )


def _unresponsive(part: str = "1") -> str:
    """Condition that a worker `w` has had no contact for this part of its time-out."""
    return f"""w.last_seen_at < slipway_clock() - {part} * w.unresponsive_seconds * interval '1 s'
    AND uptime_since(w.last_seen_at) > {part} * w.unresponsive_seconds"""


UNRESPONSIVE_ACCOUNTS: Final = f"""
WITH {_overdue()}
SELECT id FROM account WHERE mass_unresponsive UNION
SELECT w.account_id FROM (
    SELECT w.account_id, w.last_seen_at, c.unresponsive_seconds FROM ({_REGISTERED} AND {_OUT_OF_CONTACT} OFFSET 0) AS w
    {_revision(boot_evidence="c.boot_evidence", unresponsive_seconds=seconds("unresponsive_seconds"))}
    WHERE c.{_HEARTBEATS}) AS w
WHERE {_unresponsive()}"""
# Revisions of whole accounts, which are read once. Their names are looked up: joined, all names would be read.
_REVISIONS: Final = f"""revision AS MATERIALIZED (
    SELECT c.id, c.pool_id, c.account_id, n.unresponsive_seconds FROM launch_config c CROSS JOIN LATERAL (
        SELECT {seconds("unresponsive_seconds")} AS unresponsive_seconds FROM launch_config_name n
        WHERE n.name = c.name LIMIT 1) AS n
    WHERE c.account_id = ANY($2) AND c.state <> 'archived' AND c.{_HEARTBEATS})"""
_OF_ACCOUNTS: Final = f"""(
    SELECT w.id, w.account_id, w.last_seen_at, c.unresponsive_seconds FROM ({_REGISTERED}
        AND account_id = ANY($2) AND {_OUT_OF_CONTACT} OFFSET 0) AS w
    JOIN revision c ON c.id = w.launch_config_id) AS w"""
UNRESPONSIVE: Final = f"""
WITH {_overdue()}, {_REVISIONS}
SELECT w.id::text, w.last_seen_at FROM {_OF_ACCOUNTS} WHERE {_unresponsive()} ORDER BY w.id LIMIT 200"""
# Registered workers are those of the counters, and those that finish a task: only workers without contact are read.
WITHOUT_CONTACT: Final = f"""
WITH {_overdue("$3::float8")}, {_REVISIONS},
registered AS (
    SELECT c.account_id, sum(u.running + f.finishing)::int AS workers FROM revision c
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(running), 0) AS running FROM config_usage
        WHERE pool_id = c.pool_id AND launch_config_id = c.id) AS u
    CROSS JOIN LATERAL (
        SELECT count(*) AS finishing FROM worker
        WHERE pool_id = c.pool_id AND launch_config_id = c.id AND state NOT IN ({states(ENDED)})
            AND {Statement(FINISHING).text}) AS f
    GROUP BY c.account_id),
silent AS (
    SELECT w.account_id, count(*)::int AS workers FROM {_OF_ACCOUNTS} WHERE {_unresponsive("$3::float8")}
    GROUP BY w.account_id)
SELECT a.id AS account_id, a.mass_unresponsive AS kept, coalesce(r.workers, 0) AS registered,
    coalesce(s.workers, 0) AS without_contact
FROM account a LEFT JOIN registered r ON r.account_id = a.id LEFT JOIN silent s ON s.account_id = a.id
WHERE a.id = ANY($2) ORDER BY a.id"""


class IdleTime(msgspec.Struct, frozen=True):
    """Idle time of a worker, and True if tasks were pending throughout."""

    since: datetime
    throughout: bool


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


async def registration_seconds(db: Connection, config_id: str, defaults: DefaultDeadlines) -> float | None:
    """Registration deadline of the workers of a revision; None if it does not exist any more."""
    seconds: float | None = await db.fetchval(REGISTRATION, defaults, config_id)
    return seconds


async def in_force(
    db: Connection, config_id: str, defaults: DefaultDeadlines, day_seconds: float
) -> Mapping[str, float]:
    """Deadlines of the workers of a revision by name, without those that never pass."""
    row = await db.fetchrow(IN_FORCE, defaults, config_id, day_seconds) or {}
    return {name: seconds for name, seconds in row.items() if seconds is not None}


async def overdue_boots(db: Connection, defaults: DefaultDeadlines) -> list[str]:
    """Workers whose instance has not registered within its deadline, of uptime after its launch."""
    return [row["id"] for row in await db.fetch(OVERDUE_BOOTS, defaults)]


async def idle_despite_demand(db: Connection, defaults: DefaultDeadlines) -> Mapping[str, IdleTime]:
    """Workers that were idle up to their deadline in a pool whose tasks were pending for as long."""
    rows = await db.fetch(IDLE_DESPITE_DEMAND, defaults)
    return {row["id"]: IdleTime(row["idle_since"], row["throughout"]) for row in rows}


async def unresponsive_accounts(db: Connection, defaults: DefaultDeadlines) -> list[str]:
    """Accounts that have an unresponsive worker, or whose unresponsive ones are kept."""
    return [row["id"] for row in await db.fetch(UNRESPONSIVE_ACCOUNTS, defaults)]


async def unresponsiveness(
    db: Connection, defaults: DefaultDeadlines, account_ids: Sequence[str]
) -> list[Unresponsiveness]:
    """Workers without contact of each of these accounts."""
    rows = await db.fetch(WITHOUT_CONTACT, defaults, account_ids, TIMEOUT_PART)
    return [Unresponsiveness(**row) for row in rows]


async def unresponsive(
    db: Connection, defaults: DefaultDeadlines, account_ids: Sequence[str]
) -> Mapping[str, datetime]:
    """Up to 200 workers of these accounts without contact up to their deadline, of uptime, with the time of their last
    contact."""
    return {row["id"]: row["last_seen_at"] for row in await db.fetch(UNRESPONSIVE, defaults, account_ids)}
