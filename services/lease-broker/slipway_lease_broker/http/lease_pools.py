"""Lease pools over HTTP: declared, looked at, changed while they work."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request

from slipway_common import outbox
from slipway_common.access import require
from slipway_common.declaration import LeasePool
from slipway_common.postgres import Pool
from slipway_common.problem import Problem
from slipway_common.runtime import database, ring
from slipway_lease_broker.domain import declaration
from slipway_lease_broker.domain.declaration import Change, Declared
from slipway_lease_broker.domain.terms import Policy
from slipway_lease_broker.store import pools

router = APIRouter()
Database = Annotated[Pool, Depends(database)]


@router.put("/lease-pools")
async def put_lease_pools(
    request: Request,
    body: list[LeasePool],
    db_pool: Database,
    caller: Annotated[str, Depends(require("lease-pools:write"))],
    dry_run: bool = False,
    reason: Annotated[str, Query(max_length=500)] = "",
) -> dict[str, Any]:
    """Declare all lease pools at once. Pools left out are retired; the same list again changes nothing."""
    wanted = [terms(pool) for pool in body]
    if twice := sorted({pool.id for pool in wanted if sum(other.id == pool.id for other in wanted) > 1}):
        raise Problem(422, "duplicate-id", "A lease pool is declared twice", ", ".join(twice), ids=twice)
    if dry_run:
        changes = declaration.compare(await pools.declared(db_pool), wanted)
    else:
        async with db_pool.acquire() as db, db.transaction():
            changes = declaration.compare(await pools.lock_declared(db), wanted)
            changed = [made for made in changes if made.change != "unchanged"]
            await pools.declare(db, [made.after for made in changed])
            because = reason or f"declared by {caller}"
            await outbox.enqueue(db, declaration.limit_events(changed, because))
        ring(request)
    return {"dry_run": dry_run, "items": [shown_change(made) for made in changes]}


@router.get("/lease-pools")
async def get_lease_pools(db_pool: Database) -> dict[str, Any]:
    """Limit, units held and waiting, requests that wait and since when, units granted in the last minute, what one unit
    asked for now would wait (null: for ever), and the last reasons."""
    return {"items": [shown(pool) | {"eta_seconds": pool.eta_seconds} for pool in await pools.overview(db_pool)]}


def terms(pool: LeasePool) -> Declared:
    return Declared(
        id=pool.id,
        limit_units=pool.limit,
        hold_seconds=pool.hold_seconds,
        ttl_seconds=pool.ttl_seconds,
        reserve_seconds=pool.reserve_seconds,
        policy=msgspec.convert(pool.model_dump(mode="json", include=set(Policy.__struct_fields__)), Policy),
    )


def shown(pool: Declared) -> dict[str, Any]:
    """A pool in the words of slipway.yaml."""
    fields: dict[str, Any] = msgspec.to_builtins(pool)
    return {"id": fields.pop("id"), "limit": fields.pop("limit_units"), **fields.pop("policy"), **fields}


def shown_change(made: Change) -> dict[str, Any]:
    """`fields` holds [before, after] of each term that changes."""
    after, before = shown(made.after), shown(made.before) if made.before else {}
    fields = {name: [before.get(name), value] for name, value in after.items() if before.get(name) != value}
    return {"id": made.after.id, "change": made.change, "fields": {k: v for k, v in fields.items() if k != "id"}}
