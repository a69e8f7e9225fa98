"""HTTP routes of leases and lease requests. Every write goes through the group commit (group_commit.py)."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import Depends, Request
from msgspec.structs import asdict

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmRequested,
    LeaseGroup,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    ReplacedLease,
)
from slipway_api.http import lease_broker as api
from slipway_api.http.lease_broker import (
    UNITS_MAX,
    AcquireLease,
    BindLease,
    BoundToken,
    CancelledRequest,
    ConfirmLease,
    LeaseDecision,
    LeaseRequest,
    LeaseRequestStatus,
    QueuedRequest,
    ReleasedLease,
    ReleaseLease,
    RenewLease,
)
from slipway_api.http.pages import Items, Page
from slipway_common.base.ids import hash_secret, new_lease_token
from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import current_trace, logger
from slipway_common.web import pages
from slipway_common.web.answers import Accepted, Answer
from slipway_common.web.bodies import Body, Report
from slipway_common.web.router import Router
from slipway_common.web.runtime import database
from slipway_common.web.text import Name
from slipway_lease_broker.domain import exchange
from slipway_lease_broker.domain.exchange import Submission
from slipway_lease_broker.domain.holders import active, is_holder, token_holder, with_token
from slipway_lease_broker.domain.ledger import Lease
from slipway_lease_broker.domain.ownership import denied
from slipway_lease_broker.domain.queue_status import queue_status
from slipway_lease_broker.domain.refusals import (
    Refusal,
    end_of,
    holder_unknown,
    lease_ended,
    of_denial,
    unknown_lease,
    unknown_lease_pool,
    unknown_request,
)
from slipway_lease_broker.grant_waiters import Woken
from slipway_lease_broker.http import shown
from slipway_lease_broker.http.call import Call
from slipway_lease_broker.http.callers import (
    READ_OR_HOLD,
    Caller,
    Holder,
    HolderOrCaller,
    HolderOrCommand,
    Reader,
    other_lease,
)
from slipway_lease_broker.http.refusals import problem, refused
from slipway_lease_broker.store import answers, history, leases, pools

router = Router()
DatabaseDep = Annotated[Database, Depends(database)]
LOG = logger(__name__)
UNNAMED: Final[set[str]] = set()  # callers whose processes give no names
UNNAMED_MAX: Final = 1_000
HeldLeaseCommand = LeaseConfirmRequested | LeaseRenewRequested


@router.post(
    "/lease-pools/{lease_pool_id:id}/leases", responses={202: {"description": "The request waits in the queue."}}
)
async def acquire(
    request: Request, lease_pool_id: Name, body: Body[AcquireLease], call: HolderOrCaller
) -> Answer[api.Lease] | Accepted[QueuedRequest]:
    """Acquire a lease, or get a place in the queue after `wait_seconds`. A request id never gets a second lease: repeat
    the request with the same id after a lost answer, and to go on waiting."""
    if (bound := call.bound) is not None and (body.request_id != bound.lease.request_id or body.replaces is not None):
        raise other_lease()
    if body.holder is None:
        notice_unnamed(call.name)
    waits = body.wait_seconds > 0 and call.admissions.waiters.has_room(call.name)
    submission = Submission(
        command=wanted(lease_pool_id, body, call.tenant(body.tenant)),
        sender=call.sender(body.holder or "", join=body.join),
        confirm=body.confirm,
        woken=asyncio.get_running_loop().create_future() if waits else None,
        traceparent=current_trace(),
    )
    answer = await submit(call, submission)
    woken = submission.woken
    if answer.waits and woken and await wait_for_grant(woken, body.wait_seconds, disconnected(request)):
        lease = woken.result()
        is_mine = lease is not None and is_holder(lease, submission.sender.holder)
        answer = granted(answer, lease) if lease is not None and is_mine else await submit_again(call, submission)
    if answer.lease is None:
        position = await answers.queue_position(call.database, lease_pool_id, body.request_id)
        assert position is not None
        if position.request.waiting_units:
            return shown.queued(body.request_id, queue_status(position))
        answer = await submit_again(call, submission)  # granted in the meantime
    assert answer.lease is not None
    call.known_leases.remember(answer.lease.id, lease_pool_id)
    return Answer(shown.lease(answer.lease, answer.now, answer.pool.ttl_seconds))


def notice_unnamed(caller: str) -> None:
    """Log once for each caller that its processes give no names, so that two of them may use one request id."""
    if caller not in UNNAMED and len(UNNAMED) < UNNAMED_MAX:
        UNNAMED.add(caller)
        LOG.info("requests without holder: two processes with one request id share a lease unnoticed", caller=caller)


async def submit(call: Call, submission: Submission) -> exchange.Answer:
    """Submit a command to the group commit. Raises the Problem of a refusal."""
    outcome = await call.group_commit.submit(call.database, submission)
    if isinstance(outcome, Refusal):
        raise refused(outcome)
    return outcome


async def submit_again(call: Call, submission: Submission) -> exchange.Answer:
    """Submit a request again that has probably been granted in the meantime, without waiting."""
    return await submit(call, msgspec.structs.replace(submission, woken=None))


def granted(answer: exchange.Answer, lease: Lease) -> exchange.Answer:
    """Answer to a waiting caller that has just been granted `lease`."""
    return msgspec.structs.replace(answer, lease=lease, now=lease.granted_at)


async def wait_for_grant(woken: Woken, seconds: float, disconnected: Awaitable[object]) -> bool:
    """Wait until the request may have been granted; False after `seconds`, or once the caller `disconnected`."""
    gone: asyncio.Future[Any] = asyncio.ensure_future(disconnected)
    try:
        done, _ = await asyncio.wait({woken, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return woken in done and gone not in done
    finally:
        gone.cancel()
        woken.cancel()


async def disconnected(request: Request) -> None:
    """Return when the caller has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def wanted(lease_pool_id: str, body: AcquireLease, tenant: str) -> LeaseRequested:
    group, replaces = body.group, body.replaces
    return LeaseRequested(
        lease_pool_id=lease_pool_id,
        request_id=body.request_id,
        units=body.units,
        tenant=tenant,
        operation=body.operation,
        priority=body.priority,
        whole=True,
        hold_seconds=body.hold_seconds,
        group=LeaseGroup(**asdict(group)) if group is not None else None,
        replaces=ReplacedLease(**asdict(replaces)) if replaces is not None else None,
    )


