"""Gangs: requests of several lease pools that start together or not at all. A gang's row is locked after its pools'."""

from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.postgres import Connection
from slipway_lease_broker.domain.ledger import Gang, Request
from slipway_lease_broker.store import requests
from slipway_lease_broker.store.rows import structs

FIELDS: Final = ", ".join(Gang.__struct_fields__)
# Whoever asks at the same time waits here for the first to commit, also where they lock different pools.
ADD: Final = f"""
INSERT INTO gangs ({FIELDS}) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO UPDATE SET last_asked_at = excluded.last_asked_at RETURNING {FIELDS}"""
NAMED: Final = f"SELECT {FIELDS} FROM gangs WHERE id = $1"
LOCK: Final = f"{NAMED} FOR UPDATE"
POOLS: Final = "SELECT DISTINCT lease_pool_id FROM requests WHERE gang_id = $1"
MEMBERS: Final = f"{requests.SELECT} WHERE gang_id = $1 ORDER BY lease_pool_id"
ELSEWHERE: Final = f"{requests.SELECT} WHERE gang_id = ANY($1::text[]) AND lease_pool_id <> $2"
TURN: Final = "UPDATE gangs SET turn_at = $2 WHERE id = ANY($1::text[]) AND turn_at IS NULL"
# One whose asker is silent would be tried in vain, and hundreds of them would keep the others from being tried.
READY: Final = """
SELECT id FROM gangs AS g WHERE turn_at <= slipway_clock() AND done_at IS NULL
    AND NOT EXISTS (SELECT FROM requests WHERE gang_id = g.id AND lapsed)
ORDER BY asked_at LIMIT 100"""
LOSE_TURN: Final = "UPDATE gangs SET turn_at = NULL WHERE id = $1"
PUT_OFF: Final = "UPDATE gangs SET turn_at = slipway_clock() + make_interval(secs => $2) WHERE id = $1"
DONE: Final = "UPDATE gangs SET done_at = $2 WHERE id = $1"
FORGET: Final = """
DELETE FROM gangs AS g WHERE last_asked_at < slipway_clock() - make_interval(secs => $1)
    AND NOT EXISTS (SELECT FROM requests WHERE gang_id = g.id)"""


async def add(tx: Connection, gang: Gang) -> Gang:
    """Or, if it is known, note that it is asked for again; returns it as it is. After the locks of all the pools that
    are asked, and before anything is judged by what is known of it: its row is locked until the commit."""
    row = await tx.fetchrow(ADD, *(getattr(gang, name) for name in Gang.__struct_fields__))
    return msgspec.convert(dict(row), Gang)


async def named(db: Connection, gang_id: str) -> Gang | None:
    return next(iter(structs(await db.fetch(NAMED, gang_id), Gang)), None)


async def lock(tx: Connection, gang_id: str) -> Gang | None:
    """After the locks of all its pools."""
    return next(iter(structs(await tx.fetch(LOCK, gang_id), Gang)), None)


async def pools_of(db: Connection, gang_id: str) -> list[str]:
    """Never changes: a gang asks for all it wants at once."""
    return [row["lease_pool_id"] for row in await db.fetch(POOLS, gang_id)]


async def members(tx: Connection, gang_id: str) -> list[Request]:
    """In ascending order of lease pools."""
    return structs(await tx.fetch(MEMBERS, gang_id), Request)


async def elsewhere(tx: Connection, ids: Collection[str], lease_pool_id: str) -> list[Request]:
    """Their members in other pools than this one. Locks nothing."""
    return structs(await tx.fetch(ELSEWHERE, sorted(ids), lease_pool_id), Request)


async def have_turn(tx: Connection, ids: Collection[str], now: datetime) -> None:
    """They may start as far as one pool is concerned: from now on they are tried whenever another may have room."""
    if ids:
        await tx.execute(TURN, sorted(ids), now)


async def lose_turn(tx: Connection, gang_id: str) -> None:
    """It cannot start: it is not tried until some pool gives it a turn again."""
    await tx.execute(LOSE_TURN, gang_id)


async def put_off(db: Connection, gang_id: str, *, seconds: float) -> None:
    """No decision can be made for it now: it is not tried for so many seconds."""
    await db.execute(PUT_OFF, gang_id, seconds)


async def ready(db: Connection) -> list[str]:
    """Those that had their turn somewhere and wait for their other pools; first come first. Locks nothing."""
    return [row["id"] for row in await db.fetch(READY)]


async def done(tx: Connection, gang_id: str, now: datetime) -> None:
    await tx.execute(DONE, gang_id, now)


async def forget(tx: Connection, *, silent_for_seconds: float) -> None:
    await tx.execute(FORGET, silent_for_seconds)
