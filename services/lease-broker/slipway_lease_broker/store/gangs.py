"""Gangs: requests of several lease pools that start together or not at all. A gang's row is locked after its pools'."""

from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_lease_broker.domain.ledger import Gang, Request
from slipway_lease_broker.store import requests
from slipway_lease_broker.store.rows import structs

FIELDS: Final = ", ".join(Gang.__struct_fields__)
# Concurrent requests of one gang wait here for the first to commit, even if they lock different pools.
ADD: Final = f"""
INSERT INTO gangs ({FIELDS}) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO UPDATE SET last_requested_at = excluded.last_requested_at RETURNING {FIELDS}"""
NAMED: Final = f"SELECT {FIELDS} FROM gangs WHERE id = $1"
LOCK: Final = f"{NAMED} FOR UPDATE"
POOLS: Final = "SELECT DISTINCT lease_pool_id FROM requests WHERE gang_id = $1"
MEMBERS: Final = f"{requests.SELECT} WHERE gang_id = $1 ORDER BY lease_pool_id"
ELSEWHERE: Final = f"{requests.SELECT} WHERE gang_id = ANY($1::text[]) AND lease_pool_id <> $2"
TURN: Final = "UPDATE gangs SET turn_at = $2 WHERE id = ANY($1::text[]) AND turn_at IS NULL"
# Gangs with a lapsed request are left out: they cannot start, and hundreds of them would keep others from being tried.
READY: Final = """
SELECT id FROM gangs AS g WHERE turn_at <= slipway_clock() AND done_at IS NULL
    AND NOT EXISTS (SELECT FROM requests WHERE gang_id = g.id AND lapsed)
ORDER BY requested_at LIMIT 100"""
LOSE_TURN: Final = "UPDATE gangs SET turn_at = NULL WHERE id = $1"
PUT_OFF: Final = "UPDATE gangs SET turn_at = slipway_clock() + make_interval(secs => $2) WHERE id = $1"
DONE: Final = "UPDATE gangs SET done_at = $2 WHERE id = $1"
PRUNE: Final = """
DELETE FROM gangs AS g WHERE last_requested_at < slipway_clock() - make_interval(secs => $1)
    AND NOT EXISTS (SELECT FROM requests WHERE gang_id = g.id)"""


async def add(tx: Connection, gang: Gang) -> Gang:
    """Insert a gang, or note the repeated request of a known one; returns the stored row, locked until the commit.
    Call it after the locks of all requested pools, and before any check of what is known of the gang."""
    row = await tx.fetchrow(ADD, *(getattr(gang, name) for name in Gang.__struct_fields__))
    return msgspec.convert(dict(row), Gang)


async def named(db: Connection, gang_id: str) -> Gang | None:
    return next(iter(structs(await db.fetch(NAMED, gang_id), Gang)), None)


async def lock(tx: Connection, gang_id: str) -> Gang | None:
    """Lock a gang. Call it after the locks of all its pools."""
    return next(iter(structs(await tx.fetch(LOCK, gang_id), Gang)), None)


async def pools_of(db: Connection, gang_id: str) -> list[str]:
    """The lease pools of a gang. They never change, since a gang requests all of its units at once."""
    return [row["lease_pool_id"] for row in await db.fetch(POOLS, gang_id)]


async def members(tx: Connection, gang_id: str) -> list[Request]:
    """The requests of a gang, in ascending order of lease pools."""
    return structs(await tx.fetch(MEMBERS, gang_id), Request)


async def elsewhere(tx: Connection, ids: Collection[str], lease_pool_id: str) -> list[Request]:
    """Requests of these gangs in other pools than this one. Locks nothing."""
    return structs(await tx.fetch(ELSEWHERE, sorted(ids), lease_pool_id), Request)


async def have_turn(tx: Connection, ids: Collection[str], now: datetime) -> None:
    """Mark gangs that could start in one of their pools: from now on the gang loop tries them."""
    if ids:
        await tx.execute(TURN, sorted(ids), now)


async def lose_turn(tx: Connection, gang_id: str) -> None:
    """Stop trying a gang that cannot start, until one of its pools gives it a turn again."""
    await tx.execute(LOSE_TURN, gang_id)


async def put_off(db: Connection, gang_id: str, *, seconds: float) -> None:
    """Postpone a gang for which no decision can be made."""
    await db.execute(PUT_OFF, gang_id, seconds)


async def ready(db: Connection) -> list[str]:
    """Gangs that had their turn in one pool and wait for the others, oldest first. Locks nothing."""
    return [row["id"] for row in await db.fetch(READY)]


async def done(tx: Connection, gang_id: str, now: datetime) -> None:
    await tx.execute(DONE, gang_id, now)


async def prune(tx: Connection, *, unused_for_seconds: float) -> None:
    await tx.execute(PRUNE, unused_for_seconds)