@router.post("/leases/{lease_id:id}/renew")
@router.post("/leases/{lease_id:id}/heartbeat")
async def renew(lease_id: Name, body: Report[RenewLease], call: HolderOrCommand) -> Answer[api.Lease]:
    """Renew a lease for its ttl. 410: the lease has ended, for the given reason; stop the work that it covers."""
    pool_id = await writable(call, lease_id)
    command = LeaseRenewRequested(
        lease_pool_id=pool_id, lease_id=lease_id, fencing_token=body.fencing_token, progress=body.progress
    )
    answer = await of_lease(call, command)
    assert answer.lease is not None
    return Answer(shown.lease(answer.lease, answer.now, answer.pool.ttl_seconds))


@router.post("/leases/{lease_id:id}/confirm")
async def confirm(lease_id: Name, body: Report[ConfirmLease], call: Holder) -> Answer[api.Lease]:
    """Confirm the use of a lease that was acquired with `confirm: false`, or granted while no caller waited."""
    pool_id = await writable(call, lease_id)
    command = LeaseConfirmRequested(lease_pool_id=pool_id, lease_id=lease_id, fencing_token=body.fencing_token)
    answer = await of_lease(call, command)
    assert answer.lease is not None
    return Answer(shown.lease(answer.lease, answer.now, answer.pool.ttl_seconds))


@router.post("/leases/{lease_id:id}/release")
async def release(lease_id: Name, body: Report[ReleaseLease], call: HolderOrCommand) -> Answer[ReleasedLease]:
    """Release a lease, or some of its units. A repeated release changes nothing, except with `units`: use `remaining`
    where an answer may be lost."""
    pool_id = await writable(call, lease_id)
    command = LeaseReleaseRequested(
        lease_pool_id=pool_id,
        lease_id=lease_id,
        fencing_token=body.fencing_token,
        units=body.units or UNITS_MAX,
        result=body.result,
        throttled=body.throttled,
        retry_after_seconds=body.retry_after_seconds,
        quota_remaining=body.quota_remaining,
    )
    sender = call.sender(body.holder or "", adapter=call.is_adapter(pool_id))
    answer = await submit(call, Submission(command=command, sender=sender, remaining=body.remaining))
    assert answer.lease is not None
    units = answer.lease.units if answer.lease.live else 0
    return Answer(ReleasedLease(lease_id=lease_id, released_units=answer.released_units, remaining=units))


@router.post("/leases/{lease_id:id}/token")
async def create_token(lease_id: Name, body: Body[BindLease], call: Caller) -> Answer[BoundToken]:
    """Create a token for the command that runs under a live lease: it renews and releases this lease, repeats its
    request, and ends with the lease. Another call for the same holder replaces it. It is shown only here."""
    pool_id = await writable(call, lease_id)
    token = new_lease_token(lease_id)
    async with call.admissions.alone(call.database, call.name) as admission:
        await admission.lock([pool_id])
        found = await leases.named(admission.tx, [lease_id])
        lease = found[0] if found else None
        denial = denied(lease, body.fencing_token, call.name, admin=call.admin)
        if lease is None or denial is not None:
            raise refused(of_denial(denial, lease_id, body.fencing_token) or unknown_lease(lease_id))
        if not lease.live:
            raise problem(lease_ended(f"lease {lease.id}", end_of(lease)))
        if (name := token_holder(lease, body.holder)) is None:
            raise problem(holder_unknown(lease, active(lease)))
        await leases.save(admission.tx, [with_token(lease, name, hash_secret(token))])
    return Answer(BoundToken(token=token))


async def writable(call: Call, lease_id: str) -> str:
    """The lease pool of a lease that the caller may write."""
    pool_id = await call.known_leases.pool_of(call.database, lease_id)
    if pool_id is None:
        raise problem(unknown_lease(lease_id))
    call.may_write(pool_id)
    return pool_id


