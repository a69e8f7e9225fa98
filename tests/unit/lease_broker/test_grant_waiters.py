"""Callers of one process that wait for a grant, without a database."""

import asyncio
from datetime import UTC, datetime

from slipway_lease_broker.domain.decide import decide
from slipway_lease_broker.domain.exchange import Answer
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Request, State
from slipway_lease_broker.domain.receipt import receive
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.grant_waiters import GrantWaiters, Woken
from tests.support.lease_broker import TERMS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
REQUEST = Request(
    id="r",
    lease_pool_id="p",
    tenant="t",
    operation="install",
    requested_units=1,
    waiting_units=1,
    requested_at=NOW,
    last_requested_at=NOW,
    queued_at=NOW,
    since=NOW,
    whole=True,
)
POOL = LeasePool(
    id="p",
    limit_units=1,
    hold_seconds=1200,
    ttl_seconds=300,
    reserve_seconds=180,
    waiting_units=1,
    waiting_requests=1,
)


async def registered(waiters: GrantWaiters) -> Woken:
    """A caller that waits for the request and confirms its grant on receipt."""
    woken: Woken = asyncio.get_running_loop().create_future()
    waiters.register(Answer(pool=POOL, now=NOW, request=REQUEST), woken, confirm=True)
    return woken


def grant(waiters: GrantWaiters) -> Lease:
    """The lease that the request is granted, committed."""
    decision = decide(POOL, Situation(waiters=[REQUEST], per_queue=2), NOW, new_id=lambda: "lease", terms=TERMS)
    decision, _ = receive(decision, [], waiters.confirms, NOW)
    waiters.committed([decision])
    (lease,) = decision.granted
    return lease


async def test_a_grant_to_a_waiting_caller() -> None:
    """Confirmed by its receipt; no other replica has to know."""
    notified: list[str] = []
    waiters = GrantWaiters(notified.append)
    woken = await registered(waiters)
    lease = grant(waiters)
    assert (lease.state, await woken, notified) == (State.CONFIRMED, lease, [])
    await asyncio.sleep(0)
    assert waiters.waiting_callers == 0


async def test_a_grant_in_the_turn_of_a_timeout() -> None:
    """Received by nobody here: it stays reserved, and the other replicas are notified, where a caller may wait."""
    notified: list[str] = []
    waiters = GrantWaiters(notified.append)
    woken = await registered(waiters)
    woken.cancel()  # it leaves in the next turn of the event loop
    assert grant(waiters).state is State.RESERVED
    assert notified == ["p"]
    await asyncio.sleep(0)
    assert waiters.waiting_callers == 0
