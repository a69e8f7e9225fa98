"""Named slots and the queue for them. Written only under the lock of their pool.

A slot is held as long as its lease lives. Code that ends leases knows nothing of slots: every reader first frees the
slots of ended leases under the same lock (`free_ended`), so that no caller sees a slot that is held without a lease.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy import BigInteger, Integer, and_, any_, bindparam, cast, delete, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, given
from slipway_lease_broker.domain.ledger import LIVE
from slipway_lease_broker.domain.slots import Slot
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import lease, slot, slot_request

FIELDS: Final = slot.c[Slot.__struct_fields__]
IN_POOL: Final = slot.c.lease_pool_id == bindparam("pool")
IN_STATE: Final = slot.c.state == bindparam("state")

FREE_ENDED: Final = Statement(
    update(slot)
    .where(
        slot.c.lease_pool_id == any_(array("pools", slot.c.lease_pool_id)),
        slot.c.owner != "",
        slot.c.lease_id.is_not(None),
        ~exists().where(lease.c.id == slot.c.lease_id, lease.c.state.in_(LIVE)),
    )
    .values(
        state=bindparam("state"), owner="", updated_at=bindparam("now"), request_id=None, acquired_by="", lease_id=None
    )
)
ANY_OF: Final = Statement(select(exists().where(IN_POOL)))
COUNT: Final = Statement(select(func.count()).where(IN_POOL))
NAMED: Final = Statement(select(*FIELDS).where(slot.c.name == any_(array("names", slot.c.name))))
LISTED: Final = Statement(select(*FIELDS).where(IN_POOL).order_by(slot.c.name))
# Least recently used first, so that the slots are used in turn.
AVAILABLE: Final = Statement(
    select(*FIELDS)
    .where(IN_POOL, IN_STATE, slot.c.owner == "")
    .order_by(slot.c.updated_at, slot.c.name)
    .offset(bindparam("ahead", type_=Integer))
    .limit(bindparam("count", type_=Integer))
)
OF_REQUEST: Final = Statement(
    select(*FIELDS)
    .where(IN_POOL, slot.c.owner == bindparam("owner"), slot.c.request_id == bindparam("request"))
    .order_by(slot.c.name)
)
STALE: Final = Statement(
    select(*FIELDS)
    .where(IN_POOL, IN_STATE, slot.c.owner != "", slot.c.updated_at < bindparam("before"))
    .order_by(slot.c.name)
)
STATES: Final = Statement(
    select(slot.c.state, slot.c.owner, func.count().label("count")).where(IN_POOL).group_by(slot.c.state, slot.c.owner)
)
ADD: Final = Statement(insert(slot).from_select(FIELDS.keys(), select(given(*FIELDS))))
CHANGED: Final = given(*(field for field in FIELDS if field.name != "lease_pool_id"))
SAVE: Final = Statement(
    update(slot)
    .where(slot.c.name == CHANGED.c.name)
    .values({field.name: field for field in CHANGED.c if field.name != "name"})
)
REMOVE: Final = Statement(delete(slot).where(slot.c.name == any_(array("names", slot.c.name)), slot.c.owner == ""))

REMOVE_LEFT: Final = Statement(
    delete(slot)
    .where(
        slot.c.lease_pool_id == any_(array("pools", slot.c.lease_pool_id)),
        slot.c.removed_at.is_not(None),
        slot.c.owner == "",
    )
    .returning(slot.c.lease_pool_id)
)

KEYS: Final = slot_request.c["lease_pool_id", "state", "owner", "id"]
THE_REQUEST: Final = and_(*(field == bindparam(field.name) for field in KEYS))
QUEUE: Final = slot_request.c.lease_pool_id == bindparam("pool")
NEW: Final = insert(slot_request).values(
    {
        name: bindparam(name)
        for name in (*KEYS.keys(), "requested_by", "slot_count", "lease_request_id", "last_requested_at")
    }
)
# A request that lapsed and is repeated later starts at the end of the queue.
JOIN: Final = Statement(
    NEW.on_conflict_do_update(
        index_elements=KEYS,
        set_={"last_requested_at": NEW.excluded.last_requested_at},
        where=slot_request.c.requested_by == NEW.excluded.requested_by,
    ).returning(slot_request.c.place, slot_request.c.lease_request_id)
)
REPLACE_LEASE_REQUEST: Final = Statement(
    update(slot_request).where(THE_REQUEST).values(lease_request_id=bindparam("lease_request"))
)
PLACE: Final = bindparam("place", type_=BigInteger)
AHEAD: Final = Statement(
    select(cast(func.coalesce(func.sum(slot_request.c.slot_count), 0), Integer)).where(
        QUEUE, slot_request.c.state == bindparam("state"), or_(PLACE.is_(None), slot_request.c.place < PLACE)
    )
)
DROP_STALE: Final = Statement(
    delete(slot_request)
    .where(QUEUE, slot_request.c.last_requested_at < bindparam("since"))
    .returning(slot_request.c.lease_request_id)
)
LEAVE: Final = Statement(delete(slot_request).where(THE_REQUEST).returning(slot_request.c.lease_request_id))


class Place(msgspec.Struct, frozen=True):
    """A place in the queue for slots of one pool in one state, with the lease request that belongs to it."""

    place: int
    lease_request_id: str


async def free_ended(tx: Connection, lease_pool_ids: Collection[str], state: str, now: datetime) -> None:
    """Free the slots of leases that have ended: they lose their owner and change to `state`."""
    await tx.execute(FREE_ENDED.text, *FREE_ENDED.arguments(pools=list(lease_pool_ids), state=state, now=now))


async def exist(db: Connection, lease_pool_id: str) -> bool:
    found: bool = await db.fetchval(ANY_OF.text, lease_pool_id)
    return found


async def count(db: Connection, lease_pool_id: str) -> int:
    found: int = await db.fetchval(COUNT.text, lease_pool_id)
    return found


async def named(db: Connection, names: Collection[str]) -> list[Slot]:
    return structs(await db.fetch(NAMED.text, list(names)), Slot) if names else []


async def listed(db: Connection, lease_pool_id: str) -> list[Slot]:
    return structs(await db.fetch(LISTED.text, lease_pool_id), Slot)


async def available(tx: Connection, lease_pool_id: str, state: str, *, ahead: int, count: int) -> list[Slot]:
    """Up to `count` slots without an owner, after the `ahead` that are due to others; least recently used first."""
    values = AVAILABLE.arguments(pool=lease_pool_id, state=state, ahead=ahead, count=count)
    return structs(await tx.fetch(AVAILABLE.text, *values), Slot)


async def of_request(tx: Connection, lease_pool_id: str, owner: str, request_id: str) -> list[Slot]:
    """Slots that an owner acquired with a request and still holds."""
    values = OF_REQUEST.arguments(pool=lease_pool_id, owner=owner, request=request_id)
    return structs(await tx.fetch(OF_REQUEST.text, *values), Slot)


async def stale(tx: Connection, lease_pool_id: str, state: str, before: datetime) -> list[Slot]:
    """Owned slots in a state that were last updated before a time."""
    return structs(await tx.fetch(STALE.text, *STALE.arguments(pool=lease_pool_id, state=state, before=before)), Slot)


async def states(db: Connection, lease_pool_id: str) -> list[tuple[str, str, int]]:
    """(state, owner, count) of the slots of a pool."""
    rows = await db.fetch(STATES.text, lease_pool_id)
    return [(row["state"], row["owner"], row["count"]) for row in rows]


async def add(tx: Connection, slots: Sequence[Slot]) -> None:
    if slots:
        await tx.execute(ADD.text, *ADD.rows(slots))


async def save(tx: Connection, slots: Sequence[Slot]) -> None:
    if slots:
        await tx.execute(SAVE.text, *SAVE.rows(slots))


async def remove(tx: Connection, names: Collection[str]) -> None:
    """Delete those of the slots that have no owner."""
    if names:
        await tx.execute(REMOVE.text, list(names))


async def remove_left(tx: Connection, lease_pool_ids: Collection[str]) -> Mapping[str, int]:
    """Delete the slots that left their list while they were owned, and have no owner now; returns their number by lease
    pool."""
    rows = await tx.fetch(REMOVE_LEFT.text, list(lease_pool_ids))
    return Counter(row["lease_pool_id"] for row in rows)


async def join(
    tx: Connection,
    lease_pool_id: str,
    state: str,
    owner: str,
    request_id: str,
    *,
    requested_by: str,
    slot_count: int,
    lease_request_id: str,
    now: datetime,
) -> Place | None:
    """Join the queue, or keep the place in it; None if the place is another token's."""
    values = JOIN.arguments(
        lease_pool_id=lease_pool_id,
        state=state,
        owner=owner,
        id=request_id,
        requested_by=requested_by,
        slot_count=slot_count,
        lease_request_id=lease_request_id,
        last_requested_at=now,
    )
    row = await tx.fetchrow(JOIN.text, *values)
    return None if row is None else msgspec.convert(dict(row), Place)