async def of_lease(call: Call, command: HeldLeaseCommand) -> exchange.Answer:
    return await submit(call, Submission(command=command, sender=call.sender()))


@router.get("/leases")
async def list_leases(
    reader: Reader,
    database: DatabaseDep,
    pool: Name | None = None,
    tenant: Name | None = None,
    mine: bool = False,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
) -> Answer[Page[api.Lease]]:
    """List leases that count against a limit, of all pools or one, and of all tenants or one: by pool, oldest first.
    With `mine` only those acquired with the caller's token; those of others need the scope read, or the one to hold
    leases of the pool."""
    if not mine:
        reader.permit(lease_pool_id=pool or "*")
    owner = reader.name if mine else None
    if pool is not None and await answers.pool(database, pool) is None:
        raise problem(unknown_lease_pool(pool))
    after = pages.after(cursor, answers.FIRST_HELD)
    rows = await answers.held(database, pool, tenant, owner, after=after, limit=limit + 1)
    listed = await shown_leases(database, rows)
    return pages.page(listed, limit, lambda row: answers.HeldPlace(row.lease_pool_id, row.fencing_token))


@router.get("/leases/{lease_id:id}")
async def get_lease(reader: Reader, database: DatabaseDep, lease_id: Name) -> Answer[api.Lease]:
    """Get a lease, also after its end."""
    (body,) = await shown_leases(database, [await readable(database, lease_id, reader)])
    return Answer(body)


@router.get("/leases/{lease_id:id}/history")
async def get_lease_history(reader: Reader, database: DatabaseDep, lease_id: Name) -> Answer[Items[LeaseDecision]]:
    """List the decisions about a lease with their reasons, oldest first."""
    await readable(database, lease_id, reader)
    return Answer(Items(items=[shown.decision(row) for row in await history.of_lease(database, lease_id)]))


async def shown_leases(database: Database, rows: Sequence[Lease]) -> list[api.Lease]:
    """Bodies of leases of any pools, as of now."""
    now = await pools.clock(database)
    named = await pools.named(database, {row.lease_pool_id for row in rows})
    ttl_seconds = {pool.id: pool.ttl_seconds for pool in named}
    return [shown.lease(row, now, ttl_seconds[row.lease_pool_id]) for row in rows]


async def readable(database: Database, lease_id: str, reader: Reader) -> Lease:
    """A lease that the caller may read."""
    found = await leases.named(database, [lease_id])
    if not found:
        raise problem(unknown_lease(lease_id))
    reader.permit(lease_pool_id=found[0].lease_pool_id)
    return found[0]


@router.get("/lease-pools/{lease_pool_id:id}/requests", dependencies=[READ_OR_HOLD])
async def list_requests(
    database: DatabaseDep,
    lease_pool_id: Name,
    tenant: Name | None = None,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
) -> Answer[Page[LeaseRequest]]:
    """List waiting requests: higher priorities first, then the longest wait."""
    if await answers.pool(database, lease_pool_id) is None:
        raise problem(unknown_lease_pool(lease_pool_id))
    after = pages.after(cursor, answers.FIRST_WAITING)
    rows = await answers.waiting(database, lease_pool_id, tenant, after=after, limit=limit + 1)
    return pages.page(rows, limit, lambda row: answers.WaitingPlace(-row.priority, row.since, row.place), shown.request)


@router.get("/lease-pools/{lease_pool_id:id}/requests/{request_id:id}", dependencies=[READ_OR_HOLD])
async def get_request(database: DatabaseDep, lease_pool_id: Name, request_id: Name) -> Answer[LeaseRequestStatus]:
    """Get a request with its position while it waits, and its leases once granted."""
    position = await answers.queue_position(database, lease_pool_id, request_id)
    if position is None:
        if await answers.pool(database, lease_pool_id) is None:
            raise problem(unknown_lease_pool(lease_pool_id))
        raise problem(unknown_request(lease_pool_id, request_id))
    granted = await answers.of_requests(database, lease_pool_id, [request_id])
    status = queue_status(position) if position.request.waiting_units else None
    leases_ = [shown.lease(row, position.now, position.pool.ttl_seconds) for row in granted]
    return Answer(shown.request_status(position.request, status, leases_))


@router.delete("/lease-pools/{lease_pool_id:id}/requests/{request_id:id}")
async def cancel(
    lease_pool_id: Name, request_id: Name, call: Holder, holder: Name | None = None
) -> Answer[CancelledRequest]:
    """Cancel a request; units granted in the meantime are released. A repeated call changes nothing. With the `holder`
    of the request neither the wait nor the lease of another process ends."""
    command = LeaseCancelRequested(
        lease_pool_id=lease_pool_id, request_id=request_id, units=UNITS_MAX, reason="cancelled"
    )
    answer = await submit(call, Submission(command=command, sender=call.sender(holder or "")))
    return Answer(
        CancelledRequest(
            request_id=request_id, cancelled_units=answer.cancelled_units, released_units=answer.released_units
        )
    )
