"""Leases over HTTP: asked for, kept, given back, looked at. Every write goes over the desk (desk.py)."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from slipway_common.access import Credentials, identify, permit
from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmRequested,
    LeaseGroup,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    ReplacedLease,
)
from slipway_common.postgres import Pool
from slipway_common.problem import Problem
from slipway_common.runtime import database
from slipway_common.telemetry import current_trace
from slipway_lease_broker.domain.facts import UNITS_MAX
from slipway_lease_broker.domain.ledger import Lease
from slipway_lease_broker.http import shown
from slipway_lease_broker.http.bodies import Acquire, LeaseId, LeasePoolId, Prolong, Release, Renew, RequestId
from slipway_lease_broker.http.callers import Call, Caller
from slipway_lease_broker.http.errands import (
    Answer,
    Errand,
    OfLease,
    unknown_lease,
    unknown_lease_pool,
    unknown_request,
)
from slipway_lease_broker.http.shown import answered
from slipway_lease_broker.metrics import REFUSED_FACTS
from slipway_lease_broker.store import answers, history, leases, pools

router = APIRouter()
Database = Annotated[Pool, Depends(database)]
Items = Annotated[int, Query(ge=1, le=10_000)]


@router.post("/lease-pools/{lease_pool_id}/leases", responses={202: {"description": "It waits in the queue."}})
async def acquire(request: Request, lease_pool_id: LeasePoolId, body: Acquire, call: Caller) -> Response:
    """A lease, or a place in the queue after `wait_seconds`. The same request id again never gets a second lease: ask
    again with it after a lost answer, and to go on waiting."""
    call.may_write(lease_pool_id)
    errand = Errand(
        fact=wanted(lease_pool_id, body, call.name),
        caller=call.name,
        admin=call.admin,
        confirm=body.confirm,
        wait=body.wait_seconds > 0,
        traceparent=current_trace(),
    )
    answer = await settle(call, errand)
    if answer.woken is not None and await call.desk.stay(answer, body.wait_seconds, left(request)):
        lease = answer.woken.result()
        answer = await once_more(call, errand) if lease is None else granted(answer, lease)
    if answer.lease is None:
        standing = await answers.standing(call.database, lease_pool_id, body.request_id)
        assert standing is not None
        if standing.request.waiting_units:
            return shown.queued(body.request_id, shown.told(standing))
        answer = await once_more(call, errand)  # granted at the last moment
    assert answer.lease is not None
    return answered(shown.lease(answer.lease, answer.now))


async def settle(call: Call, errand: Errand) -> Answer:
    """What the desk answers. Raises the Problem it is refused with; a token that is not the lease's is counted, here as
    on the topic."""
    try:
        return await call.desk.settle(call.database, errand)
    except Problem as refused:
        if str(refused.body["type"]).endswith(":stale-token"):
            REFUSED_FACTS.labels("stale token").inc()
        raise


async def once_more(call: Call, errand: Errand) -> Answer:
    """The answer of the same request, which has probably been granted meanwhile."""
    return await settle(call, msgspec.structs.replace(errand, wait=False))


def granted(answer: Answer, lease: Lease) -> Answer:
    """The answer of one who stayed and was granted `lease` in this very moment."""
    return msgspec.structs.replace(answer, lease=lease, now=lease.granted_at)


async def left(request: Request) -> None:
    """Returns when the caller has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def wanted(lease_pool_id: str, body: Acquire, caller: str) -> LeaseRequested:
    group, replaces = body.group, body.replaces
    return LeaseRequested(
        lease_pool_id=lease_pool_id,
        request_id=body.request_id,
        units=body.units,
        tenant=body.tenant or caller,
        operation=body.operation,
        priority=body.priority,
        whole=True,
        hold_seconds=body.hold_seconds,
        group=LeaseGroup(**group.model_dump()) if group is not None else None,
        replaces=ReplacedLease(**replaces.model_dump()) if replaces is not None else None,
    )


@router.post("/leases/{lease_id}/renew")
@router.post("/leases/{lease_id}/heartbeat")
async def renew(lease_id: LeaseId, body: Renew, call: Caller) -> Response:
    """Keep a lease alive for its ttl. 410 says that it has ended, and why: stop what it was for."""
    pool_id = await writable(call, lease_id)
    fact = LeaseRenewRequested(
        lease_pool_id=pool_id, lease_id=lease_id, fencing_token=body.fencing_token, progress=body.progress
    )
    answer = await of_lease(call, fact)
    assert answer.lease is not None
    return answered(shown.lease(answer.lease, answer.now))


@router.post("/leases/{lease_id}/confirm")
async def confirm(lease_id: LeaseId, body: Prolong, call: Caller) -> Response:
    """Commit to using a lease: one acquired with `confirm: false`, or granted while nobody waited for the answer."""
    pool_id = await writable(call, lease_id)
    fact = LeaseConfirmRequested(lease_pool_id=pool_id, lease_id=lease_id, fencing_token=body.fencing_token)
    answer = await of_lease(call, fact)
    assert answer.lease is not None
    return answered(shown.lease(answer.lease, answer.now))


