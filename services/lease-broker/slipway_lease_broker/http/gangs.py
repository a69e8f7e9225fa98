"""HTTP route of gangs: leases of several pools, all granted in one transaction or none. Gangs are rare compared with
single leases, so each has a transaction of its own instead of the group commit."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import Request

from slipway_api.events.lease import LeaseRequested
from slipway_api.http.lease_broker import AcquireGang, GrantedGang, QueuedRequest
from slipway_common.observability.telemetry import current_trace
from slipway_common.web.answers import Accepted, Answer
from slipway_common.web.bodies import Body
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_lease_broker.admission import AdmissionTx
from slipway_lease_broker.domain import exchange
from slipway_lease_broker.domain.commands import apply_permitted
from slipway_lease_broker.domain.exchange import Submission
from slipway_lease_broker.domain.ledger import Gang, Lease, Ledger
from slipway_lease_broker.domain.ownership import may_act
from slipway_lease_broker.domain.queue_status import queue_status
from slipway_lease_broker.domain.refusals import unknown_lease_pool, wrong_owner
from slipway_lease_broker.domain.submissions import of_request, refusal
from slipway_lease_broker.grant_waiters import Woken
from slipway_lease_broker.http import shown
from slipway_lease_broker.http.call import Call
from slipway_lease_broker.http.callers import Caller
from slipway_lease_broker.http.leases import disconnected, shown_leases, wait_for_grant
from slipway_lease_broker.http.refusals import problem
from slipway_lease_broker.store import answers, gangs

router = Router()


@router.post("/lease-gangs", responses={202: {"description": "The gang waits in the queues of its pools."}})
async def acquire_gang(
    request: Request, body: Body[AcquireGang], call: Caller
) -> Answer[GrantedGang] | Accepted[QueuedRequest]:
    """Acquire a lease of every pool, or a place in all queues. The same request id is the same gang."""
    names = [member.pool for member in body.members]
    if len(set(names)) < len(names):
        raise Problem(422, "duplicate-pool", "Lease pool named twice", "name each pool once, with the sum of its units")
    for name in names:
        call.may_write(name)
    answer, leases = await submit(call, body)
    if not leases and body.wait_seconds > 0 and call.admissions.waiters.has_room(call.name):
        woken: Woken = asyncio.get_running_loop().create_future()
        call.admissions.waiters.register(answer, woken)
        if await wait_for_grant(woken, body.wait_seconds, disconnected(request)):
            answer, leases = await submit(call, body)
    if leases:
        return Answer(GrantedGang(request_id=body.request_id, leases=await shown_leases(call.database, leases)))
    return await queued(call, body)


async def submit(call: Call, body: AcquireGang) -> tuple[exchange.Answer, Sequence[Lease]]:
    """Apply a gang request in one transaction. Returns the answer for its first pool, to wait with, and its leases,
    confirmed by this answer; none while the gang waits."""
    async with call.admissions.alone(call.database, call.name) as admission:
        await admission.lock({member.pool for member in body.members})
        now = admission.now
        gang = Gang(
            id=body.request_id, owner=call.name, size=len(body.members), requested_at=now, last_requested_at=now
        )
        gang = await gangs.add(admission.tx, gang)
        ledger = await load(admission, body, call)
        if not may_act(gang.owner, call.name, admin=call.admin):
            raise problem(wrong_owner(f"gang {body.request_id}"))
        leases = granted_to(ledger.leases.values(), body)
        if not leases:
            sender = call.sender()
            for command in wanted(body, call):
                apply_permitted(ledger, command, now, sender, traceparent=current_trace(), gang_id=gang.id)
            await admission.decide_gang(gang.id)
            leases = granted_to([lease for decision in admission.decisions for lease in decision.granted], body)
        leases = await admission.confirm(leases)
    first = body.members[0].pool
    answer = exchange.Answer(
        pool=admission.pools[first], now=admission.now, request=ledger.requests[first, body.request_id]
    )
    return answer, leases


async def load(admission: AdmissionTx, body: AcquireGang, call: Call) -> Ledger:
    """Load the ledger of a gang. Raises the Problem that one of its members is refused with."""
    known = set(admission.pools)
    commands = wanted(body, call)
    for command in commands:
        if command.lease_pool_id not in known:
            raise problem(unknown_lease_pool(command.lease_pool_id))
    submissions = [Submission(command=command, sender=call.sender()) for command in commands]
    ledger = await admission.load(submissions, granted=True)
    for command in commands:
        known_request = ledger.requests.get((command.lease_pool_id, command.request_id))
        if known_request is not None and known_request.gang_id != body.request_id:
            raise Problem(
                409,
                "request-conflict",
                "Request id already used",
                f"{body.request_id} is a request for a single lease of {command.lease_pool_id}; a gang needs a new id",
            )
        submission = Submission(command=command, sender=call.sender())
        if (found := refusal(submission, of_pool(ledger, command), admission.now)) is not None:
            raise problem(found)
    members = await gangs.pools_of(admission.tx, body.request_id)
    if members and set(members) != known:
        raise Problem(
            409,
            "request-conflict",
            "Request id already used",
            f"{body.request_id} is a gang of other lease pools; use a new id for a new gang",
        )
    return ledger


def of_pool(ledger: Ledger, command: LeaseRequested) -> Ledger:
    """The rows of one pool. Members have the same request id in all pools, so each is checked against its own pool."""
    pool_id = command.lease_pool_id
    rows = Ledger(
        [ledger.pools[pool_id]],
        [lease for lease in ledger.leases.values() if lease.lease_pool_id == pool_id],
        [request for request in ledger.requests.values() if request.lease_pool_id == pool_id],
        ledger.tenants.values(),
    )
    rows.tenants_by = ledger.tenants_by
    return rows


def wanted(body: AcquireGang, call: Call) -> list[LeaseRequested]:
    return [
        LeaseRequested(
            lease_pool_id=member.pool,
            request_id=body.request_id,
            units=member.units,
            tenant=call.tenant(body.tenant),
            operation=body.operation,
            whole=True,
            hold_seconds=member.hold_seconds,
        )
        for member in body.members
    ]


def granted_to(leases: Any, body: AcquireGang) -> list[Lease]:
    """The lease of each member, in the order of the members; none unless all have one."""
    of_member: Mapping[str, list[Lease]] = {member.pool: [] for member in body.members}
    for lease in leases:
        of_member[lease.lease_pool_id].append(lease)
    found = [of_request(of_member[member.pool], body.request_id) for member in body.members]
    return [lease for lease in found if lease is not None] if None not in found else []


async def queued(call: Call, body: AcquireGang) -> Accepted[QueuedRequest]:
    """The answer of a waiting gang: its position in the pool with the longest expected wait."""
    found = []
    for member in body.members:
        position = await answers.queue_position(call.database, member.pool, body.request_id)
        assert position is not None
        found.append((member.pool, queue_status(position)))
    pool, last = max(found, key=lambda one: (one[1].eta_seconds is None, one[1].eta_seconds or 0.0))
    last = msgspec.structs.replace(last, reason=f"{pool}: {last.reason}")
    return shown.queued(body.request_id, last)
