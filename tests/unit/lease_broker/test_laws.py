"""Invariants of admission on long random histories of one lease pool, with every kind of request and policy."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmRequested,
    LeaseGroup,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    ReplacedLease,
)
from slipway_lease_broker.domain.admit import OVER_THE_LIMIT, Admission
from slipway_lease_broker.domain.commands import FAILED, LeaseCommand, apply_command
from slipway_lease_broker.domain.decide import Decision, decide
from slipway_lease_broker.domain.drift import Counted, repaired
from slipway_lease_broker.domain.ledger import Group, Lease, LeasePool, Ledger, Request, State, Tenant
from slipway_lease_broker.domain.limits import in_force
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.domain.terms import Backoff, Bounds, Mode, Operation, Policy
from tests.support.lease_broker import TERMS

START = datetime(2026, 1, 1, tzinfo=UTC)
OPERATIONS = {
    "install": Operation(),
    "heavy": Operation(weight=2),
    "look": Operation(weight=0),
    "destroy": Operation(reserved_units=1, max_wait_seconds=40),
}
POLICIES = st.builds(
    Policy,
    mode=st.sampled_from([Mode.ENFORCE, Mode.ENFORCE, Mode.ENFORCE, Mode.ADVISORY, Mode.SHADOW]),
    pacing=st.sampled_from(["off", "off", None, Pacing(2.0, 3)]),
    operations=st.just(OPERATIONS),
    tenants=st.sampled_from([{}, {"a": 3.0}]),
    ageing_seconds=st.just(15.0),
    backoff=st.sampled_from([None, Backoff(seconds=5, max_seconds=20)]),
    no_progress_seconds=st.sampled_from([None, 25.0]),
    adaptive=st.sampled_from([None, None, Bounds(floor=1, ceiling=6)]),
)


class Admissions(RuleBasedStateMachine):
    """Commands and decisions in any order and at any time. The rows are stored as the store would."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.leases: dict[str, Lease] = {}
        self.requests: dict[str, Request] = {}
        self.tenants: dict[str, Tenant] = {}
        self.groups: dict[str, Group] = {}
        self.ids = count(1)

    @initialize(policy=POLICIES)
    def declare(self, policy: Policy) -> None:
        self.pool = LeasePool(id="p", limit_units=4, hold_seconds=50, ttl_seconds=20, reserve_seconds=10, policy=policy)

    def apply(self, command: LeaseCommand) -> None:
        ledger = Ledger(
            [self.pool], self.leases.values(), self.requests.values(), self.tenants.values(), self.groups.values()
        )
        apply_command(ledger, command, self.now, Sender())
        self.pool = ledger.pools["p"]
        self.requests |= {request.id: request for request in ledger.requests_to_save()}
        self.requests |= {
            request.id: msgspec.structs.replace(request, place=next(self.ids)) for request in ledger.requests_to_add()
        }
        self.tenants |= {tenant.tenant: tenant for tenant in ledger.tenants_to_save()}
        self.groups |= {group.name: group for group in ledger.groups_to_save()}
        for lease in ledger.leases_to_save():
            before = self.leases[lease.id]
            assert before.live or lease == msgspec.structs.replace(before, replaced=True), "a committed end was undone"
            self.leases[lease.id] = lease

    @rule(
        units=st.integers(1, 6),
        tenant=st.sampled_from("abc"),
        operation=st.sampled_from(sorted(OPERATIONS)),
        priority=st.integers(0, 9),
        whole=st.booleans(),
        grouped=st.booleans(),
    )
    def request(self, units: int, tenant: str, operation: str, priority: int, whole: bool, grouped: bool) -> None:
        self.apply(
            LeaseRequested(
                lease_pool_id="p",
                request_id=f"r{next(self.ids):04}",
                units=units,
                tenant=tenant,
                operation=operation,
                priority=priority,
                whole=whole,
                group=LeaseGroup(name="g", size=3, spread_seconds=30) if grouped and operation == "install" else None,
            )
        )

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), units=st.integers(1, 6), cancel=st.booleans())
    def repeat_or_cancel(self, data: st.DataObject, units: int, cancel: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        before = self.requests[name].waiting_units
        if cancel:
            self.apply(LeaseCancelRequested(lease_pool_id="p", request_id=name, units=units, reason=""))
            assert self.requests[name].waiting_units == max(0, before - units)
        else:
            self.apply(LeaseRequested(lease_pool_id="p", request_id=name, units=units, tenant="t"))
            assert self.requests[name].waiting_units == before

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        what=st.sampled_from(["confirm", "renew", "release"]),
        off=st.sampled_from([0, 0, 0, -1]),
        result=st.sampled_from(["done", FAILED, "registered"]),
        throttled=st.booleans(),
        retry_after_seconds=st.sampled_from([None, None, None, 3.0]),
    )
    def submit(self, data: st.DataObject, what: str, off: int, **evidence: Any) -> None:
        lease = self.leases[data.draw(st.sampled_from(sorted(self.leases)))]
        about = {"lease_pool_id": "p", "lease_id": lease.id, "fencing_token": lease.fencing_token + off}
        if what == "release":
            units = data.draw(st.integers(1, 4))
            self.apply(msgspec.convert(about | {"units": units} | evidence, LeaseReleaseRequested))
        elif what == "confirm":
            self.apply(msgspec.convert(about, LeaseConfirmRequested))
        else:
            self.apply(msgspec.convert(about | {"progress": evidence["result"]}, LeaseRenewRequested))
        if off:
            assert self.leases[lease.id] == lease, "a stranger's token changed a lease"

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), units=st.integers(1, 3))
    def request_again(self, data: st.DataObject, units: int) -> None:
        """Request with a lease to replace: the first such attempt ends the lease and inherits its age, a second
        inherits none."""
        lease = self.leases[data.draw(st.sampled_from(sorted(self.leases)))]
        name = f"r{next(self.ids):04}"
        replaced = ReplacedLease(lease_id=lease.id, fencing_token=lease.fencing_token)
        self.apply(
            LeaseRequested(
                lease_pool_id="p",
                request_id=name,
                units=units,
                tenant=lease.tenant,
                operation=lease.operation,
                replaces=replaced,
            )
        )
        assert not self.leases[lease.id].live
        assert self.requests[name].since <= (self.now if lease.replaced else self.requests[lease.request_id].since)

    @rule(limit=st.integers(0, 8))
    def change_limit(self, limit: int) -> None:
        self.pool = msgspec.structs.replace(self.pool, limit_units=limit)

    @rule(drained=st.booleans(), pinned=st.booleans())
    def drain_or_pin(self, drained: bool, pinned: bool) -> None:
        self.pool = msgspec.structs.replace(
            self.pool, drained_reason="x" if drained else None, pinned_reason="x" if pinned else None
        )

    @rule(seconds=st.integers(0, 25))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    def decision(self, held: list[Lease], waiters: list[Request], expire: bool, prefix: str) -> Decision:
        deadlines = [lease.deadline for lease in held if lease.deadline > self.now or not expire]
        situation = Situation(
            due=[lease for lease in held if lease.deadline <= self.now] if expire else [],
            waiters=waiters,
            per_queue=100,
            unannounced=[waiter for waiter in waiters if waiter.queued_at is None],
            tenants=list(self.tenants.values()),
            groups=list(self.groups.values()),
            next_deadline=min(deadlines, default=None),
        )
        new_id = map(f"{prefix}-{{:02}}".format, count(1)).__next__
        terms = msgspec.structs.replace(TERMS, lost_linger_seconds=7)
        return decide(self.pool, situation, self.now, new_id=new_id, terms=terms)

    @rule(expire=st.booleans())
    def decide(self, expire: bool) -> None:
        held = [lease for lease in self.leases.values() if lease.ended_at is None]
        waiters = [request for request in self.requests.values() if request.waiting_units]
        prefix = f"l{next(self.ids):04}"
        decision = self.decision(held, waiters, expire, prefix)
        again = self.decision(held[::-1], waiters[::-1], expire, prefix)  # in any order of rows
        assert (again.pool, again.granted, again.waiting, again.wake_at) == (
            decision.pool,
            decision.granted,
            decision.waiting,
            decision.wake_at,
        )

        # Cost held stays within the limit in force on every grant, except for overdue requests.
        limit, cost = decision.pool.limit_in_force, decision.pool.held_cost
        assert limit is not None
        counted = [lease for lease in decision.granted if lease.weight and lease.reason != OVER_THE_LIMIT]
        over = sum(lease.cost for lease in decision.granted if lease.reason == OVER_THE_LIMIT)
        assert self.pool.policy.mode is not Mode.ENFORCE or not counted or cost - over <= limit
        for lease in decision.granted:
            if lease.reason == OVER_THE_LIMIT:
                assert lease.operation == "destroy"
                assert self.now - self.requests[lease.request_id].since >= timedelta(seconds=40)
        # Nothing starts in a drained or archived pool, and nothing paced before a Retry-After has passed.
        assert self.pool.drained_reason is None or not decision.granted
        blocked = self.pool.blocked_until is not None and self.now < self.pool.blocked_until
        assert self.pool.policy.mode is not Mode.ENFORCE or not blocked or not any(x.weight for x in decision.granted)
        # Every lease that time ended was past its deadline.
        before = {lease.id: lease for lease in held}
        assert all(before[gone.id].deadline <= self.now for gone in decision.ended)
        assert expire or not decision.ended
        # Tokens only increase, whole requests are granted whole, and each unit is either granted or waits.
        tokens = [lease.fencing_token for lease in decision.granted]
        assert tokens == list(range(self.pool.last_token + 1, self.pool.last_token + 1 + len(tokens)))
        waiting = {request.id: request.waiting_units for request in decision.requests}
        for waiter in waiters:
            got = sum(lease.units for lease in decision.granted if lease.request_id == waiter.id)
            assert got + waiting.get(waiter.id, waiter.waiting_units) == waiter.waiting_units
            assert not waiter.whole or got in (0, waiter.waiting_units)
        # In shadow and advisory pools nothing waits, unless they are drained or archived.
        waits = self.pool.policy.mode is Mode.ENFORCE or self.pool.drained_reason is not None
        assert waits or not decision.pool.waiting_units
        # Every decision has a line of history.
        lines = {(entry.kind, entry.lease_id) for entry in decision.history}
        assert {("granted", lease.id) for lease in decision.granted} <= lines

        self.leases |= {lease.id: lease for lease in [*decision.ended, *decision.granted]}
        self.requests |= {request.id: request for request in decision.requests}
        self.tenants |= {tenant.tenant: tenant for tenant in decision.tenants}
        self.groups |= {group.name: group for group in decision.groups}
        self.pool = decision.pool
        counting = [lease for lease in self.leases.values() if lease.ended_at is None]
        # Deciding again at once changes nothing: no grantable unit is left free and nothing is due. Only
        # an adaptive limit may rise then, because the units just granted are all in use.
        again = self.decision([], [request for request in self.requests.values() if request.waiting_units], False, "x")
        rose = (again.pool.limit_in_force or 0) > (decision.pool.limit_in_force or 0)
        assert rose or not again.granted
        if expire:  # time alone changes nothing before its wake-up time
            assert all(lease.deadline > self.now for lease in counting)
            assert decision.wake_at is None or decision.wake_at > self.now or rose

    @invariant()
    def no_unit_is_created_or_lost(self) -> None:
        for lease in self.leases.values():
            assert 0 <= lease.units <= lease.granted_units
            assert lease.expires_at <= lease.hold_until
            assert lease.state is State.LOST or (lease.ended_at is None) == lease.live
        for request in self.requests.values():
            got = sum(lease.granted_units for lease in self.leases.values() if lease.request_id == request.id)
            assert got + request.waiting_units <= request.requested_units

    @invariant()
    def counters_are_those_of_the_rows(self) -> None:
        if not hasattr(self, "pool"):
            return
        held: dict[str, int] = {}
        counting = [lease for lease in self.leases.values() if lease.ended_at is None]
        for lease in counting:
            held[lease.operation] = held.get(lease.operation, 0) + lease.cost
        waiting = [request for request in self.requests.values() if request.waiting_units]
        rows = Counted(
            held={name: cost for name, cost in held.items() if cost},
            held_units=sum(lease.units for lease in counting),
            waiting_units=sum(request.waiting_units for request in waiting),
            waiting_requests=len(waiting),
            waiting_by=dict(Counter(request.owner for request in waiting if not request.over_kafka)),
        )
        assert repaired(self.pool, rows, self.now) == (self.pool, None)


