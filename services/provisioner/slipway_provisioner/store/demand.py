"""Demand rows: the newest report per (pool, source), or its end. Claim rows: tasks that run or ran on workers.

A source that has ended keeps its row for days, so that reports from before its end, which may be read again, do not
count."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slipway_api.events.lifecycle import ENDED as STOPPED
from slipway_api.events.lifecycle import LEAVING, REGISTERED
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, arrays, columns, given, names
from slipway_common.declaration.deadlines import DRAIN_SECONDS_MAX, DRAIN_SECONDS_MIN
from slipway_provisioner.domain import accounting
from slipway_provisioner.domain.accounting import Departures, Sample
from slipway_provisioner.domain.claims import Claim
from slipway_provisioner.domain.demand import Report
from slipway_provisioner.domain.pool import Demand
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store import tables, usage
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.tables import ENDED_CLAIM, LASTED, claim, in_states, worker

D: Final = tables.demand.c
REPORTED: Final = tuple(D[name] for name in Report.__struct_fields__)
CLAIM: Final = tuple(claim.c[name] for name in Claim.__struct_fields__)
# Claimed tasks of a source `d`. One that knows only what waits has those whose claims were open at its sample.
CLAIMED: Final = """coalesce(d.claimed, (
    SELECT count(*)::int FROM claim c WHERE c.pool_id = d.pool_id AND c.source = d.source AND c.counted
        AND c.started_at < d.observed_at AND (c.ended_at IS NULL OR c.ended_at >= d.observed_at)))"""
# Pending tasks of a source `d`: of one that counts all of its tasks, those that are not claimed.
PENDING: Final = f"CASE WHEN d.total IS NULL THEN d.pending ELSE greatest(0, d.total - {CLAIMED}) END"
COUNTS: Final = f"{PENDING} AS pending, {CLAIMED} AS claimed"
# Equal times count as repeats, but an end counts once. DISTINCT ON: one statement may not touch a row twice. If the
# previous report was stale by then, tasks count as pending since the new one, since nothing is known about the time
# between. The loop that raised the alert on a source resolves it. An end keeps the time of the last claimed task.
# After a stale report those of an earlier epoch count: the clock that epochs are of may have been turned back.
NEWEST: Final = f"""
WITH stored AS (
INSERT INTO demand AS d ({names(REPORTED)}, ended_at, pending_since, claimed_seen_at)
SELECT DISTINCT ON (pool_id, source) {names(REPORTED)}, CASE WHEN end_reason <> '' THEN slipway_clock() END,
    CASE WHEN {PENDING} > 0 THEN observed_at END, CASE WHEN claimed > 0 THEN observed_at END
FROM unnest({arrays(REPORTED)}) AS d ({names(REPORTED)})
ORDER BY pool_id, source,
    CASE WHEN bool_and(epoch IS NOT NULL) OVER (PARTITION BY pool_id, source) THEN epoch END DESC,
    observed_at DESC, end_reason DESC
ON CONFLICT (pool_id, source) DO UPDATE SET
    ({names(REPORTED[2:])}, ended_at, received_at)
        = ({names(REPORTED[2:], "excluded.")}, excluded.ended_at, excluded.received_at),
    pending_since = CASE WHEN excluded.pending_since IS NULL THEN NULL
        WHEN d.observed_at + d.valid_for_seconds * interval '1 s' < excluded.observed_at THEN excluded.observed_at
        ELSE coalesce(d.pending_since, excluded.observed_at) END,
    claimed_seen_at = coalesce(excluded.claimed_seen_at, d.claimed_seen_at)
WHERE CASE WHEN d.epoch < excluded.epoch THEN true
    WHEN d.epoch > excluded.epoch AND d.observed_at + d.valid_for_seconds * interval '1 s' > slipway_clock() THEN false
    ELSE d.observed_at < excluded.observed_at
        OR (d.observed_at = excluded.observed_at AND d.end_reason = '' AND excluded.end_reason <> '') END
RETURNING pool_id, claimed_seen_at IS NOT NULL AND EXISTS (
    SELECT FROM worker w WHERE w.pool_id = d.pool_id AND w.state IN ({states(REGISTERED)}) AND w.awaits_claim
        AND w.first_claimed_at IS NULL) AS confirms
), marked AS (INSERT INTO dirty_pool (pool_id, reason) SELECT DISTINCT pool_id, 'demand' FROM stored)
SELECT DISTINCT pool_id, confirms FROM stored"""
READ_SECONDS: Final = 1
"""Time in which a queue is mostly read. A report has the time before that."""
# Sources, and with each the workers of which claims are gone from its sample: they ended after it or at its instant,
# since the sample has them then, or run on a leaving worker. Of a queue that counts its claimed tasks, those that began
# while it was read may be among these. One statement, so that no report comes between the two.
OBSERVE: Final = f"""
WITH sample AS MATERIALIZED (
    SELECT d.pool_id, d.source, d.observed_at, {COUNTS}, d.traceparent,
        CASE WHEN d.claimed IS NULL THEN d.observed_at ELSE d.observed_at + interval '{READ_SECONDS} s' END AS read_at,
        extract(epoch FROM d.observed_at + d.valid_for_seconds * interval '1 s' - slipway_clock())::float8
            AS fresh_seconds,
        extract(epoch FROM slipway_clock() - d.observed_at)::float8 AS age_seconds
    FROM demand d WHERE d.pool_id = $1 AND d.ended_at IS NULL)
