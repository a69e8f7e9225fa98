"""Named slots and the queue for them. Written only under the lock of their pool.

A slot is held as long as its lease lives. Code that ends leases knows nothing of slots: every reader first frees the
slots of ended leases under the same lock (`free_ended`), so that no caller sees a slot that is held without a lease.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_lease_broker.domain.slots import Slot
from slipway_lease_broker.store.rows import columns, structs

FIELDS: Final = Slot.__struct_fields__
SELECT: Final = f"SELECT {', '.join(FIELDS)} FROM slots"

FREE_ENDED: Final = """
UPDATE slots AS s SET state = $2, owner = '', updated_at = $3, request_id = NULL, lease_id = NULL
WHERE s.lease_pool_id = ANY($1::text[]) AND s.owner <> '' AND s.lease_id IS NOT NULL
    AND NOT EXISTS (SELECT FROM leases AS l WHERE l.id = s.lease_id AND l.state IN ('reserved', 'confirmed'))"""
ANY_OF: Final = "SELECT EXISTS (SELECT FROM slots WHERE lease_pool_id = $1)"
COUNT: Final = "SELECT count(*) FROM slots WHERE lease_pool_id = $1"
NAMED: Final = f"{SELECT} WHERE name = ANY($1::text[])"
LISTED: Final = f"{SELECT} WHERE lease_pool_id = $1 ORDER BY name"
# Least recently used first, so that the slots are used in turn.
AVAILABLE: Final = f"""
{SELECT} WHERE lease_pool_id = $1 AND state = $2 AND owner = '' ORDER BY updated_at, name OFFSET $3 LIMIT $4"""
OF_REQUEST: Final = f"{SELECT} WHERE lease_pool_id = $1 AND owner = $2 AND request_id = $3 ORDER BY name"
STALE: Final = f"""
{SELECT} WHERE lease_pool_id = $1 AND state = $2 AND owner <> '' AND updated_at < $3 ORDER BY name"""
STATES: Final = "SELECT state, owner, count(*)::int AS count FROM slots WHERE lease_pool_id = $1 GROUP BY state, owner"
ADD: Final = f"""
INSERT INTO slots ({", ".join(FIELDS)})
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::jsonb[], $7::text[],
    $8::text[], $9::bigint[])"""
SAVE: Final = """
UPDATE slots AS s SET state = n.state, owner = n.owner, updated_at = n.updated_at, userdata = n.userdata,
    request_id = n.request_id, lease_id = n.lease_id, fencing_token = n.fencing_token
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::jsonb[], $6::text[], $7::text[], $8::bigint[])
    AS n (name, state, owner, updated_at, userdata, request_id, lease_id, fencing_token)