@router.post("/leases/{lease_id}/release")
async def release(lease_id: LeaseId, body: Release, call: Caller) -> Response:
    """Give a lease back, or some of its units. Said again it changes nothing, but for `units`: say what is `remaining`
    where an answer may be lost."""
    pool_id = await writable(call, lease_id)
    fact = LeaseReleaseRequested(
        lease_pool_id=pool_id,
        lease_id=lease_id,
        fencing_token=body.fencing_token,
        units=body.units or UNITS_MAX,
        result=body.result,
        throttled=body.throttled,
        retry_after_seconds=body.retry_after_seconds,
        quota_remaining=body.quota_remaining,
    )
    answer = await of_lease(call, fact, remaining=body.remaining)
    assert answer.lease is not None
    units = answer.lease.units if answer.lease.live else 0
    return answered({"lease_id": lease_id, "released_units": answer.released_units, "remaining": units})


async def writable(call: Call, lease_id: str) -> str:
    """The lease pool of a lease that the caller may write. Whoever may write none learns nothing of any."""
    pool_id = await call.desk.pool_of(call.database, lease_id)
    if pool_id is None:
        if not any(scope.startswith(("leases:write:", "admin")) or scope.endswith("*") for scope in call.token.scopes):
            permit(call.token, "leases:write:*")
        raise unknown_lease(lease_id)
    call.may_write(pool_id)
    return pool_id


async def of_lease(call: Call, fact: OfLease, *, remaining: int | None = None) -> Answer:
    return await settle(call, Errand(fact=fact, caller=call.name, admin=call.admin, remaining=remaining))


@router.get("/leases")
async def list_leases(
    request: Request,
    credentials: Credentials,
    db_pool: Database,
    pool: str | None = None,
    tenant: str | None = None,
    mine: bool = False,
    limit: Items = 1_000,
) -> Response:
    """Leases that count against the limit of a pool, or of all pools, of a tenant or of all; oldest first. With `mine`
    only those that the caller's own token acquired, which needs that token."""
    owner = identify(request, credentials).name if mine else None
    if pool is not None and await answers.pool(db_pool, pool) is None:
        raise unknown_lease_pool(pool)
    rows, now = await answers.held(db_pool, pool, tenant, owner, limit=limit), await pools.clock(db_pool)
    return answered({"items": [shown.lease(row, now) for row in rows]})


@router.get("/leases/{lease_id}")
async def get_lease(db_pool: Database, lease_id: LeaseId) -> Response:
    """One lease, also after its end."""
    found = await leases.named(db_pool, [lease_id])
    if not found:
        raise unknown_lease(lease_id)
    return answered(shown.lease(found[0], await pools.clock(db_pool)))


@router.get("/leases/{lease_id}/history")
async def get_lease_history(db_pool: Database, lease_id: LeaseId) -> Response:
    """All that was decided about one lease, in order, with reasons."""
    if not await leases.named(db_pool, [lease_id]):
        raise unknown_lease(lease_id)
    return answered({"items": [shown.entry(row) for row in await history.of_lease(db_pool, lease_id)]})


@router.get("/lease-pools/{lease_pool_id}/requests")
async def list_requests(
    db_pool: Database, lease_pool_id: LeasePoolId, tenant: str | None = None, limit: Items = 1_000
) -> Response:
    """Requests that wait: higher priorities first, then the longest wait."""
    if await answers.pool(db_pool, lease_pool_id) is None:
        raise unknown_lease_pool(lease_pool_id)
    rows = await answers.waiting(db_pool, lease_pool_id, tenant, limit=limit)
    return answered({"items": [shown.request(row) for row in rows]})


@router.get("/lease-pools/{lease_pool_id}/requests/{request_id}")
async def get_request(db_pool: Database, lease_pool_id: LeasePoolId, request_id: RequestId) -> Response:
    """One request: where it stands while it waits, then what it was granted."""
    standing = await answers.standing(db_pool, lease_pool_id, request_id)
    if standing is None:
        if await answers.pool(db_pool, lease_pool_id) is None:
            raise unknown_lease_pool(lease_pool_id)
        raise unknown_request(lease_pool_id, request_id)
    granted = await answers.of_requests(db_pool, lease_pool_id, [request_id])
    body: dict[str, Any] = shown.request(standing.request)
    if standing.request.waiting_units:
        told = shown.told(standing)
        body |= {
            "position": told.position,
            "eta_seconds": told.eta_seconds,
            "retry_after_seconds": told.retry_after_seconds,
            "reason": told.reason,
        }
    elif not granted:
        body["state"] = "cancelled"
    return answered(body | {"leases": [shown.lease(row, standing.now) for row in granted]})


@router.delete("/lease-pools/{lease_pool_id}/requests/{request_id}")
async def cancel(lease_pool_id: LeasePoolId, request_id: RequestId, call: Caller) -> Response:
    """Stop waiting; what was granted meanwhile is given back. Said again it changes nothing."""
    call.may_write(lease_pool_id)
    fact = LeaseCancelRequested(lease_pool_id=lease_pool_id, request_id=request_id, units=UNITS_MAX, reason="cancelled")
    answer = await settle(call, Errand(fact=fact, caller=call.name, admin=call.admin))
    return answered(
        {"request_id": request_id, "cancelled_units": answer.cancelled_units, "released_units": answer.released_units}
    )