SELECT s.source, s.pending, s.claimed, s.traceparent, s.fresh_seconds, s.age_seconds,
    g.worker_id, g.task_slots, g.before, g.at_sample, g.after
FROM sample s LEFT JOIN LATERAL (
    SELECT c.worker_id::text, coalesce(w.task_slots, 1) AS task_slots,
        count(*) FILTER (WHERE c.started_at < s.observed_at)::int AS before,
        count(*) FILTER (WHERE c.started_at BETWEEN s.observed_at AND s.read_at)::int AS at_sample,
        count(*) FILTER (WHERE c.started_at > s.read_at)::int AS after
    FROM (
        SELECT worker_id, started_at FROM claim
        WHERE pool_id = s.pool_id AND source = s.source AND counted AND ended_at >= s.observed_at
        UNION ALL SELECT o.worker_id, o.started_at FROM worker l JOIN claim o ON o.worker_id = l.id
        WHERE l.pool_id = s.pool_id AND l.state IN ({states(LEAVING)}) AND o.source = s.source AND o.counted
            AND o.ended_at IS NULL) AS c
    LEFT JOIN worker w ON w.id = c.worker_id
    GROUP BY c.worker_id, w.task_slots) AS g ON true
ORDER BY s.source, g.worker_id"""
RECENT: Final = timedelta(minutes=5)
"""Time after its end in which a claim is compared with others: longer than a report may be late and still have its own
time."""
ABOVE_SLOTS_MAX: Final = 100
"""Open claims of a worker above its task slots that are stored. More protect it no better."""
RECENT_MAX: Final = 100
"""Claims that ended so recently with which others are compared."""
ENDED_MAX: Final = 1_000
"""Ended claims of each task slot of a worker that are stored: more than end since the oldest sample that counts."""
# All open claims of a worker, the newest that ended lately, and the one that a report names.
KNOWN: Final = f"""
SELECT {names(CLAIM)} FROM claim WHERE worker_id = $1 AND ended_at IS NULL
UNION (SELECT {names(CLAIM)} FROM claim WHERE worker_id = $1 AND ended_at >= $2
    ORDER BY ended_at DESC LIMIT {RECENT_MAX})