WHERE s.name = n.name"""
CHANGING: Final = tuple(name for name in FIELDS if name != "lease_pool_id")
REMOVE: Final = "DELETE FROM slots WHERE name = ANY($1::text[]) AND owner = ''"

# A request that lapsed and is repeated later starts at the end of the queue.
JOIN: Final = """
INSERT INTO slot_requests AS r (lease_pool_id, state, owner, id, slot_count, lease_request_id, last_requested_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (lease_pool_id, state, owner, id) DO UPDATE SET last_requested_at = excluded.last_requested_at
RETURNING place, lease_request_id"""
REPLACE_LEASE_REQUEST: Final = """
UPDATE slot_requests SET lease_request_id = $5 WHERE lease_pool_id = $1 AND state = $2 AND owner = $3 AND id = $4"""
AHEAD: Final = """
SELECT coalesce(sum(slot_count), 0)::int FROM slot_requests
WHERE lease_pool_id = $1 AND state = $2 AND ($3::bigint IS NULL OR place < $3)"""
DROP_STALE: Final = """
DELETE FROM slot_requests WHERE lease_pool_id = $1 AND last_requested_at < $2 RETURNING lease_request_id"""
LEAVE: Final = """
DELETE FROM slot_requests WHERE lease_pool_id = $1 AND state = $2 AND owner = $3 AND id = $4
RETURNING lease_request_id"""


class Place(msgspec.Struct, frozen=True):
    """A place in the queue for slots of one pool in one state, with the lease request that belongs to it."""

    place: int
    lease_request_id: str


async def free_ended(tx: Connection, lease_pool_ids: Collection[str], state: str, now: datetime) -> None:
    """Free the slots of leases that have ended: they lose their owner and change to `state`."""
    await tx.execute(FREE_ENDED, list(lease_pool_ids), state, now)


async def exist(db: Connection, lease_pool_id: str) -> bool:
    found: bool = await db.fetchval(ANY_OF, lease_pool_id)
    return found


async def count(db: Connection, lease_pool_id: str) -> int:
    found: int = await db.fetchval(COUNT, lease_pool_id)
    return found


async def named(db: Connection, names: Collection[str]) -> list[Slot]:
    return structs(await db.fetch(NAMED, list(names)), Slot) if names else []


async def listed(db: Connection, lease_pool_id: str) -> list[Slot]:
    return structs(await db.fetch(LISTED, lease_pool_id), Slot)


async def available(tx: Connection, lease_pool_id: str, state: str, *, ahead: int, count: int) -> list[Slot]:
    """Up to `count` slots without an owner, after the `ahead` that are due to others; least recently used first."""
    return structs(await tx.fetch(AVAILABLE, lease_pool_id, state, ahead, count), Slot)


async def of_request(tx: Connection, lease_pool_id: str, owner: str, request_id: str) -> list[Slot]:
    """Slots that an owner acquired with a request and still holds."""
    return structs(await tx.fetch(OF_REQUEST, lease_pool_id, owner, request_id), Slot)


async def stale(tx: Connection, lease_pool_id: str, state: str, before: datetime) -> list[Slot]:
    """Owned slots in a state that were last updated before a time."""
    return structs(await tx.fetch(STALE, lease_pool_id, state, before), Slot)


async def states(db: Connection, lease_pool_id: str) -> list[tuple[str, str, int]]:
    """(state, owner, count) of the slots of a pool."""
    rows = await db.fetch(STATES, lease_pool_id)
    return [(row["state"], row["owner"], row["count"]) for row in rows]


async def add(tx: Connection, slots: Sequence[Slot]) -> None:
    if slots:
        await tx.execute(ADD, *columns(slots, *FIELDS))


async def save(tx: Connection, slots: Sequence[Slot]) -> None:
    if slots:
        await tx.execute(SAVE, *columns(slots, *CHANGING))


async def remove(tx: Connection, names: Collection[str]) -> None:
    """Delete those of the slots that have no owner."""
    if names:
        await tx.execute(REMOVE, list(names))


async def join(
    tx: Connection,
    lease_pool_id: str,
    state: str,
    owner: str,
    request_id: str,
    *,
    slot_count: int,
    lease_request_id: str,
    now: datetime,
) -> Place:
    """Join the queue, or keep the place in it."""
    row = await tx.fetchrow(JOIN, lease_pool_id, state, owner, request_id, slot_count, lease_request_id, now)
    return msgspec.convert(dict(row), Place)


async def replace_lease_request(
    tx: Connection, lease_pool_id: str, state: str, owner: str, request_id: str, lease_request_id: str
) -> None:
    await tx.execute(REPLACE_LEASE_REQUEST, lease_pool_id, state, owner, request_id, lease_request_id)


async def ahead(tx: Connection, lease_pool_id: str, state: str, place: int | None) -> int:
    """Number of slots requested ahead of a place in the queue, or, for None, in the whole queue."""
    found: int = await tx.fetchval(AHEAD, lease_pool_id, state, place)
    return found


async def drop_stale(tx: Connection, lease_pool_id: str, since: datetime) -> list[str]:
    """Drop requests from the queue that were not repeated since then; returns their lease requests."""
    return [row["lease_request_id"] for row in await tx.fetch(DROP_STALE, lease_pool_id, since)]


async def leave(tx: Connection, lease_pool_id: str, state: str, owner: str, request_id: str) -> list[str]:
    """Leave the queue; returns the lease request, if there was one."""
    return [row["lease_request_id"] for row in await tx.fetch(LEAVE, lease_pool_id, state, owner, request_id)]
