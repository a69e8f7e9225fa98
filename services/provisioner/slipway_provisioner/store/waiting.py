"""Pools that wait for headroom of shared windows, and which of them are planned when some is free.

Headroom that a start frees has pools woken by a trigger (`functions.WAKE_WAITING`), and `wake` does so for all of it,
whatever has freed it.
"""

from collections.abc import Sequence
from typing import Final

from slipway_api.events.scopes import NEW_SHARED_WINDOWS
from slipway_common.database.postgres import Connection
from slipway_provisioner.domain.fairness import WOKEN, Wait
from slipway_provisioner.domain.pool import Share

RECORD: Final = """
WITH ended AS (
    DELETE FROM waiting_pool WHERE pool_id = $1
        AND (key, stage) NOT IN (SELECT * FROM unnest($2::text[], $3::text[])))
INSERT INTO waiting_pool (pool_id, key, stage, units, waiting_since)
SELECT $1, * FROM unnest($2::text[], $3::text[], $4::integer[], $5::timestamptz[])
ON CONFLICT (pool_id, key, stage) DO UPDATE SET units = excluded.units, waiting_since = excluded.waiting_since"""
LEAVE: Final = "DELETE FROM waiting_pool WHERE pool_id = $1"
# As a planner does, it takes windows that have not been published for new ones. $3 is the largest window.
_SIZE: Final = f"""least($3, coalesce(s.size, CASE {
    " ".join(
        f"WHEN split_part(k.key, '/', 1) = '{kind}' AND k.stage = '{stage}' THEN {size}"
        for (kind, stage), size in NEW_SHARED_WINDOWS.items()
    )
} END))"""
# Pools that are dirty already are left out, since planners find the headroom then.
WAKE: Final = f"""
INSERT INTO dirty_pool (pool_id, reason)
SELECT w.pool_id, 'headroom'
FROM (
    SELECT * FROM unnest($1::text[], $2::text[]) AS given (key, stage)
    UNION SELECT key, stage FROM waiting_pool WHERE $1 IS NULL) AS k
JOIN shared_window s ON (s.key, s.stage) = (k.key, k.stage) AND s.state = 'healthy'
CROSS JOIN LATERAL (
    SELECT {_SIZE} - coalesce(sum(u.in_flight + u.unfolded), 0) AS units
    FROM shared_usage u WHERE (u.key, u.stage) = (k.key, k.stage)) AS headroom
CROSS JOIN LATERAL (
    SELECT pool_id, waiting_since FROM waiting_pool w WHERE (w.key, w.stage) = (k.key, k.stage)
    ORDER BY waiting_since, pool_id LIMIT {WOKEN} * greatest(0, headroom.units)) AS w
WHERE NOT EXISTS (SELECT FROM dirty_pool d WHERE d.pool_id = w.pool_id AND d.due_at <= slipway_clock())
GROUP BY w.pool_id ORDER BY min(w.waiting_since), w.pool_id
RETURNING pool_id"""


async def record(tx: Connection, pool_id: str, waits: Sequence[Wait]) -> None:
    """Store what a pool waits for; it waits for nothing else any more. The pool is locked."""
    keys, stages = _columns([wait.share for wait in waits])
    units, since = [wait.units for wait in waits], [wait.since for wait in waits]
    await tx.execute(RECORD, pool_id, keys, stages, units, since)


async def leave(tx: Connection, pool_id: str) -> None:
    """Have a pool wait for nothing, as one that cannot be planned: it would keep its place before the others."""
    await tx.execute(LEAVE, pool_id)


async def wake(db: Connection, shares: Sequence[Share] | None = None, *, window_max: int) -> bool:
    """Mark the pools dirty that have waited longest for the shared windows given [default: all], WOKEN for each unit of
    headroom; True if there are any. No window is taken to be larger than `window_max`."""
    keys, stages = (None, None) if shares is None else _columns(shares)
    return bool(await db.fetch(WAKE, keys, stages, window_max))


def _columns(shares: Sequence[Share]) -> tuple[list[str], list[str]]:
    return [key.text for key, _ in shares], [stage for _, stage in shares]
