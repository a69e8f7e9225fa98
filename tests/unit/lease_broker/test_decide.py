"""Decisions for a lease pool: one case per line, then the texts."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec
import pytest

from slipway_api.events.lease import LeaseExpired, LeaseGranted, LeaseLost, LeaseQueued, LeaseReleased
from slipway_lease_broker.domain.decide import Decision, decide
from slipway_lease_broker.domain.ledger import (
    TRANSITIONS,
    IllegalTransition,
    Lease,
    LeasePool,
    Request,
    State,
    advance,
    counted,
    queued,
)
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.domain.terms import Policy
from tests.support.lease_broker import TERMS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def lease(
    name: str,
    units: int = 1,
    state: State = State.CONFIRMED,
    *,
    expires: float = 300,
    hold: float = 900,
    counted: float | None = None,
) -> Lease:
    """A lease; times are seconds from NOW."""
    return Lease(
        id=name,
        lease_pool_id="sim-a",
        request_id=f"of-{name}",
        fencing_token=7,
        granted_units=units,
        units=units,
        state=state,
        granted_at=at(hold - 1200),
        expires_at=at(expires),
        hold_until=at(hold),
        extended_at=at(hold - 1200),
        counted_until=None if counted is None else at(counted),
    )


def waiter(name: str, units: int, *, since: float = 0, announced: bool = False) -> Request:
    return Request(
        id=name,
        lease_pool_id="sim-a",
        tenant="linux",
        operation="launch",
        requested_units=units,
        waiting_units=units,
        requested_at=at(-since),
        last_requested_at=at(-since),
        since=at(-since),
        queued_at=at(-since) if announced else None,
    )


def decided(leases: Sequence[Lease], waiters: Sequence[Request], limit: int = 5, **terms: Any) -> Decision:
    """The decision; `leases` are all that count, and the decision sees the due ones and the counters of the rest."""
    situation = Situation(
        due=[lease for lease in leases if lease.deadline <= NOW],
        waiters=[msgspec.structs.replace(waiter, place=place) for place, waiter in enumerate(waiters)],
        per_queue=100,
        unannounced=[waiter for waiter in waiters if waiter.queued_at is None],
        next_deadline=min((lease.deadline for lease in leases if lease.deadline > NOW), default=None),
    )
    new_id = map("lease-{}".format, count(1)).__next__
    return decide(pool_of(leases, waiters, limit, **terms), situation, NOW, new_id=new_id, terms=TERMS)


def pool_of(leases: Sequence[Lease], waiters: Sequence[Request], limit: int = 5, **terms: Any) -> LeasePool:
    fields: dict[str, Any] = {
        "hold_seconds": 1200,
        "ttl_seconds": 300,
        "reserve_seconds": 180,
        "policy": Policy(pacing="off"),
    }
    pool = LeasePool(id="sim-a", limit_units=limit, last_token=40, **(fields | terms))
    for held in leases:
        pool = counted(pool, held, 0, held.units)
    for waiting in waiters:
        pool = queued(pool, waiting, 0, waiting.waiting_units)
    return pool


#        held  limit  requested    granted
ADMIT = [
    (0, 5, [3], [3]),
    (0, 5, [7], [5]),  # one part now, the rest waits
    (0, 5, [2, 2, 2], [2, 2, 1]),
    (4, 5, [3, 1], [1]),  # a small request does not pass a large one
    (5, 5, [1], []),
    (6, 5, [1], []),  # the limit was lowered: nothing is revoked, nothing admitted
    (0, 0, [1], []),
    (2, 5, [], []),
]


@pytest.mark.parametrize(("held", "limit", "requested", "granted"), ADMIT)
def test_admission(held: int, limit: int, requested: list[int], granted: list[int]) -> None:
    """First come, first served, in parts, within the limit; fencing tokens increase by one."""
    leases = [lease("held", held)] if held else []
    decision = decided(leases, [waiter(f"r{i}", units) for i, units in enumerate(requested)], limit)
    assert [(new.request_id, new.units) for new in decision.granted] == [(f"r{i}", u) for i, u in enumerate(granted)]
    assert [new.fencing_token for new in decision.granted] == [41 + i for i in range(len(granted))]
    assert decision.pool.last_token == 40 + len(granted)
    assert not decision.ended
    assert decision.pool.held_units == held + sum(granted)
    assert decision.pool.waiting_units == sum(requested) - sum(granted)


@pytest.mark.parametrize(("seconds", "granted"), [(1, 0), (0, 2), (-1, 2), (None, 2)])
def test_an_incomplete_database_grants_nothing(seconds: float | None, granted: int) -> None:
    """Until the holders of leases that it may lack have given them up; then the decision is due again."""
    until = None if seconds is None else at(seconds)
    decision = decided([], [waiter("r", 2)], incomplete_until=until)
    assert sum(lease.units for lease in decision.granted) == granted
    if not granted:
        assert decision.wake_at == until
        assert decision.waiting == {"r": "the database was restored; leases that it lacks have to end first"}


#          lease at NOW                                                    becomes          held after
PASS = [
    (lease("a", 2, State.RESERVED, expires=1), None, 2),
    (lease("a", 2, State.RESERVED, expires=0), State.EXPIRED, 0),  # a deadline is the first instant after
    (lease("a", 2, State.CONFIRMED, expires=0), State.LOST, 2),  # still counted
    (lease("a", 2, State.CONFIRMED, expires=9, hold=0), State.RELEASED, 0),
    (lease("a", 2, State.RESERVED, expires=0, hold=0), State.RELEASED, 0),  # the hold is the agreed end
    (lease("a", 2, State.CONFIRMED, expires=-9, hold=-5), State.LOST, 2),  # not renewed before its hold ended
    (lease("a", 2, State.LOST, expires=-9, counted=1), None, 2),
    (lease("a", 2, State.LOST, expires=-9, counted=0), State.LOST, 0),
]


@pytest.mark.parametrize(("before", "state", "held"), PASS)
def test_deadlines(before: Lease, state: State | None, held: int) -> None:
    """Each deadline has exactly one effect."""
    decision = decided([before], [])
    assert [after.state for after in decision.ended] == ([] if state is None else [state])
    assert decision.pool.held_units == held


def test_freed_units_are_granted_in_the_same_decision() -> None:
    """An expiry frees units for the head of the queue at once, and the events are in order."""
    leases = [lease("a", 2, State.RESERVED, expires=-1), lease("b", 3, State.CONFIRMED, expires=-1)]
    waiters = [waiter("r", 3, since=12), waiter("s", 1)]
    decision = decided(leases, waiters)
    common: dict[str, Any] = {"lease_pool_id": "sim-a"}
    assert decision.events == (
        LeaseExpired(**common, lease_id="a", request_id="of-a", units=2),
        LeaseLost(**common, lease_id="b", request_id="of-b", units=3, counted_until=at(70)),
        LeaseGranted(
            **common,
            lease_id="lease-1",
            request_id="r",
            units=2,
            fencing_token=41,
            expires_at=at(180),
            hold_until=at(1200),
            waited_seconds=12,
        ),
        LeaseQueued(**common, request_id="r", units=1, position=1),
        LeaseQueued(**common, request_id="s", units=1, position=2),
    )
    assert str(decision).splitlines() == [
        "lease a: not confirmed before its reserve deadline: 2 units freed",
        f"lease b: lost, not renewed in time: 3 units counted until {at(70)}",
        "lease lease-1: 2 units granted to request r",
        "2 requests wait for 2 units: 5 of 5 held",
    ]


def test_the_end_of_a_hold_is_published_as_a_release() -> None:
    """The broker releases the units itself when the hold ends."""
    (event,) = decided([lease("a", 2, expires=0, hold=0)], []).events
    assert event == LeaseReleased(
        lease_pool_id="sim-a", lease_id="a", request_id="of-a", units=2, remaining=0, reason="hold"
    )


def test_queued_is_published_once() -> None:
    """After LeaseQueued nothing is published for a request until it is granted units."""
    decision = decided([lease("a", 5)], [waiter("r", 1, announced=True), waiter("s", 2)])
    assert decision.events == (LeaseQueued(lease_pool_id="sim-a", request_id="s", units=2, position=2),)
    assert [request.id for request in decision.requests] == ["s"]


WAKE = [
    ([], [], None),
    ([lease("a", expires=30), lease("b", expires=20, hold=15)], [], 15),
    ([lease("a", expires=-1)], [], 70),  # lost now: the end of its counted time is next
    ([lease("a", expires=500)], [waiter("r", 1)], 180),  # the new lease's reserve deadline
]


@pytest.mark.parametrize(("leases", "waiters", "seconds"), WAKE)
def test_next_wake_up(leases: list[Lease], waiters: list[Request], seconds: float | None) -> None:
    """No passage of time changes anything before `wake_at`."""
    assert decided(leases, waiters).wake_at == (None if seconds is None else at(seconds))


def test_a_lease_never_outlives_its_hold() -> None:
    """A hold that is shorter than the reserve time is the deadline."""
    decision = decided([], [waiter("r", 1)], hold_seconds=10)
    assert decision.granted[0].expires_at == decision.granted[0].hold_until == at(10)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("command", sorted({command for _, command in TRANSITIONS}))
def test_every_pair_of_state_and_event(state: State, command: str) -> None:
    """Listed pairs change the state as listed; all others raise."""
    if (state, command) in TRANSITIONS:
        assert advance(state, command) is TRANSITIONS[state, command]
    else:
        with pytest.raises(IllegalTransition):
            advance(state, command)