UNION SELECT {names(CLAIM)} FROM claim WHERE worker_id = $1 AND (source, task_id, claimed_at) = ($3, $4, $5)"""
TASKS_WAIT: Final = Statement(sa.select(sa.exists().where((D.pending > 0) | (D.total > 0), D.ended_at.is_(None))))
ONLY_SOURCE: Final = Statement(
    sa.select(sa.func.min(D.source))
    .where(D.pool_id == sa.bindparam("pool_id"), D.ended_at.is_(None))
    .having(sa.func.count() == 1)
)
# True if a pool has sources of demand, but not this one.
IS_UNKNOWN: Final = Statement(
    sa.select(sa.and_(sa.func.count() > 0, sa.func.bool_and(D.source != sa.bindparam("source")))).where(
        D.pool_id == sa.bindparam("pool_id"), D.ended_at.is_(None)
    )
)
IS_LIVE: Final = Statement(
    sa.select(
        sa.exists().where(
            D.pool_id == sa.bindparam("pool_id"), D.source == sa.bindparam("source"), D.ended_at.is_(None)
        )
    )
)
PLACES_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('sources/' || $1 || '/' || $2, 0))"
PLACES: Final = Statement(
    sa.select(sa.func.count().filter(D.ended_at.is_(None)), sa.func.count()).where(
        D.pool_id == sa.bindparam("pool_id"), D.reported_by == sa.bindparam("reported_by")
    )
)
ENDED_SOURCES: Final = 10
"""Sources of a reporter, by those that it may have at a time, of which rows are kept with those that have ended."""
_SAVED: Final = given(*CLAIM)
_OWNER: Final = (
    sa.bindparam("worker_id", type_=claim.c.worker_id.type),
    sa.bindparam("pool_id", type_=claim.c.pool_id.type),
)
_UPSERT: Final = postgresql.insert(claim).from_select(
    ["worker_id", "pool_id", *(field.name for field in CLAIM)], sa.select(*_OWNER, _SAVED)
)
SAVE: Final = Statement(
    _UPSERT.on_conflict_do_update(
        index_elements=claim.primary_key,
        set_={name: _UPSERT.excluded[name] for name in ("ended_at", "counted")},
    )
)
FORGET: Final = """
WITH forgotten AS (
    DELETE FROM claim WHERE worker_id = $1 AND ended_at < (
        SELECT ended_at FROM claim WHERE worker_id = $1 AND ended_at IS NOT NULL
        ORDER BY ended_at DESC OFFSET $2 LIMIT 1)
    RETURNING ended_at)
