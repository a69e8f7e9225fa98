"""Starts without a lease: charged once, within what their reporter may count, as laws over reports."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.lease import LeaseReleaseRequested, LeaseRequested
from slipway_lease_broker.domain import limits
from slipway_lease_broker.domain.commands import UNITS_MAX, apply_command
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Ledger, State, UnleasedBy
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.terms import Operation, Policy
from slipway_lease_broker.domain.unleased import LOST_LEASE, Start, announced, charge

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LIMIT = 5
POLICY = Policy(operations={"destroy": Operation(weight=2), "check": Operation(weight=0)})
POOL = LeasePool(
    id="p", limit_units=LIMIT, hold_seconds=1200, ttl_seconds=300, reserve_seconds=30, policy=POLICY, limit_in_force=5
)
STARTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),  # token
        st.integers(0, 9),  # request
        st.integers(1, 7),  # units
        st.sampled_from(UnleasedBy),
        st.sampled_from(["install", "destroy", "check"]),
        st.booleans(),  # it waits
        st.booleans(),  # released afterwards
    ),
    max_size=25,
)


def used(ledger: Ledger, owner: str) -> tuple[int, int]:
    """As the store sums them: units of an owner that count by its word, and the cost of all that waited."""
    counting = [lease for lease in ledger.leases.values() if lease.ended_at is None and lease.unleased_by is not None]
    waited = [lease for lease in counting if lease.unleased_by is UnleasedBy.MAX_WAIT]
    claimed = [lease.counted_units for lease in counting if lease.owner == owner and lease not in waited]
    return sum(claimed), sum(lease.cost for lease in waited)


@given(STARTS, st.one_of(st.none(), st.integers(0, 8)))
def test_starts_count_once_and_within_bounds(starts: list[Any], unleased_max: int | None) -> None:
    """The counters of the pool are those of its leases; starts that waited cost no more than the limit; those that are
    only claimed no more than the reporter may count, and hold back no tenant but its own."""
    ledger, ids = Ledger([POOL], [], []), itertools.count()
    for owner, number, units, cause, operation, waits, released in starts:
        sender, name = Sender(name=owner), f"{owner}{number}"
        if waits and ("p", name) not in ledger.requests:
            request = LeaseRequested(lease_pool_id="p", request_id=name, units=units, tenant=owner, operation=operation)
            apply_command(ledger, request, NOW, sender)
        start = Start(request_id=name, operation=operation, units=units, started_at=NOW, cause=cause)
        for repeated in (False, True):
            allowance = limits.allowance(ledger.pools["p"], *used(ledger, owner), unleased_max=unleased_max)
            before = len(ledger.leases)
            lease = charge(ledger, "p", start, NOW, sender, allowance, lease_id=f"l{next(ids)}")
            assert lease.request_id == name
            assert (len(ledger.leases) == before) or not repeated
            if len(ledger.leases) > before:  # the next start of the report has what this one leaves
                left = limits.allowance(ledger.pools["p"], *used(ledger, owner), unleased_max=unleased_max)
                assert allowance.after(lease) == left
        claimed, waited = used(ledger, owner)
        assert waited <= LIMIT
        assert claimed <= (LIMIT if unleased_max is None else unleased_max)
        if released and lease.live:
            back = LeaseReleaseRequested(
                lease_pool_id="p", lease_id=lease.id, fencing_token=lease.fencing_token, units=UNITS_MAX, result="done"
            )
            apply_command(ledger, back, NOW, sender)
        pool = ledger.pools["p"]
        counting = [lease for lease in ledger.leases.values() if lease.ended_at is None]
        assert pool.held_cost == sum(lease.cost for lease in counting)
        assert pool.held_units == sum(lease.counted_units for lease in counting)
        assert pool.waiting_units == sum(request.counted_units for request in ledger.requests.values())
    for tenant in ledger.tenants.values():
        if tenant.held_back_until is not None:
            assert any(lease.tenant == tenant.tenant and lease.uncounted_units for lease in ledger.leases.values())


def test_an_alert_is_raised_once_and_resolved_at_the_end() -> None:
    ledger, sender = Ledger([POOL], [], []), Sender(name="a")
    start = Start(request_id="r", operation="install", units=9, started_at=NOW)
    allowance = limits.allowance(POOL, 0, 0, unleased_max=2)
    charge(ledger, "p", start, NOW, sender, allowance, lease_id="l")
    pool, raised = announced(ledger.pools["p"], NOW)
    assert raised == AlertRaised(
        dedup_key="lease-broker/lease-pool-unleased-excess/p",
        kind="lease-pool-unleased-excess",
        subject_kind="lease-pool",
        subject_id="p",
        summary="lease pool p: a reported 7 unleased units more than it may count",
        effect="tenant a gets no lease until 2026-01-01T12:20:00+00:00; other tenants are not affected",
        doing="counts at most 2 unleased units of a against the pool",
        command="slipway lease history p -n 20",
        cause="its report is wrong, or it started more than unleased_max of its token allows",
        severity="notice",
    )
    assert announced(pool, NOW + timedelta(seconds=1199)) == (pool, None)
    pool, resolved = announced(pool, NOW + timedelta(seconds=1200))
    assert isinstance(resolved, AlertResolved)
    assert (resolved.identity, resolved.summary, pool.excess) == (raised.identity, raised.summary, None)
    assert announced(pool, NOW) == (pool, None)
    unannounced, nothing = announced(ledger.pools["p"], NOW + timedelta(seconds=1200))
    assert (unannounced.excess, nothing) == (None, None), "it has ended before anybody was told"


#         end of the lost lease's hold, hold of the start     end of its hold
LOST: Final = [
    (900, None, 900),
    (900, 300.0, 300),
    (5000, None, 1200),
]


@pytest.mark.parametrize(("hold_until", "hold_seconds", "ends"), LOST)
def test_a_start_whose_lease_was_lost_counts_in_its_place(
    hold_until: float, hold_seconds: float | None, ends: float
) -> None:
    """As the broker knew of it, so that it needs no allowance, and no longer than the lost lease would have."""
    lost = Lease(
        id="old",
        lease_pool_id="p",
        request_id="r",
        fencing_token=4,
        granted_units=3,
        units=3,
        state=State.LOST,
        granted_at=NOW,
        expires_at=NOW,
        hold_until=NOW + timedelta(seconds=hold_until),
        counted_until=NOW + timedelta(seconds=60),
        extended_at=NOW,
        operation="install",
        tenant="t",
        owner="a",
    )
    pool = msgspec.structs.replace(POOL, held={"install": 3}, held_units=3, last_token=4)
    ledger, sender = Ledger([pool], [lost], []), Sender(name="a")
    start = Start(
        request_id=f"{LOST_LEASE}old",
        operation="install",
        units=3,
        started_at=NOW,
        hold_seconds=hold_seconds,
        cause=UnleasedBy.LOST,
    )
    allowance = limits.allowance(pool, 0, 0, unleased_max=0)
    lease = charge(ledger, "p", start, NOW, sender, allowance, lease_id="new")
    assert (lease.state, lease.units, lease.uncounted_units, lease.tenant) == (State.CONFIRMED, 3, 0, "t")
    assert (lease.hold_until, lease.fencing_token) == (NOW + timedelta(seconds=ends), 5)
    assert (ledger.leases["p", "old"].ended_at, ledger.pools["p"].held_units) == (NOW, 3)
    assert ledger.pools["p"].excess is None
