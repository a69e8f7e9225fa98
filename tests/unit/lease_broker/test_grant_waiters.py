"""Callers of one process that wait for a grant, without a database."""

import asyncio

import msgspec

from slipway_lease_broker.domain.decide import decide
from slipway_lease_broker.domain.exchange import Answer
from slipway_lease_broker.domain.ledger import Lease, State
from slipway_lease_broker.domain.receipt import receivers
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.grant_waiters import GrantWaiters, Woken
from tests.support import lease_rows
from tests.support.lease_broker import TERMS
from tests.support.lease_rows import NOW

REQUEST = msgspec.structs.replace(lease_rows.REQUEST, queued_at=NOW, whole=True)
POOL = msgspec.structs.replace(lease_rows.POOL, limit_units=1, waiting_units=1, waiting_requests=1)


async def registered(waiters: GrantWaiters) -> Woken:
    """A caller that waits for the request and confirms its grant on receipt."""
    woken: Woken = asyncio.get_running_loop().create_future()
    waiters.register(Answer(pool=POOL, now=NOW, request=REQUEST), woken, confirm=True)
    return woken


def grant(waiters: GrantWaiters) -> Lease:
    """The lease that the request is granted, committed."""
    decision = decide(
        POOL,
        Situation(waiters=[REQUEST], per_queue=2),
        NOW,
        new_id=lambda: "lease",
        terms=TERMS,
        is_received=receivers([], "p", waiters.confirms),
    )
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
