"""Lease pools over HTTP: declared, looked at, changed while they work, and what their past says."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import ValidationError

from slipway_common import outbox
from slipway_common.access import require
from slipway_common.declaration import LeasePool
from slipway_common.ids import new_id
from slipway_common.postgres import Connection, Pool
from slipway_common.problem import Problem
from slipway_common.runtime import database, ring
from slipway_lease_broker.domain import declaration, ledger, unleased
from slipway_lease_broker.domain.admit import pacing_of
from slipway_lease_broker.domain.declaration import Declared
from slipway_lease_broker.domain.ledger import Entry, idled
from slipway_lease_broker.domain.report import report
from slipway_lease_broker.domain.terms import Policy
from slipway_lease_broker.http import shown
from slipway_lease_broker.http.bodies import Because, Change, LeasePoolId, Moment, Reported, Starts
from slipway_lease_broker.http.callers import Caller, Operator
from slipway_lease_broker.http.errands import unknown_lease_pool, wrong_owner
from slipway_lease_broker.http.shown import answered
from slipway_lease_broker.metrics import LIMIT_CHANGES, UNLEASED_STARTS
from slipway_lease_broker.store import answers, history, leases, pools, requests, stays
from slipway_lease_broker.store import terms as live

router = APIRouter()
Database = Annotated[Pool, Depends(database)]
STAYS_MAX = 100_000


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
            differ = [made for made in changes if made.change != "unchanged"]
            await pools.declare(db, [made.after for made in differ])
            because = reason or f"declared by {caller}"
            await outbox.enqueue(db, declaration.limit_events(differ, because))
            now = await pools.clock(db)
            await history.add(db, [entry(made.after.id, made.change, now, because, caller) for made in differ])
        count_limits(differ)
        ring(request)
    return {"dry_run": dry_run, "items": [shown_change(made) for made in changes]}


@router.get("/lease-pools")
async def get_lease_pools(db_pool: Database) -> dict[str, Any]:
    """Limit, units held and waiting, requests that wait and since when, units granted in the last minute, what one unit
    asked for now would wait (null: for ever), and the last reasons."""
    return {"items": [shown_pool(pool) | {"eta_seconds": pool.eta_seconds} for pool in await pools.overview(db_pool)]}


@router.patch("/lease-pools/{lease_pool_id}")
async def change_lease_pool(lease_pool_id: LeasePoolId, body: Change, call: Operator) -> Response:
    """Change some terms now, until the pool is declared otherwise. What is held stays held: a lower limit drains."""
    async with call.database.acquire() as db, db.transaction():
        before = {pool.id: pool for pool in await pools.lock_declared(db)}.get(lease_pool_id)
        locked = await pools.lock(db, [lease_pool_id])
        if before is None or before.retired:
            raise unknown_lease_pool(lease_pool_id)
        if body.revision not in (None, before.revision):
            raise Problem(
                409,
                "revision-conflict",
                "The lease pool was changed meanwhile",
                f"{lease_pool_id} has revision {before.revision}, not {body.revision}; look at it and ask again",
                revision=before.revision,
            )
        made = declaration.change(before, changed(before, body.terms()))
        now = await pools.clock(db)
        said = [
            f"{name} {old} → {new}" for name, (old, new) in shown_change(made)["fields"].items() if name != "revision"
        ]
        pinned = locked[0].pinned_reason
        if body.pinned is not None and body.pinned is not (pinned is not None):
            pinned = body.reason if body.pinned else None
            said.append("pinned" if body.pinned else "no longer pinned")
            await live.pin(db, lease_pool_id, pinned)
        if made.change != "unchanged":
            await pools.declare(db, [made.after])
            await outbox.enqueue(db, declaration.limit_events([made], body.reason), at=now)
        if said:
            await history.add(db, [entry(lease_pool_id, "set", now, f"{', '.join(said)}: {body.reason}", call.name)])
    count_limits([made])
    call.runtime.ring()
    return answered(shown_pool(made.after) | {"pinned": pinned is not None})


@router.post("/lease-pools/{lease_pool_id}/drain")
async def drain(lease_pool_id: LeasePoolId, body: Because, call: Operator) -> Response:
    """Grant nothing more; what is held stays held until it is given back."""
    return await drained(call, lease_pool_id, body.reason, body.reason)


@router.post("/lease-pools/{lease_pool_id}/undrain")
async def undrain(lease_pool_id: LeasePoolId, body: Because, call: Operator) -> Response:
    """Grant again."""
    return await drained(call, lease_pool_id, None, body.reason)


async def drained(call: Operator, lease_pool_id: str, why: str | None, reason: str) -> Response:
    async with call.database.acquire() as db, db.transaction():
        pool, now = await lock(db, lease_pool_id)
        if pool.drained_reason != why:
            await live.drain(db, lease_pool_id, why)
            kind = "undrained" if why is None else "drained"
            await history.add(db, [entry(lease_pool_id, kind, now, reason, call.name)])
    call.runtime.ring()
    return answered({"id": lease_pool_id, "drained": why is not None, "held": pool.held_units})


@router.put("/lease-pools/{lease_pool_id}/units")
async def report_units(lease_pool_id: LeasePoolId, body: Reported, call: Operator) -> Response:
    """Say how many units a derived limit follows. After `ttl_seconds` the last value holds, with an alert."""
    async with call.database.acquire() as db, db.transaction():
        pool, now = await lock(db, lease_pool_id)
        if pool.policy.derived is None:
            raise Problem(
                409,
                "not-derived",
                "The limit of this lease pool derives from nothing",
                f"declare `derived` for {lease_pool_id} first",
            )
        until = now + timedelta(seconds=body.ttl_seconds)
        await live.report_units(db, lease_pool_id, body.units, until)
    call.runtime.ring()
    return answered({"id": lease_pool_id, "units": body.units, "valid_until": until})


@router.post("/lease-pools/{lease_pool_id}/unleased")
async def charge_unleased(lease_pool_id: LeasePoolId, body: Starts, call: Caller) -> Response:
    """Charge what was started while no broker answered: it counts until its hold passes. Said again it changes
    nothing; the leases that are answered may be given back like any other. What a fast clock puts into the future
    started now: left out, it would never count."""
    call.may_write(lease_pool_id)
    starts = [unleased.Start(**start.model_dump()) for start in body.starts]
    async with call.database.acquire() as db, db.transaction():
        pool, now = await lock(db, lease_pool_id)
        ids = {start.request_id for start in starts}
        known = {row.id: row for row in await requests.named(db, {(lease_pool_id, name) for name in ids})}
        for start in starts:
            if start.request_id in known and known[start.request_id].owner != call.name:
                raise wrong_owner(f"request {start.request_id}")
        charges: dict[str, unleased.Charge] = {}
        for start in starts:
            if start.request_id not in known and start.request_id not in charges:
                charge = unleased.charge(idled(pool, now), start, now, lease_id=new_id(), owner=call.name)
                charges[start.request_id], pool = charge, charge.pool
        made = list(charges.values())
        await requests.add(db, [charge.request for charge in made])
        await leases.add(db, [charge.lease for charge in made])
        await history.add(db, [charge.entry for charge in made])
        deadline = min((charge.lease.deadline for charge in made), default=None)
        if deadline is not None:
            await pools.mark(db, [pool], {lease_pool_id}, {lease_pool_id: deadline})
        rows = await answers.of_requests(db, lease_pool_id, ids)
    UNLEASED_STARTS.labels(lease_pool_id).inc(len(charges))
    call.runtime.ring()
    return answered({"charged": len(charges), "items": [shown.lease(row, now) for row in rows]})


@router.get("/lease-pools/{lease_pool_id}/history")
async def get_history(
    db_pool: Database,
    lease_pool_id: LeasePoolId,
    since: Moment | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> Response:
    """What was decided, by whom and why; the newest first."""
    if await answers.pool(db_pool, lease_pool_id) is None:
        raise unknown_lease_pool(lease_pool_id)
    rows = await history.of_pool(db_pool, lease_pool_id, since=since, limit=limit)
    return answered({"items": [shown.entry(row) for row in rows]})


@router.get("/lease-pools/{lease_pool_id}/report")
async def get_report(
    db_pool: Database,
    lease_pool_id: LeasePoolId,
    since_seconds: Annotated[float, Query(gt=0, le=31_536_000)] = 86_400.0,
    limit: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    hold_seconds: Annotated[float | None, Query(gt=0, le=31_536_000)] = None,
) -> Response:
    """Concurrency, throttles and phases of the past against a limit and a hold: the pool's, or those given."""
    found = await answers.pool(db_pool, lease_pool_id)
    if found is None:
        raise unknown_lease_pool(lease_pool_id)
    pool, now = found
    since = now - timedelta(seconds=since_seconds)
    asked = msgspec.structs.replace(
        pool, limit_units=limit or pool.limit_units, hold_seconds=hold_seconds or pool.hold_seconds
    )
    past = await stays.since(db_pool, lease_pool_id, since, limit=STAYS_MAX)
    told = report(
        past,
        since,
        now,
        limit_units=asked.limit_units,
        hold_seconds=asked.hold_seconds,
        pacing=pacing_of(asked, asked.limit_units),
    )
    return answered({"id": lease_pool_id, "mode": pool.policy.mode, "limit": pool.limit_units} | shown.flat(told))