SELECT EXISTS (SELECT FROM forgotten WHERE ended_at >= $3)"""
CLOSE: Final = Statement(
    sa.update(claim)
    .where(claim.c.worker_id == sa.any_(array("ids", claim.c.worker_id)), claim.c.ended_at.is_(None))
    .values(ended_at=sa.bindparam("at"))
)
CLAIMS_OF: Final = Statement(
    sa.select(*CLAIM).where(claim.c.worker_id == sa.bindparam("id")).order_by(claim.c.started_at.desc()).limit(100)
)


async def tasks_wait(db: Connection) -> bool:
    """True if a source has reported pending tasks last."""
    return bool(await db.fetchval(TASKS_WAIT.text, *TASKS_WAIT.arguments()))


async def only_source(db: Connection, pool_id: str) -> str:
    """The source of demand of a pool; empty if it has none, or several."""
    return await db.fetchval(ONLY_SOURCE.text, *ONLY_SOURCE.arguments(pool_id=pool_id)) or ""


async def is_unknown(db: Connection, pool_id: str, source: str) -> bool:
    """True if the pool has sources of demand, but not this one."""
    return bool(await db.fetchval(IS_UNKNOWN.text, *IS_UNKNOWN.arguments(pool_id=pool_id, source=source)))


async def has_place(tx: Connection, pool_id: str, source: str, *, by: str, sources_max: int) -> bool:
    """True if this source of a pool exists, or its reporter may have one more there."""
    if await tx.fetchval(IS_LIVE.text, *IS_LIVE.arguments(pool_id=pool_id, source=source)):
        return True
    await tx.execute(PLACES_LOCK, pool_id, by)
    live, stored = await tx.fetchrow(PLACES.text, *PLACES.arguments(pool_id=pool_id, reported_by=by))
    return bool(live < sources_max and stored < sources_max * ENDED_SOURCES)


def drain_seconds(pool_id: sa.ColumnElement[str]) -> sa.ColumnElement[float]:
    """Default of the time in which a worker of a pool that drains should end its task: its longest task of the last
    day, for which claims are kept, from an hour to a day."""
    ended = sa.select(sa.func.max(LASTED)).where(claim.c.pool_id == pool_id, ENDED_CLAIM)
    # Found by their workers: there may be thousands of claims for each, and the open ones are of live workers.
    began = (
        sa.select(sa.func.min(claim.c.started_at))
        .join(worker, worker.c.id == claim.c.worker_id)
        .where(worker.c.pool_id == pool_id, ~in_states(STOPPED), claim.c.ended_at.is_(None), claim.c.counted)
    )
    longest = sa.func.greatest(
        ended.correlate_except(claim).scalar_subquery(),
        sa.func.slipway_clock() - began.correlate_except(claim, worker).scalar_subquery(),
    )
    seconds = sa.cast(sa.extract("epoch", longest), sa.Double)
    least = sa.func.greatest(sa.literal(DRAIN_SECONDS_MIN, sa.Double), seconds)  # also without a task
    return sa.func.least(least, sa.literal(DRAIN_SECONDS_MAX, sa.Double))


async def store(tx: Connection, reports: Sequence[Report]) -> bool:
    """Store valid reports and ends, and mark their pools dirty; True if one of them was newer than its row."""
    if not reports:
        return False
    rows = await tx.fetch(NEWEST, *columns(reports, [field.name for field in REPORTED]).values())
    if confirmed := {row["pool_id"] for row in rows if row["confirms"]}:
        await usage.confirm_claims(tx, confirmed)
    return bool(rows)


def observed(rows: Sequence[Any]) -> list[Demand]:
    """Demand of each source, from the rows of OBSERVE."""
    by_source = {row["source"]: row for row in rows}
    samples = [Sample(**{name: row[name] for name in Sample.__struct_fields__}) for row in by_source.values()]
    departures = [
        Departures(**{name: row[name] for name in Departures.__struct_fields__})
        for row in rows
        if row["worker_id"] is not None
    ]
    gone = accounting.gone(samples, departures)
    return [
        Demand(
            **{name: row[name] for name in ("source", "pending", "claimed", "fresh_seconds", "traceparent")},
            gone=gone[source],
            stale=row["fresh_seconds"] <= 0,
        )
        for source, row in by_source.items()
    ]


async def known_claims(tx: Connection, worker: Worker, key: tuple[str, str, str], now: datetime) -> list[Claim]:
    """Claims of a worker that a report about the claim with this key may change. The worker is locked."""
    rows = await tx.fetch(KNOWN, worker.id, now - RECENT, *key)
    return [Claim(**row) for row in rows]


async def save_claims(
    tx: Connection, worker: Worker, known: Sequence[Claim], claims: Sequence[Claim], now: datetime
) -> bool:
    """Store claims that are not `known`, have ended, or count otherwise than before. A worker that ends many has its
    oldest ones forgotten, so that made-up ones fill no table; True if some of these have ended only recently."""
    if changed := [each for each in claims if each not in known]:
        await tx.execute(SAVE.text, *SAVE.rows(changed, worker_id=worker.id, pool_id=worker.pool_id))
    if len(known) < RECENT_MAX:
        return False
    return bool(await tx.fetchval(FORGET, worker.id, ENDED_MAX * worker.task_slots - 1, now - RECENT))


async def close_claims(tx: Connection, worker_ids: Sequence[str], at: datetime) -> None:
    """End the open claims of workers."""
    await tx.execute(CLOSE.text, *CLOSE.arguments(ids=worker_ids, at=at))


async def claims_of(db: Connection, worker_id: str) -> list[Claim]:
    """The newest 100 claims of a worker, oldest first."""
    newest_first = await db.fetch(CLAIMS_OF.text, *CLAIMS_OF.arguments(id=worker_id))
    return [Claim(**row) for row in reversed(newest_first)]
