"""Sources of demand: all that have not ended, and those whose alerts or ends are to be recorded."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from slipway_api.http.provisioner.demand import DemandSource
from slipway_common.database.places import Text
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import arrays, columns, names
from slipway_provisioner.domain.sources import Freshness, Settled, Source
from slipway_provisioner.store import marks, tables
from slipway_provisioner.store.demand import COUNTS

D: Final = tables.demand.c
COUNTED: Final = ("pending", "claimed")
OF_SOURCE: Final = tuple(D[name] for name in Source.__struct_fields__ if name in D and name not in COUNTED)
SHOWN: Final = D["pool_id", "source", "observed_at", "received_at", "reported_by"]
SETTLED: Final = tuple(D[name] for name in ("pool_id", "source", "alerted", "end_reason"))
# Uptime since the last report goes on from the newest pass over the deadlines.
LISTED: Final = f"""
SELECT {names(SHOWN, "d.")}, {COUNTS}, v.valid_until, v.valid_until > slipway_clock() AS fresh,
    slipway_clock() + ($2::float8 + d.valid_for_seconds - coalesce(uptime_since(d.observed_at), 0)) * interval '1 s'
        AS protected_until
FROM demand d JOIN worker_pool p ON p.id = d.pool_id
CROSS JOIN LATERAL (SELECT d.observed_at + d.valid_for_seconds * interval '1 s' AS valid_until) AS v
WHERE d.ended_at IS NULL AND NOT p.deleted AND ($1::text IS NULL OR d.pool_id = $1)
    AND (d.pool_id, d.source) > ($3::text, $4::text)
ORDER BY d.pool_id, d.source LIMIT $5"""
LOCK: Final = f"""
SELECT {COUNTS}, d.observed_at, d.valid_for_seconds FROM demand d
WHERE d.pool_id = $1 AND d.source = $2 AND d.ended_at IS NULL FOR UPDATE"""
# Sources that became stale or expired, report again, or have ended, and alerts on them do not say so yet. The alert on
# one whose reports had expired when they were received lasts for the validity of the last of them. Those that another
# session has locked are settled by it, or in the next pass. The table is read each second: alone, and by a condition
# that costs little, which leaves few rows to join and to compute uptime for.
LOCK_UNSETTLED: Final = f"""
SELECT {names(OF_SOURCE, "d.")}, {COUNTS}, p.deleted AS pool_deleted, s.overdue_seconds,
    extract(epoch FROM d.received_at - d.observed_at)::float8 AS late_seconds,
    NOT EXISTS (SELECT FROM demand o WHERE o.pool_id = d.pool_id AND o.source <> d.source AND o.ended_at IS NULL
        AND o.observed_at + o.valid_for_seconds * interval '1 s' > slipway_clock()) AS is_last
FROM demand d JOIN worker_pool p ON p.id = d.pool_id
CROSS JOIN LATERAL (SELECT CASE
    WHEN d.observed_at + d.valid_for_seconds * interval '1 s' > slipway_clock() THEN -1
    ELSE uptime_since(d.observed_at) - d.valid_for_seconds END AS overdue_seconds) AS s
WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM demand WHERE alerted OR (ended_at IS NULL AND (
        observed_at + valid_for_seconds * interval '1 s' <= (SELECT slipway_clock())
        OR pool_id = ANY (ARRAY(SELECT id FROM worker_pool WHERE deleted))))))
    AND CASE WHEN d.ended_at IS NOT NULL
        THEN d.alerted AND d.received_at + d.valid_for_seconds * interval '1 s' <= slipway_clock()
    WHEN p.deleted THEN true
    WHEN d.alerted THEN s.overdue_seconds < 0 OR s.overdue_seconds >= $1::float8
    ELSE s.overdue_seconds >= 0 END
ORDER BY d.pool_id, d.source LIMIT 200 FOR UPDATE OF d SKIP LOCKED"""
SETTLE: Final = f"""
UPDATE demand d SET alerted = g.alerted, end_reason = g.end_reason,
    ended_at = CASE WHEN g.end_reason <> '' THEN coalesce(d.ended_at, slipway_clock()) END,
    pending = CASE WHEN g.end_reason = '' THEN d.pending ELSE 0 END,
    claimed = CASE WHEN g.end_reason = '' THEN d.claimed ELSE 0 END,
    total = CASE WHEN g.end_reason = '' THEN d.total END,
    pending_since = CASE WHEN g.end_reason = '' THEN d.pending_since END
FROM unnest({arrays(SETTLED)}) AS g ({names(SETTLED)}) WHERE d.pool_id = g.pool_id AND d.source = g.source"""


class SourcePlace(NamedTuple):
    """Place in the list of sources."""

    pool_id: Text
    source: Text


FIRST: Final = SourcePlace("", "")


async def listed(
    db: Connection, pool_id: str | None, protected_seconds: float, *, after: SourcePlace = FIRST, limit: int
) -> list[DemandSource]:
    """Sources of all pools or of one, by pool, from the one after that place: each with the end of its last report's
    validity, and the time at which it is dropped unless it reports again."""
    rows = await db.fetch(LISTED, pool_id, protected_seconds, *after, limit)
    return [_shown(dict(row)) for row in rows]


def _shown(row: dict[str, Any]) -> DemandSource:
    return DemandSource(state=Freshness.FRESH if row.pop("fresh") else Freshness.STALE, **row)


async def lock(tx: Connection, pool_id: str, source: str) -> Any:
    """Lock a source that has not ended; returns its last report, or None."""
    return await tx.fetchrow(LOCK, pool_id, source)


async def lock_unsettled(tx: Connection, protected_seconds: float) -> list[Source]:
    """Lock up to 200 sources that became stale or expired, or that are no longer stale."""
    return [Source(**row) for row in await tx.fetch(LOCK_UNSETTLED, protected_seconds)]


async def settle(tx: Connection, changes: Sequence[Settled]) -> None:
    """Record alerts and ends of locked sources, and mark the pools of those that have ended dirty."""
    await tx.execute(SETTLE, *columns(changes, [field.name for field in SETTLED]).values())
    await marks.dirty(tx, {change.pool_id for change in changes if change.end_reason}, reason="demand")
