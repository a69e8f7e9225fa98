"""Gangs: their requests start together in all pools or in none."""

from datetime import timedelta
from itertools import count
from typing import Any

import msgspec

from slipway_api.events.lease import LeaseCancelRequested
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.gangs import cancellation, is_given_up, start_together
from slipway_lease_broker.domain.ledger import Request, Tenant
from slipway_lease_broker.domain.terms import Policy
from tests.support.lease_broker import TERMS
from tests.support.lease_rows import NOW, POOL, REQUEST


def member(pool: str, **fields: Any) -> Request:
    gang: dict[str, Any] = {"id": f"of-{pool}", "lease_pool_id": pool, "gang_id": "g", "waiting_units": 2}
    return msgspec.structs.replace(REQUEST, **(gang | fields))


def started(*members: Request, tenants: list[Tenant] | None = None, **second: Any) -> list[Decision]:
    """Decisions in a pool `p`, and in a pool `q` with these fields."""
    quick = msgspec.structs.replace(POOL, policy=Policy(pacing="off"), waiting_units=2, waiting_requests=1)
    pools = {"p": quick, "q": msgspec.structs.replace(quick, id="q", last_token=40, **second)}
    new_id = map("lease-{}".format, count(1)).__next__
    return start_together(members, pools, tenants or [], NOW, new_id=new_id, terms=TERMS)


P, Q = member("p"), member("q")


def test_all_members_start_in_one_go() -> None:
    """Each with all its units, and each is announced as if it had waited alone; more may be due in its pool."""
    first, second = started(P, Q)
    for decision, pool, token, lease_id in ((first, "p", 1, "lease-1"), (second, "q", 41, "lease-2")):
        (lease,) = decision.granted
        assert (lease.id, lease.lease_pool_id, lease.fencing_token, lease.units) == (lease_id, pool, token, 2)
        assert (lease.gang_id, lease.granted_at, lease.expires_at) == ("g", NOW, NOW + timedelta(seconds=180))
        assert (decision.pool.waiting_units, decision.pool.waiting_requests) == (0, 0)
        assert [request.waiting_units for request in decision.requests] == [0]
        assert decision.again


def test_one_that_cannot_start_keeps_all_of_them() -> None:
    assert started(P, Q, held={"install": 3}) == []
    assert started(P, Q, drained_reason="moving") == []
    assert started(P, member("q", lapsed=True)) == []
    assert started(member("p", lapsed=True), Q) == []


def test_a_member_starts_ahead_of_others_but_not_before_its_tenant_may() -> None:
    """The state of a tenant in one pool says nothing about another pool."""
    until = NOW + timedelta(seconds=60)
    waits = Tenant(lease_pool_id="q", tenant="t", failures=1, backoff_until=until)
    assert started(P, Q, tenants=[waits]) == []
    assert len(started(P, Q, tenants=[msgspec.structs.replace(waits, lease_pool_id="r")])) == 2


def test_a_member_is_announced_as_queued_once() -> None:
    """One that was announced before is awaited."""
    first, second = started(P, member("q", queued_at=NOW))
    assert (first.awaited, second.awaited) == (frozenset(), frozenset({"of-q"}))
    assert [len(decision.events) for decision in (first, second)] == [1, 1]


def test_a_gang_with_a_cancelled_member_is_given_up() -> None:
    assert not is_given_up([P, Q])
    assert is_given_up([P, member("q", waiting_units=0)])
    assert cancellation(P) == LeaseCancelRequested(
        lease_pool_id="p", request_id="of-p", units=2, reason="another request of its gang was cancelled"
    )
