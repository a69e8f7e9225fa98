"""Leases. Written only under the lock of their pool."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from slipway_common.database.postgres import Connection
from slipway_lease_broker.domain.ledger import Lease
from slipway_lease_broker.store.rows import columns, structs

FIELDS: Final = Lease.__struct_fields__
CHANGING: Final = (
    "id",
    "units",
    "state",
    "expires_at",
    "counted_until",
    "ended_at",
    "progress",
    "progress_until",
    "reason",
    "replaced",
    "reported_late",
)
SELECT: Final = f"SELECT {', '.join(FIELDS)} FROM leases"

# Served by the index leases_due, so that the cost does not grow with the number of leases held.
DUE: Final = f"""
{SELECT} WHERE lease_pool_id = $1 AND ended_at IS NULL AND deadline <= $2 ORDER BY deadline, fencing_token LIMIT $3"""
NAMED: Final = f"{SELECT} WHERE id = ANY($1::text[])"
LISTED: Final = f"""
{SELECT} WHERE ended_at IS NULL AND ($1::text IS NULL OR lease_pool_id = $1)
ORDER BY lease_pool_id, fencing_token LIMIT $2"""
ADD: Final = f"""
INSERT INTO leases ({", ".join(FIELDS)})
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::integer[], $6::integer[], $7::text[],
    $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::text[],
    $14::text[], $15::text[], $16::integer[], $17::text[], $18::text[], $19::timestamptz[], $20::float8[],
    $21::text[], $22::float8[], $23::text[], $24::text[], $25::boolean[], $26::boolean[])"""
SAVE: Final = """
UPDATE leases AS l SET units = s.units, state = s.state, expires_at = s.expires_at, counted_until = s.counted_until,
    ended_at = s.ended_at, progress = s.progress, progress_until = s.progress_until, reason = s.reason,
    replaced = s.replaced, reported_late = s.reported_late
FROM unnest($1::text[], $2::integer[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[],
    $7::text[], $8::timestamptz[], $9::text[], $10::boolean[], $11::boolean[])
    AS s (id, units, state, expires_at, counted_until, ended_at, progress, progress_until, reason, replaced,
        reported_late)
WHERE l.id = s.id"""
PRUNE: Final = """
DELETE FROM leases WHERE lease_pool_id = $1 AND ended_at < slipway_clock() - make_interval(secs => $2)"""


async def due(tx: Connection, lease_pool_id: str, now: datetime, *, limit: int) -> list[Lease]:
    """Counted leases whose deadline has passed, the earliest first."""
    return structs(await tx.fetch(DUE, lease_pool_id, now, limit), Lease)


async def named(tx: Connection, ids: Collection[str]) -> list[Lease]:
    return structs(await tx.fetch(NAMED, list(ids)), Lease) if ids else []


async def listed(db: Connection, lease_pool_id: str | None, *, limit: int) -> list[Lease]:
    """Leases that count against the limit of one pool, or of all pools."""
    return structs(await db.fetch(LISTED, lease_pool_id, limit), Lease)


async def add(tx: Connection, leases: Sequence[Lease]) -> None:
    if leases:
        await tx.execute(ADD, *columns(leases, *FIELDS))


async def save(tx: Connection, leases: Sequence[Lease]) -> None:
    if leases:
        await tx.execute(SAVE, *columns(leases, *CHANGING))


async def prune(tx: Connection, lease_pool_id: str, *, ended_for_seconds: float) -> None:
    await tx.execute(PRUNE, lease_pool_id, ended_for_seconds)