TestAdmissions = Admissions.TestCase
TestAdmissions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def waiter(place: int, tenant: str, priority: int, since: datetime, units: int = 1, *, whole: bool = False) -> Request:
    return Request(
        id=f"r{place}",
        lease_pool_id="p",
        tenant=tenant,
        operation="install",
        requested_units=units,
        waiting_units=units,
        requested_at=since,
        last_requested_at=since,
        since=since,
        priority=priority,
        whole=whole,
        place=place,
    )


@given(st.integers(0, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_nobody_starves(priority: int, units: int, tenants: int, freed: int) -> None:
    """Beside tenants that always request at the highest priority, with one unit released per second: a request of any
    priority and size is at the top level within (9 − priority) × ageing, and is then served in turn with the other
    tenants."""
    pool = LeasePool(
        id="p",
        limit_units=4,
        hold_seconds=50,
        ttl_seconds=20,
        reserve_seconds=10,
        held={"install": 4},
        policy=Policy(pacing="off", ageing_seconds=10),
    )
    patient = waiter(0, "patient", priority, START, units, whole=True)
    top_seconds = (9 - priority) * 10
    served = {f"t{n}": 0.0 for n in range(tenants)}
    places, now = count(1), START
    for second in range(top_seconds + 4 * units * (tenants + 1) + 20):
        now = START + timedelta(seconds=second)
        free = msgspec.structs.replace(pool, held={"install": max(0, pool.held_cost - freed)})
        waiters = [waiter(next(places), name, 9, now) for name in served for _ in range(4)]
        known = [Tenant(lease_pool_id="p", tenant=name, virtual_finish=finish) for name, finish in served.items()]
        situation = Situation(waiters=[patient, *waiters], per_queue=100, tenants=known)
        admission = Admission(free, in_force(free), situation, now).run()
        if any(grant.request.id == patient.id for grant in admission.grants):
            return
        served |= {name: finish for name, finish in admission.finish.items() if name in served}
        pool = msgspec.structs.replace(free, held=admission.held, virtual_time=admission.shares.virtual_time)
    raise AssertionError(f"priority {priority}, {units} units: not served by {now - START}")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 90), st.integers(1, 3)), max_size=12),
    st.integers(0, 8),
    st.integers(2, 1000),
)
def test_scale(requests: list[tuple[str, int, int, int]], limit: int, factor: int) -> None:
    """With every unit and the limit multiplied by n the same requests are granted n times as much."""

    def granted(times: int) -> list[tuple[str, int]]:
        waiters = [
            waiter(place, tenant, priority, START - timedelta(seconds=since), units * times)
            for place, (tenant, priority, since, units) in enumerate(requests)
        ]
        pool = LeasePool(
            id="p",
            limit_units=limit * times,
            hold_seconds=50,
            ttl_seconds=20,
            reserve_seconds=10,
            policy=Policy(pacing="off"),
        )
        admission = Admission(pool, in_force(pool), Situation(waiters=waiters, per_queue=100), START).run()
        return [(grant.request.id, grant.units) for grant in admission.grants]

    assert granted(factor) == [(name, units * factor) for name, units in granted(1)]
