"""Gangs over HTTP: leases of several pools, all in one transaction or none. Rare beside single leases, so each is a
transaction of its own rather than a part of a desk's batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from slipway_common.events.lease import LeaseRequested
from slipway_common.postgres import Connection
from slipway_common.problem import Problem
from slipway_common.telemetry import current_trace
from slipway_lease_broker import admission
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.facts import Ledger
from slipway_lease_broker.domain.ledger import Gang as Row
from slipway_lease_broker.domain.ledger import Lease, LeasePool
from slipway_lease_broker.http import shown
from slipway_lease_broker.http.bodies import Gang
from slipway_lease_broker.http.callers import Call, Caller
from slipway_lease_broker.http.errands import (
    Answer,
    Errand,
    confirms,
    of_request,
    refusal,
    unknown_lease_pool,
    wrong_owner,
)
from slipway_lease_broker.http.leases import left
from slipway_lease_broker.http.shown import answered
from slipway_lease_broker.store import answers, gangs, pools

router = APIRouter()


@router.post("/lease-gangs", responses={202: {"description": "It waits in the queues of its pools."}})
async def acquire_gang(request: Request, body: Gang, call: Caller) -> Response:
    """A lease of every member, or of none and a place in their queues. The same request id again is the same gang."""
    names = [member.pool for member in body.members]
    if len(set(names)) < len(names):
        raise Problem(422, "duplicate-pool", "A lease pool is named twice", "ask for the sum of its units once")
    for name in names:
        call.may_write(name)
    answer, leases = await asked(call, body)
    if not leases and body.wait_seconds > 0:
        call.desk.stays(answer)
        if await call.desk.stay(answer, body.wait_seconds, left(request)):
            answer, leases = await asked(call, body)
    if leases:
        return answered({"request_id": body.request_id, "leases": [shown.lease(row, answer.now) for row in leases]})
    return await queued(call, body)


async def asked(call: Call, body: Gang) -> tuple[Answer, Sequence[Lease]]:
    """Its leases, confirmed as they are told, or none; and its first member for whoever stays. One transaction."""
    async with call.database.acquire() as db:
        async with db.transaction():
            locked = await pools.lock(db, {member.pool for member in body.members})
            now = await pools.clock(db)
            gang = Row(id=body.request_id, owner=call.name, size=len(body.members), asked_at=now, last_asked_at=now)
            gang = await gangs.add(db, gang)
            ledger = await load(db, locked, body, call)
            if gang.owner != call.name and not call.admin:
                raise wrong_owner(f"gang {body.request_id}")
            granted = granted_to(ledger.leases.values(), body)
            decisions: list[Decision] = []
            if not granted:
                for fact in wanted(body, call):
                    ledger.record(
                        fact, now, current_trace(), owner=call.name, admin=call.admin, gang_id=body.request_id
                    )
                decisions = await call.desk.ask_gang(db, gang, ledger, now)
                granted = granted_to([lease for decision in decisions for lease in decision.granted], body)
            after = {pool.id: pool for pool in locked} | {decision.pool.id: decision.pool for decision in decisions}
            confirmed = Ledger(after.values(), granted, [])
            for lease in granted:
                if lease.state == "reserved":
                    confirmed.record(confirms(lease), now, owner=lease.owner)
            await admission.save(db, confirmed, now)
            await pools.mark(db, confirmed.pools_to_save(), confirmed.dirty, confirmed.deadlines)
        for decision in decisions:
            call.desk.decided(decision)
        call.runtime.ring()
    first = body.members[0].pool
    answer = Answer(pool=after[first], now=now, request=ledger.requests[first, body.request_id])
    return answer, list(confirmed.leases.values())


async def load(db: Connection, locked: Sequence[LeasePool], body: Gang, call: Call) -> Ledger:
    """What is known of the gang. Raises the Problem that one of its members is refused with."""
    known = {pool.id for pool in locked}
    facts = wanted(body, call)
    for fact in facts:
        if fact.lease_pool_id not in known:
            raise unknown_lease_pool(fact.lease_pool_id)
    ledger = await admission.load(db, locked, facts)
    for fact in facts:
        for lease in await answers.of_requests(db, fact.lease_pool_id, [fact.request_id]):
            ledger.leases[lease.lease_pool_id, lease.id] = lease
        asked = ledger.requests.get((fact.lease_pool_id, fact.request_id))
        if asked is not None and asked.gang_id != body.request_id:
            raise Problem(
                409,
                "request-conflict",
                "The request id was used for something else",
                f"{body.request_id} asked {fact.lease_pool_id} for a lease alone; a gang needs a new id",
            )
        if refused := refusal(Errand(fact=fact, caller=call.name, admin=call.admin), of_pool(ledger, fact)):
            raise refused
    members = await gangs.pools_of(db, body.request_id)
    if members and set(members) != known:
        raise Problem(
            409,
            "request-conflict",
            "The request id was used for something else",
            f"{body.request_id} was a gang of other lease pools; a new gang needs a new id",
        )
    return ledger


def of_pool(ledger: Ledger, fact: LeaseRequested) -> Ledger:
    """Members have one request id in all pools: each is judged by what its own pool knows."""
    pool_id = fact.lease_pool_id
    return Ledger(
        [ledger.pools[pool_id]],
        [lease for lease in ledger.leases.values() if lease.lease_pool_id == pool_id],
        [request for request in ledger.requests.values() if request.lease_pool_id == pool_id],
    )


def wanted(body: Gang, call: Call) -> list[LeaseRequested]:
    return [
        LeaseRequested(
            lease_pool_id=member.pool,
            request_id=body.request_id,
            units=member.units,
            tenant=body.tenant or call.name,
            operation=body.operation,
            whole=True,
            hold_seconds=member.hold_seconds,
        )
        for member in body.members
    ]


def granted_to(leases: Any, body: Gang) -> list[Lease]:
    """The lease of each member in the order they were named; none unless all have one."""
    of_member: Mapping[str, list[Lease]] = {member.pool: [] for member in body.members}
    for lease in leases:
        of_member[lease.lease_pool_id].append(lease)
    found = [of_request(of_member[member.pool], body.request_id) for member in body.members]
    return [lease for lease in found if lease is not None] if None not in found else []


async def queued(call: Call, body: Gang) -> Response:
    """Where it stands in the pool that it will wait for longest."""
    told = []
    for member in body.members:
        standing = await answers.standing(call.database, member.pool, body.request_id)
        assert standing is not None
        told.append((member.pool, shown.told(standing)))
    pool, last = max(told, key=lambda one: (one[1].eta_seconds is None, one[1].eta_seconds or 0.0))
    last = msgspec.structs.replace(last, reason=f"{pool}: {last.reason}")
    return shown.queued(body.request_id, last)
