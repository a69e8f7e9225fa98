"""Gangs: requests of several lease pools that start together or not at all. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from slipway_api.events.lease import LeaseCancelRequested
from slipway_lease_broker.domain.decide import Decision, Ids, decide
from slipway_lease_broker.domain.ledger import LeasePool, Request, Tenant
from slipway_lease_broker.domain.limits import in_force
from slipway_lease_broker.domain.rules import never_starts
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.domain.terms import BrokerTerms


def find_blocked_gangs(members: Iterable[Request], pools: Mapping[str, LeasePool]) -> dict[str, str]:
    """Gangs that cannot start, with the reason, from their members and the pools of these. A gang that only waits for
    time or for released units is not blocked; nor is one with a cancelled member, which is given up at its turn."""
    blocked_gangs: dict[str, str] = {}
    for member in members:
        if member.gang_id is None or not member.waiting_units:
            continue
        pool = pools[member.lease_pool_id]
        never = never_starts(pool, in_force(pool), member)
        if never is not None:
            blocked_gangs[member.gang_id] = f"its gang cannot start in {pool.id}: {never.reason}"
        elif member.lapsed:
            blocked_gangs[member.gang_id] = f"the request of its gang in {pool.id} has lapsed"
    return blocked_gangs


def start_together(
    members: Sequence[Request],
    pools: Mapping[str, LeasePool],
    tenants: Iterable[Tenant],
    now: datetime,
    *,
    new_id: Ids,
    terms: BrokerTerms,
) -> list[Decision]:
    """Decisions that start each member in its pool, also ahead of other requests; empty unless all of them start."""
    known = list(tenants)
    decisions = []
    for member in members:
        pool = pools[member.lease_pool_id]
        situation = Situation(
            waiters=[member],
            per_queue=2,
            tenants=[tenant for tenant in known if tenant.lease_pool_id == pool.id],
            for_gang=True,
            unannounced=[member] if member.queued_at is None else [],
            more=True,
        )
        decision = decide(pool, situation, now, new_id=new_id, terms=terms)
        if member.lapsed or not decision.granted:
            return []
        decisions.append(decision)
    return decisions


def is_given_up(members: Iterable[Request]) -> bool:
    """True if one of the requests of a gang that has not started was cancelled: the others can never start."""
    return any(member.waiting_units == 0 for member in members)


def cancellation(member: Request) -> LeaseCancelRequested:
    """Command that cancels a remaining request of a gang that is given up."""
    return LeaseCancelRequested(
        lease_pool_id=member.lease_pool_id,
        request_id=member.id,
        units=member.waiting_units,
        reason="another request of its gang was cancelled",
    )
