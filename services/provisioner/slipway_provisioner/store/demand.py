"""Demand rows: the newest report per (pool, source), or its end. Claim rows: tasks that run or ran on workers.

A source that has ended keeps its row for days, so that reports from before its end, which may be read again, do not
count."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, arrays, columns, names
from slipway_common.events.lifecycle import LEAVING
from slipway_provisioner.domain.demand import Report
from slipway_provisioner.domain.pool import Demand
from slipway_provisioner.domain.timeline import Claim
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store import marks, tables
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.tables import claim

D: Final = tables.demand.c
REPORTED: Final = tuple(D[name] for name in Report.__struct_fields__)
# Equal times count as repeats, but an end counts once. DISTINCT ON: one statement may not touch a row twice. If the
# previous report was stale by then, tasks count as pending since the new one, since nothing is known about the time
# between. The loop that raised the alert on a source resolves it. An end keeps the time of the last claimed task.
NEWEST: Final = f"""
INSERT INTO demand AS d ({names(REPORTED)}, ended_at, pending_since, claimed_seen_at)
SELECT DISTINCT ON (pool_id, source) {names(REPORTED)}, CASE WHEN end_reason <> '' THEN slipway_clock() END,
    CASE WHEN pending > 0 THEN observed_at END, CASE WHEN claimed > 0 THEN observed_at END
FROM unnest({arrays(REPORTED)}) AS u ({names(REPORTED)})
ORDER BY pool_id, source, observed_at DESC, end_reason DESC
ON CONFLICT (pool_id, source) DO UPDATE SET
    ({names(REPORTED[2:])}, ended_at, received_at)
        = ({names(REPORTED[2:], "excluded.")}, excluded.ended_at, excluded.received_at),
    pending_since = CASE WHEN excluded.pending = 0 THEN NULL
        WHEN d.observed_at + d.valid_for_seconds * interval '1 s' < excluded.observed_at THEN excluded.observed_at
        ELSE coalesce(d.pending_since, excluded.observed_at) END,
    claimed_seen_at = coalesce(excluded.claimed_seen_at, d.claimed_seen_at)
WHERE d.observed_at < excluded.observed_at
    OR (d.observed_at = excluded.observed_at AND d.end_reason = '' AND excluded.end_reason <> '')
RETURNING pool_id, source"""
# A claim counts as gone for its source if it ended after the sample or at its instant, since the sample has it then, or
# runs on a leaving worker.
OBSERVE: Final = f"""
SELECT d.source, d.pending, d.claimed, d.traceparent,
    extract(epoch FROM d.observed_at + d.valid_for_seconds * interval '1 s' - slipway_clock())::float8
        AS fresh_seconds,
    (SELECT count(*) FROM claim c LEFT JOIN worker w ON w.id = c.worker_id
     WHERE c.pool_id = d.pool_id AND c.source = d.source
       AND (c.ended_at >= d.observed_at OR (c.ended_at IS NULL AND w.state IN ({states(LEAVING)})))) AS gone
FROM demand d WHERE d.pool_id = $1 AND d.ended_at IS NULL ORDER BY d.source"""
# A repeated report names a claim that is open, or one that ended and has the same `reported_at`. That is the machine's
# own time, since the clamped time depends on receipt; a task that is claimed again has a later one. The worker is
# locked.
_OPENED: Final = {
    name: sa.bindparam(name, type_=claim.c[name].type)
    for name in ("worker_id", "source", "task_id", "reported_at", "pool_id", "started_at")
}
_IS_OPEN: Final = sa.exists().where(
    *(claim.c[name] == _OPENED[name] for name in ("worker_id", "source", "task_id")), claim.c.ended_at.is_(None)
)
OPEN: Final = Statement(
    postgresql.insert(claim)
    .from_select(list(_OPENED), sa.select(*_OPENED.values()).where(~_IS_OPEN))
    .on_conflict_do_nothing(index_elements=claim.primary_key)
    .returning(claim.c.task_id)
)
CLOSE: Final = Statement(
    sa.update(claim)
    .where(claim.c.worker_id == sa.any_(array("ids", claim.c.worker_id)), claim.c.ended_at.is_(None))
    .values(ended_at=sa.bindparam("at"))
    .returning(claim.c.task_id)
)
CLAIMS_OF: Final = Statement(
    sa.select(*(claim.c[name] for name in Claim.__struct_fields__))
    .where(claim.c.worker_id == sa.bindparam("id"))
    .order_by(claim.c.started_at.desc())
    .limit(100)
)


async def store(tx: Connection, reports: Sequence[Report]) -> bool:
    """Store valid reports and ends, and mark their pools dirty; True if one of them was newer than its row."""
    if not reports:
        return False
    rows = await tx.fetch(NEWEST, *columns(reports, [field.name for field in REPORTED]).values())
    await marks.dirty(tx, {row["pool_id"] for row in rows}, reason="demand")
    return bool(rows)


async def observe(tx: Connection, pool_id: str) -> list[Demand]:
    rows = await tx.fetch(OBSERVE, pool_id)
    return [Demand(**row, stale=row["fresh_seconds"] <= 0) for row in rows]


async def open_claim(
    tx: Connection, worker: Worker, *, source: str, task_id: str, reported_at: datetime, at: datetime
) -> bool:
    """Record a claim at the worker's time (`reported_at`) and the clamped time (`at`); False if it was known."""
    arguments = OPEN.arguments(
        worker_id=worker.id,
        source=source,
        task_id=task_id,
        reported_at=reported_at,
        pool_id=worker.pool_id,
        started_at=at,
    )
    return await tx.fetchval(OPEN.text, *arguments) is not None


async def close_claims(tx: Connection, worker_ids: Sequence[str], at: datetime) -> int:
    """End the open claims of workers; returns their number."""
    return len(await tx.fetch(CLOSE.text, *CLOSE.arguments(ids=worker_ids, at=at)))


async def claims_of(db: Connection, worker_id: str) -> list[Claim]:
    """The newest 100 claims of a worker, oldest first."""
    newest_first = await db.fetch(CLAIMS_OF.text, *CLAIMS_OF.arguments(id=worker_id))
    return [Claim(**row) for row in reversed(newest_first)]
