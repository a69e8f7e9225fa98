"""Gangs: requests of several lease pools that start together or not at all. A gang's row is locked after its pools'."""

from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy import any_, bindparam, exists, func, select, update
from sqlalchemy.dialects.postgresql import insert

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, seconds
from slipway_lease_broker.domain.ledger import Gang, Request
from slipway_lease_broker.store import requests
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import gang, request

FIELDS: Final = gang.c[Gang.__struct_fields__]
NAMED_GANG: Final = gang.c.id == bindparam("id")
NEW: Final = insert(gang).values({field.name: bindparam(field.name) for field in FIELDS})
# Concurrent requests of one gang wait here for the first to commit, even if they lock different pools.
ADD: Final = Statement(
    NEW.on_conflict_do_update(
        index_elements=[gang.c.id], set_={"last_requested_at": NEW.excluded.last_requested_at}
    ).returning(*FIELDS)
)
NAMED: Final = Statement(select(*FIELDS).where(NAMED_GANG))
LOCK: Final = Statement(select(*FIELDS).where(NAMED_GANG).with_for_update())
POOLS: Final = Statement(select(request.c.lease_pool_id).distinct().where(request.c.gang_id == bindparam("gang")))
MEMBERS: Final = Statement(
    select(*requests.FIELDS).where(request.c.gang_id == bindparam("gang")).order_by(request.c.lease_pool_id)
)
ELSEWHERE: Final = Statement(
    select(*requests.FIELDS).where(
        request.c.gang_id == any_(array("gangs", request.c.gang_id)), request.c.lease_pool_id != bindparam("pool")
    )
)
TURN: Final = Statement(
    update(gang)
    .where(gang.c.id == any_(array("ids", gang.c.id)), gang.c.turn_at.is_(None))
    .values(turn_at=bindparam("now"))
)
# Gangs with a lapsed request are left out: they cannot start, and hundreds of them would keep others from being tried.
READY: Final = Statement(
    select(gang.c.id)
    .where(
        gang.c.turn_at <= func.slipway_clock(),
        gang.c.done_at.is_(None),
        ~exists().where(request.c.gang_id == gang.c.id, request.c.lapsed),
    )
    .order_by(gang.c.requested_at)
    .limit(100)
)
LOSE_TURN: Final = Statement(update(gang).where(NAMED_GANG).values(turn_at=None))
PUT_OFF: Final = Statement(update(gang).where(NAMED_GANG).values(turn_at=func.slipway_clock() + seconds("delay")))
DONE: Final = Statement(update(gang).where(NAMED_GANG).values(done_at=bindparam("now")))


async def add(tx: Connection, gang: Gang) -> Gang:
    """Insert a gang, or note the repeated request of a known one; returns the stored row, locked until the commit.
    Call it after the locks of all requested pools, and before any check of what is known of the gang."""
    row = await tx.fetchrow(ADD.text, *ADD.arguments(**msgspec.structs.asdict(gang)))
    return msgspec.convert(dict(row), Gang)


async def named(db: Connection, gang_id: str) -> Gang | None:
    return next(iter(structs(await db.fetch(NAMED.text, gang_id), Gang)), None)


async def lock(tx: Connection, gang_id: str) -> Gang | None:
    """Lock a gang. Call it after the locks of all its pools."""
    return next(iter(structs(await tx.fetch(LOCK.text, gang_id), Gang)), None)


async def pools_of(db: Connection, gang_id: str) -> list[str]:
    """The lease pools of a gang. They never change, since a gang requests all of its units at once."""
    return [row["lease_pool_id"] for row in await db.fetch(POOLS.text, gang_id)]


async def members(tx: Connection, gang_id: str) -> list[Request]:
    """The requests of a gang, in ascending order of lease pools."""
    return structs(await tx.fetch(MEMBERS.text, gang_id), Request)


async def elsewhere(tx: Connection, ids: Collection[str], lease_pool_id: str) -> list[Request]:
    """Requests of these gangs in other pools than this one. Locks nothing."""
    return structs(await tx.fetch(ELSEWHERE.text, *ELSEWHERE.arguments(gangs=sorted(ids), pool=lease_pool_id)), Request)


async def have_turn(tx: Connection, ids: Collection[str], now: datetime) -> None:
    """Mark gangs that could start in one of their pools: from now on the gang loop tries them."""
    if ids:
        await tx.execute(TURN.text, *TURN.arguments(ids=sorted(ids), now=now))


async def lose_turn(tx: Connection, gang_id: str) -> None:
    """Stop trying a gang that cannot start, until one of its pools gives it a turn again."""
    await tx.execute(LOSE_TURN.text, gang_id)


async def put_off(db: Connection, gang_id: str, *, seconds: float) -> None:
    """Postpone a gang for which no decision can be made."""
    await db.execute(PUT_OFF.text, *PUT_OFF.arguments(id=gang_id, delay=seconds))


async def ready(db: Connection) -> list[str]:
    """Gangs that had their turn in one pool and wait for the others, oldest first. Locks nothing."""
    return [row["id"] for row in await db.fetch(READY.text)]


async def done(tx: Connection, gang_id: str, now: datetime) -> None:
    await tx.execute(DONE.text, *DONE.arguments(id=gang_id, now=now))