async def lock(db: Connection, lease_pool_id: str) -> tuple[ledger.LeasePool, datetime]:
    """The pool, locked until the transaction ends, and the time after it was; a Problem 404 for an unknown one."""
    locked = await pools.lock(db, [lease_pool_id])
    if not locked or locked[0].retired:
        raise unknown_lease_pool(lease_pool_id)
    return locked[0], await pools.clock(db)


def entry(lease_pool_id: str, kind: str, at: datetime, reason: str, by: str) -> Entry:
    return Entry(lease_pool_id=lease_pool_id, at=at, kind=kind, reason=reason, actor=by)


def changed(pool: Declared, given: dict[str, Any]) -> Declared:
    """The pool with some terms changed; a Problem 422 for terms that could not be declared."""
    try:
        return terms(LeasePool.model_validate(shown_terms(pool) | given))
    except ValidationError as error:
        first = error.errors()[0]
        detail = ": ".join(filter(None, ("/".join(map(str, first["loc"])), first["msg"])))
        raise Problem(422, "invalid-terms", "These terms do not go together", detail) from error


def count_limits(changes: Sequence[declaration.Change]) -> None:
    for event in declaration.limit_events(changes, ""):
        LIMIT_CHANGES.labels(event.lease_pool_id, "declared").inc()