async def replace_lease_request(
    tx: Connection, lease_pool_id: str, state: str, owner: str, request_id: str, lease_request_id: str
) -> None:
    values = REPLACE_LEASE_REQUEST.arguments(
        lease_pool_id=lease_pool_id, state=state, owner=owner, id=request_id, lease_request=lease_request_id
    )
    await tx.execute(REPLACE_LEASE_REQUEST.text, *values)


async def ahead(tx: Connection, lease_pool_id: str, state: str, place: int | None) -> int:
    """Number of slots requested ahead of a place in the queue, or, for None, in the whole queue."""
    found: int = await tx.fetchval(AHEAD.text, *AHEAD.arguments(pool=lease_pool_id, state=state, place=place))
    return found


async def drop_stale(tx: Connection, lease_pool_id: str, since: datetime) -> list[str]:
    """Drop requests from the queue that were not repeated since then; returns their lease requests."""
    rows = await tx.fetch(DROP_STALE.text, *DROP_STALE.arguments(pool=lease_pool_id, since=since))
    return [row["lease_request_id"] for row in rows]


async def leave(tx: Connection, lease_pool_id: str, state: str, owner: str, request_id: str) -> list[str]:
    """Leave the queue; returns the lease request, if there was one."""
    values = LEAVE.arguments(lease_pool_id=lease_pool_id, state=state, owner=owner, id=request_id)
    return [row["lease_request_id"] for row in await tx.fetch(LEAVE.text, *values)]
