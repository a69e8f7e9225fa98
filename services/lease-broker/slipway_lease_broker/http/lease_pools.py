"""HTTP routes of lease pools: declaration, overview, changes at run time, history and report."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import ValidationError

from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection, Database
from slipway_common.declaration.models import LeasePool
from slipway_common.messaging import outbox
from slipway_common.web.access import require
from slipway_common.web.problem import Problem
from slipway_common.web.runtime import database, wake
from slipway_lease_broker.domain import declaration, ledger, unleased
from slipway_lease_broker.domain.admit import pacing_of
from slipway_lease_broker.domain.declaration import Declared
from slipway_lease_broker.domain.ledger import Entry, accrue_idle
from slipway_lease_broker.domain.ownership import may_act
from slipway_lease_broker.domain.refusals import unknown_lease_pool, wrong_owner
from slipway_lease_broker.domain.report import report
from slipway_lease_broker.http import shown
from slipway_lease_broker.http.bodies import LeasePoolId, Moment, Reported, Starts, TermsChange, WithReason
from slipway_lease_broker.http.callers import Caller, Operator
from slipway_lease_broker.http.refusals import problem
from slipway_lease_broker.http.shown import answered
from slipway_lease_broker.metrics import LIMIT_CHANGES, UNLEASED_STARTS
from slipway_lease_broker.store import answers, history, leases, past_leases, pools, requests
from slipway_lease_broker.store import terms as live

router = APIRouter()
DatabaseDep = Annotated[Database, Depends(database)]
PAST_LEASES_MAX = 100_000


@router.put("/lease-pools")
async def put_lease_pools(
    request: Request,
    body: list[LeasePool],
    database: DatabaseDep,
    caller: Annotated[str, Depends(require("lease-pools:write"))],
    dry_run: bool = False,
    reason: Annotated[str, Query(max_length=500)] = "",
) -> dict[str, Any]:
    """Declare all lease pools at once. Omitted pools are retired; declaring the same list again changes nothing."""
    wanted = [terms(pool) for pool in body]
    if twice := sorted({pool.id for pool in wanted if sum(other.id == pool.id for other in wanted) > 1}):
        raise Problem(422, "duplicate-id", "Lease pool declared twice", ", ".join(twice), ids=twice)
    if dry_run:
        changes = declaration.compare(await pools.declared(database), wanted)
    else:
        async with database.acquire() as db, db.transaction():
            changes = declaration.compare(await pools.lock_declared(db), wanted)
            differ = [made for made in changes if made.change != "unchanged"]
            await pools.declare(db, [made.after for made in differ])
            reason = reason or f"declared by {caller}"
            await outbox.enqueue(db, declaration.limit_events(differ, reason))
            now = await pools.clock(db)
            await history.add(db, [entry(made.after.id, made.change, now, reason, caller) for made in differ])
        count_limits(differ)
        wake(request)
    return {"dry_run": dry_run, "items": [shown_change(made) for made in changes]}


@router.get("/lease-pools")
async def get_lease_pools(database: DatabaseDep) -> dict[str, Any]:
    """List lease pools: limit, units held and waiting, waiting requests and the longest wait, units granted in the last
    minute, the expected wait of one unit requested now (null: forever), and the reasons of the last decision."""
    return {"items": [shown_pool(pool) | {"eta_seconds": pool.eta_seconds} for pool in await pools.overview(database)]}


@router.patch("/lease-pools/{lease_pool_id:id}")
async def change_lease_pool(lease_pool_id: LeasePoolId, body: TermsChange, call: Operator) -> Response:
    """Change terms of a lease pool until its next declaration. Leases stay held: with a lower limit the pool stops
    granting until usage falls."""
    async with call.database.acquire() as db, db.transaction():
        before = {pool.id: pool for pool in await pools.lock_declared(db)}.get(lease_pool_id)
        locked = await pools.lock(db, [lease_pool_id])
        if before is None or before.retired:
            raise problem(unknown_lease_pool(lease_pool_id))
        if body.revision not in (None, before.revision):
            raise Problem(
                409,
                "revision-conflict",
                "Lease pool was changed",
                f"lease pool {lease_pool_id} has revision {before.revision}, not {body.revision}; "
                "read it and repeat the change",
                revision=before.revision,
            )
        made = declaration.change(before, changed(before, body.terms()))
        now = await pools.clock(db)
        changes = [
            f"{name} {old} → {new}" for name, (old, new) in shown_change(made)["fields"].items() if name != "revision"
        ]
        pinned = locked[0].pinned_reason
        if body.pinned is not None and body.pinned is not (pinned is not None):
            pinned = body.reason if body.pinned else None
            changes.append("pinned" if body.pinned else "unpinned")
            await live.pin(db, lease_pool_id, pinned)
        if made.change != "unchanged":
            await pools.declare(db, [made.after])
            await outbox.enqueue(db, declaration.limit_events([made], body.reason), at=now)
        if changes:
            text = f"{', '.join(changes)}: {body.reason}"
            await history.add(db, [entry(lease_pool_id, "set", now, text, call.name)])
    count_limits([made])
    call.runtime.wake()
    return answered(shown_pool(made.after) | {"pinned": pinned is not None})


@router.post("/lease-pools/{lease_pool_id:id}/drain")
async def drain(lease_pool_id: LeasePoolId, body: WithReason, call: Operator) -> Response:
    """Drain a lease pool: it grants nothing more, and leases stay held until they are released."""
    return await drained(call, lease_pool_id, body.reason, body.reason)


@router.post("/lease-pools/{lease_pool_id:id}/undrain")
async def undrain(lease_pool_id: LeasePoolId, body: WithReason, call: Operator) -> Response:
    """Undrain a lease pool: it grants again."""
    return await drained(call, lease_pool_id, None, body.reason)


async def drained(call: Operator, lease_pool_id: str, drained_reason: str | None, reason: str) -> Response:
    async with call.database.acquire() as db, db.transaction():
        pool, now = await lock(db, lease_pool_id)
        if pool.drained_reason != drained_reason:
            await live.drain(db, lease_pool_id, drained_reason)
            kind = "undrained" if drained_reason is None else "drained"
            await history.add(db, [entry(lease_pool_id, kind, now, reason, call.name)])
    call.runtime.wake()
    return answered({"id": lease_pool_id, "drained": drained_reason is not None, "held": pool.held_units})


@router.put("/lease-pools/{lease_pool_id:id}/units")
async def report_units(lease_pool_id: LeasePoolId, body: Reported, call: Operator) -> Response:
    """Report the units that a derived limit follows. After `ttl_seconds` the last value holds, with an alert."""
    async with call.database.acquire() as db, db.transaction():
        pool, now = await lock(db, lease_pool_id)
        if pool.policy.derived is None:
            raise Problem(
                409,
                "not-derived",
                "Limit of the lease pool is not derived",
                f"lease pool {lease_pool_id} has no derived limit; declare `derived` first",
            )
        until = now + timedelta(seconds=body.ttl_seconds)
        await live.report_units(db, lease_pool_id, body.units, until)
    call.runtime.wake()
    return answered({"id": lease_pool_id, "units": body.units, "valid_until": until})


@router.post("/lease-pools/{lease_pool_id:id}/unleased")
async def charge_unleased(lease_pool_id: LeasePoolId, body: Starts, call: Caller) -> Response:
    """Count operations that were started without a lease while the broker was unavailable, until their hold ends. A
    repeated call changes nothing; the leases in the answer may be released like any other. A start time in the future
    counts as now, since the operation would otherwise never count."""
    call.may_write(lease_pool_id)
    starts = [unleased.Start(**start.model_dump()) for start in body.starts]
    async with call.database.acquire() as db, db.transaction():
        pool, now = await lock(db, lease_pool_id)
        ids = {start.request_id for start in starts}
        known = {row.id: row for row in await requests.named(db, {(lease_pool_id, name) for name in ids})}
        for start in starts:
            if start.request_id in known and not may_act(known[start.request_id].owner, call.name):
                raise problem(wrong_owner(f"request {start.request_id}"))
        charges: dict[str, unleased.Charge] = {}
        for start in starts:
            if start.request_id not in known and start.request_id not in charges:
                charge = unleased.charge(accrue_idle(pool, now), start, now, lease_id=new_id(), owner=call.name)
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
    call.runtime.wake()
    return answered({"charged": len(charges), "items": [shown.lease(row, now) for row in rows]})


@router.get("/lease-pools/{lease_pool_id:id}/history")
async def get_history(
    database: DatabaseDep,
    lease_pool_id: LeasePoolId,
    since: Moment | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> Response:
    """List the decisions about a lease pool with actor and reason, newest first."""
    if await answers.pool(database, lease_pool_id) is None:
        raise problem(unknown_lease_pool(lease_pool_id))
    rows = await history.of_pool(database, lease_pool_id, since=since, limit=limit)
    return answered({"items": [shown.entry(row) for row in rows]})


@router.get("/lease-pools/{lease_pool_id:id}/report")
async def get_report(
    database: DatabaseDep,
    lease_pool_id: LeasePoolId,
    since_seconds: Annotated[float, Query(gt=0, le=31_536_000)] = 86_400.0,
    limit: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    hold_seconds: Annotated[float | None, Query(gt=0, le=31_536_000)] = None,
) -> Response:
    """Report on past concurrency, throttling and phases, compared with a limit and a hold [default: the pool's]."""
    found = await answers.pool(database, lease_pool_id)
    if found is None:
        raise problem(unknown_lease_pool(lease_pool_id))
    pool, now = found
    since = now - timedelta(seconds=since_seconds)
    replayed = msgspec.structs.replace(
        pool, limit_units=limit or pool.limit_units, hold_seconds=hold_seconds or pool.hold_seconds
    )
    past = await past_leases.since(database, lease_pool_id, since, limit=PAST_LEASES_MAX)
    found_report = report(
        past,
        since,
        now,
        limit_units=replayed.limit_units,
        hold_seconds=replayed.hold_seconds,
        pacing=pacing_of(replayed, replayed.limit_units),
    )
    return answered(
        {"id": lease_pool_id, "mode": pool.policy.mode, "limit": pool.limit_units} | shown.flat(found_report)
    )


async def lock(db: Connection, lease_pool_id: str) -> tuple[ledger.LeasePool, datetime]:
    """The pool, locked until the transaction ends, and the time after the lock. Raises a Problem 404 for an unknown
    pool."""
    locked = await pools.lock(db, [lease_pool_id])
    if not locked or locked[0].retired:
        raise problem(unknown_lease_pool(lease_pool_id))
    return locked[0], await pools.clock(db)


def entry(lease_pool_id: str, kind: str, at: datetime, reason: str, by: str) -> Entry:
    return Entry(lease_pool_id=lease_pool_id, at=at, kind=kind, reason=reason, actor=by)


def changed(pool: Declared, given: dict[str, Any]) -> Declared:
    """The pool with some terms changed. Raises a Problem 422 for terms that could not be declared."""
    try:
        return terms(LeasePool.model_validate(shown_terms(pool) | given))
    except ValidationError as error:
        first = error.errors()[0]
        detail = ": ".join(filter(None, ("/".join(map(str, first["loc"])), first["msg"])))
        raise Problem(422, "invalid-terms", "Invalid terms of a lease pool", detail) from error


def count_limits(changes: Sequence[declaration.PoolChange]) -> None:
    for event in declaration.limit_events(changes, ""):
        LIMIT_CHANGES.labels(event.lease_pool_id, "declared").inc()


def terms(pool: LeasePool) -> Declared:
    """The terms of a declared pool: those of its policy are one document, and the others have columns of their own."""
    fields = pool.model_dump(mode="json")
    return msgspec.convert(fields | {"limit_units": pool.limit, "policy": fields}, Declared)


def shown_terms(pool: Declared) -> dict[str, Any]:
    """The declared terms of a pool, with the names of slipway.yaml."""
    return {name: value for name, value in shown_pool(pool).items() if name not in ("revision", "retired")}


def shown_pool(pool: Declared) -> dict[str, Any]:
    """A pool, with the names of slipway.yaml."""
    fields: dict[str, Any] = msgspec.to_builtins(pool)
    return {"id": fields.pop("id"), "limit": fields.pop("limit_units"), **fields.pop("policy"), **fields}


def shown_change(made: declaration.PoolChange) -> dict[str, Any]:
    """A change of a pool; `fields` holds [before, after] of each changed term."""
    after, before = shown_pool(made.after), shown_pool(made.before) if made.before else {}
    fields = {name: [before.get(name), value] for name, value in after.items() if before.get(name) != value}
    return {"id": made.after.id, "change": made.change, "fields": {k: v for k, v in fields.items() if k != "id"}}