def terms(pool: LeasePool) -> Declared:
    return Declared(
        id=pool.id,
        limit_units=pool.limit,
        hold_seconds=pool.hold_seconds,
        ttl_seconds=pool.ttl_seconds,
        reserve_seconds=pool.reserve_seconds,
        policy=msgspec.convert(pool.model_dump(mode="json", include=set(Policy.__struct_fields__)), Policy),
    )


def shown_terms(pool: Declared) -> dict[str, Any]:
    """What is declared of a pool, in the words of slipway.yaml."""
    return {name: value for name, value in shown_pool(pool).items() if name not in ("revision", "retired")}


def shown_pool(pool: Declared) -> dict[str, Any]:
    """A pool in the words of slipway.yaml."""
    fields: dict[str, Any] = msgspec.to_builtins(pool)
    return {"id": fields.pop("id"), "limit": fields.pop("limit_units"), **fields.pop("policy"), **fields}


def shown_change(made: declaration.Change) -> dict[str, Any]:
    """`fields` holds [before, after] of each term that changes."""
    after, before = shown_pool(made.after), shown_pool(made.before) if made.before else {}
    fields = {name: [before.get(name), value] for name, value in after.items() if before.get(name) != value}
    return {"id": made.after.id, "change": made.change, "fields": {k: v for k, v in fields.items() if k != "id"}}
