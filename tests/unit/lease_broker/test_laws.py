"""The laws of admission, on long random histories of one lease pool."""

from datetime import UTC, datetime, timedelta
from itertools import count

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmRequested,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
)
from slipway_lease_broker.domain.decide import decide
from slipway_lease_broker.domain.facts import Fact, Ledger
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Request, State
from slipway_lease_broker.domain.terms import Policy

START = datetime(2026, 1, 1, tzinfo=UTC)


class Admission(RuleBasedStateMachine):
    """Facts and decisions in any order, at any time. The rows are kept as the store keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = LeasePool(
            id="p", limit_units=4, hold_seconds=50, ttl_seconds=20, reserve_seconds=10, policy=Policy(pacing="off")
        )
        self.now = START
        self.leases: dict[str, Lease] = {}
        self.requests: dict[str, Request] = {}
        self.tokens = [0]
        self.ids = count(1)
        self.wake_at: datetime | None = None

    def record(self, fact: Fact) -> None:
        ledger = Ledger([self.pool], self.leases.values(), self.requests.values())
        ledger.record(fact, self.now)
        self.pool = ledger.pools["p"]
        self.requests |= {request.id: request for request in ledger.requests_to_save()}
        self.requests |= {
            request.id: msgspec.structs.replace(request, place=next(self.ids)) for request in ledger.requests_to_add()
        }
        for lease in ledger.leases_to_save():
            assert self.leases[lease.id].live, "a committed end was undone"
            self.leases[lease.id] = lease

    @rule(units=st.integers(1, 6))
    def ask(self, units: int) -> None:
        name = f"r{next(self.ids):04}"
        self.record(LeaseRequested(lease_pool_id="p", request_id=name, units=units, tenant="t"))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), units=st.integers(1, 6), cancel=st.booleans())
    def repeat_or_cancel(self, data: st.DataObject, units: int, cancel: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        before = self.requests[name].waiting_units
        if cancel:
            self.record(LeaseCancelRequested(lease_pool_id="p", request_id=name, units=units, reason=""))
            assert self.requests[name].waiting_units == max(0, before - units)
        else:
            self.record(LeaseRequested(lease_pool_id="p", request_id=name, units=units, tenant="t"))
            assert self.requests[name].waiting_units == before

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), what=st.sampled_from(["confirm", "renew", "release"]), off=st.sampled_from([0, 0, 0, -1]))
    def say(self, data: st.DataObject, what: str, off: int) -> None:
        lease = self.leases[data.draw(st.sampled_from(sorted(self.leases)))]
        about = {"lease_pool_id": "p", "lease_id": lease.id, "fencing_token": lease.fencing_token + off}
        if what == "release":
            units = data.draw(st.integers(1, 4))
            self.record(msgspec.convert(about | {"units": units, "result": "done"}, LeaseReleaseRequested))
        else:
            kind: type[LeaseConfirmRequested | LeaseRenewRequested] = (
                LeaseConfirmRequested if what == "confirm" else LeaseRenewRequested
            )
            self.record(msgspec.convert(about, kind))
        if off:
            assert self.leases[lease.id] == lease, "a stranger's token changed a lease"

    @rule(limit=st.integers(0, 8))
    def change_limit(self, limit: int) -> None:
        self.pool = msgspec.structs.replace(self.pool, limit_units=limit)

    @rule(seconds=st.integers(0, 25))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(expire=st.booleans())
    def decide(self, expire: bool) -> None:
        held = [lease for lease in self.leases.values() if lease.ended_at is None]
        waiters = [request for request in self.requests.values() if request.waiting_units]
        due = [lease for lease in held if lease.deadline <= self.now] if expire else []
        decision = decide(
            self.pool, due, waiters, self.now, new_id=lambda: f"l{next(self.ids):04}", lost_linger_seconds=7,
            per_queue=100, untold=[waiter for waiter in waiters if waiter.queued_at is None],
            next_deadline=min((lease.deadline for lease in held if lease.deadline > self.now), default=None),
        )  # fmt: skip

        # Within the limit whenever anything is granted; what was held before is never revoked to get there.
        assert decision.pool.held_units <= self.pool.limit_units or not decision.granted
        assert all(min(lease.deadline for lease in held if lease.id == gone.id) <= self.now for gone in decision.ended)
        assert expire or not decision.ended
        # No unit is left lying while somebody waits.
        assert not decision.pool.waiting_units or decision.pool.held_units >= self.pool.limit_units
        # First come, first served: the granted are the head of the queue, and only the last may get less than it asked.
        assert [lease.request_id for lease in decision.granted] == [r.id for r in waiters[: len(decision.granted)]]
        for lease, waiter in zip(decision.granted[:-1], waiters, strict=False):
            assert lease.units == waiter.waiting_units
        # Tokens only grow.
        for lease in decision.granted:
            assert lease.fencing_token > self.tokens[-1]
            self.tokens.append(lease.fencing_token)
        # A unit is granted or waits, never both, never neither.
        waiting = {request.id: request.waiting_units for request in decision.requests}
        for waiter in waiters:
            got = sum(lease.units for lease in decision.granted if lease.request_id == waiter.id)
            assert got + waiting.get(waiter.id, waiter.waiting_units) == waiter.waiting_units

        self.leases |= {lease.id: lease for lease in [*decision.ended, *decision.granted]}
        self.requests |= {request.id: request for request in decision.requests}
        self.pool = decision.pool
        counted = [lease for lease in self.leases.values() if lease.ended_at is None]
        assert decision.pool.held_units == sum(lease.units for lease in counted)
        if expire:  # time alone changes nothing before the wake-up it asked for
            assert all(lease.deadline > self.now for lease in counted)
            assert decision.wake_at == min((lease.deadline for lease in counted), default=None)

    @invariant()
    def nothing_is_created_or_forgotten(self) -> None:
        for lease in self.leases.values():
            assert 0 <= lease.units <= lease.granted_units
            assert lease.expires_at <= lease.hold_until
            assert lease.state is State.LOST or (lease.ended_at is None) == lease.live
        for request in self.requests.values():
            got = sum(lease.granted_units for lease in self.leases.values() if lease.request_id == request.id)
            assert got + request.waiting_units <= request.asked_units


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
