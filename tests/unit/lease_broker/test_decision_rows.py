"""Rows that a decision writes beside its grants: the whole lease, the pool's state, the history and the times."""

from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

import msgspec

from slipway_api.events.alert import AlertRaised
from slipway_api.events.lease import LeaseGranted, LeaseLimitChanged
from slipway_lease_broker.domain.adaptive import Evidence
from slipway_lease_broker.domain.decide import Decision, decide, grant_event, summary
from slipway_lease_broker.domain.ledger import (
    Entry,
    Excess,
    Group,
    Holding,
    Lease,
    LeasePool,
    Request,
    State,
    Tenant,
)
from slipway_lease_broker.domain.pacing import Pace, Pacing
from slipway_lease_broker.domain.reception import Downtime, Receiving
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.domain.terms import Bounds, Derived, Mode, Operation, Policy
from tests.support import lease_rows
from tests.support.lease_broker import TERMS
from tests.support.lease_rows import NOW

POOL: Final = msgspec.structs.replace(lease_rows.POOL, policy=Policy(pacing="off"), last_token=40)
REQUEST: Final = msgspec.structs.replace(
    lease_rows.REQUEST, owner="ci", traceparent="00-1", holder="host-1", requested_at=NOW - timedelta(seconds=12)
)
WAITING: Final[dict[str, Any]] = {"waiting_units": 1, "waiting_requests": 1}
COMMON: Final[dict[str, Any]] = {"lease_pool_id": "p", "at": NOW}


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def decided(pool: LeasePool, *, received: bool = False, **rows: Any) -> Decision:
    new_id = map("lease-{}".format, count(1)).__next__
    situation = Situation(**({"per_queue": 100} | rows))
    return decide(pool, situation, NOW, new_id=new_id, terms=TERMS, is_received=lambda _: received)


def pool(**fields: Any) -> LeasePool:
    return msgspec.structs.replace(POOL, **fields)


def request(**fields: Any) -> Request:
    return msgspec.structs.replace(REQUEST, **fields)


def held(**fields: Any) -> Lease:
    (lease,) = decided(pool(**WAITING), waiters=[REQUEST]).granted
    return msgspec.structs.replace(lease, **fields)


def test_a_lease_has_the_terms_of_its_grant() -> None:
    policy = Policy(
        pacing="off",
        mode=Mode.ADVISORY,
        no_progress_seconds=60,
        operations={"install": Operation(weight=2)},
    )
    waiter = request(requested_units=2, waiting_units=2, hold_seconds=100, gang_id=None, over_kafka=True)
    (lease,) = decided(pool(policy=policy), waiters=[waiter]).granted
    assert lease == Lease(
        id="lease-1",
        lease_pool_id="p",
        request_id="r",
        fencing_token=41,
        granted_units=2,
        units=2,
        state=State.RESERVED,
        granted_at=NOW,
        expires_at=at(100),  # its hold ends before the reserve time
        hold_until=at(100),
        traceparent="00-1",
        tenant="t",
        operation="install",
        weight=2,
        owner="ci",
        progress_until=at(60),
        waited_seconds=12,
        mode=Mode.ADVISORY,
        extended_at=NOW,
        over_kafka=True,
        holders={"host-1": Holding(since=NOW)},
    )


def test_a_hold_is_no_longer_than_that_of_the_pool() -> None:
    (lease,) = decided(POOL, waiters=[request(hold_seconds=5000, holder="", requested_at=NOW)]).granted
    assert (lease.hold_until, lease.expires_at, lease.holders) == (at(1200), at(180), {})
    assert lease.waited_seconds == 0.0


def test_a_grant_that_is_received_is_confirmed() -> None:
    """It has the time of a renewal, and a line of history of its own."""
    decision = decided(pool(**WAITING), received=True, waiters=[REQUEST])
    (lease,) = decision.granted
    assert (lease.state, lease.expires_at) == (State.CONFIRMED, at(300))
    assert decision.history == (
        Entry(
            **COMMON, kind="granted", reason="1 unit granted to request r", lease_id="lease-1", request_id="r", units=1
        ),
        Entry(
            **COMMON,
            kind="confirmed",
            reason="confirmed by receipt of the grant",
            lease_id="lease-1",
            request_id="r",
            actor="ci",
        ),
    )


SPARED: Final[dict[str, Any]] = {"advised_wait_seconds": 600.0, "reason": "4 of 4 held"}


def test_an_advisory_grant_says_what_it_was_spared_and_a_shadow_one_only_in_the_history() -> None:
    for mode, told in ((Mode.ADVISORY, SPARED), (Mode.SHADOW, {})):
        policy = Policy(pacing="off", mode=mode)
        decision = decided(pool(policy=policy, held={"install": 4}, held_units=4, **WAITING), waiters=[REQUEST])
        (lease,) = decision.granted
        assert (lease.advised_wait_seconds, lease.reason) == (300.0, "4 of 4 held")
        (entry,) = decision.history
        assert entry.reason == (f"1 unit granted to request r; {mode} mode: would have waited 300 s: 4 of 4 held")
        assert grant_event(msgspec.structs.replace(lease, **SPARED)) == LeaseGranted(
            lease_pool_id="p",
            lease_id="lease-1",
            request_id="r",
            units=1,
            fencing_token=41,
            expires_at=at(180),
            hold_until=at(1200),
            waited_seconds=12,
            mode=mode,
            owner="ci",
            **told,
        )


def test_a_grant_over_the_limit_says_so() -> None:
    policy = Policy(pacing="off", operations={"install": Operation(max_wait_seconds=10)})
    decision = decided(pool(policy=policy, limit_units=0, **WAITING), waiters=[request(since=at(-12))])
    (entry,) = decision.history
    assert (
        entry.reason == "1 unit granted to request r; proceeds over the limit: maximum wait of its operation exceeded"
    )


def test_a_limit_that_changed_is_published_with_its_reason() -> None:
    decision = decided(pool(limit_in_force=6))
    changed = LeaseLimitChanged(lease_pool_id="p", limit=4, previous_limit=6, reason="as declared")
    assert decision.events == (changed,)
    assert decision.history == (Entry(**COMMON, kind="limit", reason="as declared", units=4),)
    assert (decision.limit_cause, decision.summary) == ("declared", "limit: as declared")
    assert (decision.pool.limit_in_force, decision.pool.limit_reason) == (4, "as declared")
    for before in (None, 4):
        same = decided(pool(limit_in_force=before))
        assert (same.events, same.history, same.limit_cause, same.summary) == ((), (), "", None)


def test_a_limit_that_may_rise_is_a_time_to_decide_again() -> None:
    policy = Policy(pacing="off", adaptive=Bounds(floor=1, ceiling=9))
    decision = decided(pool(policy=policy, held={"install": 4}, held_units=4, **WAITING))
    assert (decision.wake_at, decision.pool.limit_in_force) == (at(1200), 4)


def test_an_adaptive_limit_names_its_evidence() -> None:
    throttled = tuple(Evidence(granted_at=NOW, throttled=True) for _ in range(9))
    policy = Policy(pacing="off", adaptive=Bounds(floor=1, ceiling=9))
    decision = decided(pool(policy=policy, limit_units=8, limit_in_force=8, evidence=throttled))
    (changed,) = decision.events
    assert (changed.limit, changed.previous_limit) == (7, 8)
    assert changed.reason == decision.history[0].reason == "limit 8 → 7: 37 % of recent leases were throttled"
    assert decision.limit_cause == "adaptive"


def test_alerts_of_stale_reports_and_of_excess_are_published() -> None:
    excess = Excess(reporter="ci", tenant="t", units=3, units_max=1, until=at(500))
    policy = Policy(pacing="off", derived=Derived(per_unit=1))
    decision = decided(pool(policy=policy, derived_units=2, derived_until=NOW, excess=excess))
    assert [(type(event), event.kind) for event in decision.events] == [
        (AlertRaised, "lease-pool-units-stale"),
        (AlertRaised, "lease-pool-unleased-excess"),
    ]
    assert decision.pool.derived_alerted
    assert decision.wake_at == at(500)


def test_a_request_that_lapses_waits_no_more() -> None:
    decision = decided(pool(**WAITING), lapsed=[REQUEST])
    assert (decision.pool.waiting_units, decision.pool.waiting_requests) == (0, 0)
    reason = "not repeated in time: skipped until it is repeated"
    assert decision.history == (Entry(**COMMON, kind="lapsed", reason=reason, request_id="r", units=1),)
    assert decision.events == ()


def test_a_request_is_announced_with_the_reason_for_its_wait() -> None:
    """One behind those that were looked at waits for these."""
    behind = request(id="s", waiting_units=2)
    decision = decided(
        pool(held={"install": 4}, held_units=4, waiting_units=3, waiting_requests=2),
        waiters=[REQUEST],
        unannounced=[REQUEST, behind],
    )
    assert decision.history == (
        Entry(**COMMON, kind="queued", reason="4 of 4 held", request_id="r", units=1),
        Entry(**COMMON, kind="queued", reason="others are ahead", request_id="s", units=2),
    )
    assert [(row.id, row.queued_at) for row in decision.requests] == [("r", NOW), ("s", NOW)]
    assert [event.position for event in decision.events] == [1, 2]
    assert decision.waiting == {"r": "4 of 4 held"}


def test_idle_units_are_counted_up_to_each_decision() -> None:
    """Free units while requests waited, and the time since the last grant."""
    before = pool(limit_in_force=4, counted_at=at(-10), idle_unit_seconds=3.0, last_granted_at=at(-30), **WAITING)
    idle = decided(before, waiters=[REQUEST])
    assert (idle.idle_unit_seconds, idle.pool.idle_unit_seconds, idle.pool.counted_at) == (13.0, 0.0, NOW)
    assert (idle.grant_gap_seconds, idle.pool.last_granted_at) == (30.0, NOW)
    nothing = decided(before)
    assert (nothing.grant_gap_seconds, nothing.pool.last_granted_at) == (None, at(-30))
    assert decided(pool(**WAITING), waiters=[REQUEST]).grant_gap_seconds is None


def test_fairness_and_paces_go_on_from_decision_to_decision() -> None:
    behind = Tenant(lease_pool_id="p", tenant="t", virtual_finish=7.0, failures=2)
    group = Group(lease_pool_id="p", name="g", size=2, spread_seconds=60, first_at=NOW)
    decision = decided(
        pool(policy=Policy(pacing=Pacing(12)), virtual_time=5.0, waiting_units=2, waiting_requests=2),
        waiters=[request(group_name="g"), request(id="s", tenant="u", operation="look")],
        tenants=[behind],
        groups=[group, msgspec.structs.replace(group, name="other")],
    )
    assert [lease.request_id for lease in decision.granted] == ["s", "r"]
    assert decision.tenants == (
        Tenant(lease_pool_id="p", tenant="u", virtual_finish=6.0),
        msgspec.structs.replace(behind, virtual_finish=8.0),
    )
    assert decision.groups == (msgspec.structs.replace(group, last_start_at=NOW),)
    assert decision.pool.virtual_time == 7.0
    assert decision.pool.paces == {name: Pace(until=at(12), interval_seconds=12) for name in ("install", "look")}


def test_a_gang_at_its_turn_is_named() -> None:
    decision = decided(pool(**WAITING), waiters=[request(gang_id="g")])
    assert (decision.gangs, decision.granted) == (("g",), ())


def test_a_deadline_that_downtime_postpones_is_the_next_one() -> None:
    late = held(state=State.CONFIRMED, expires_at=at(-1), extended_at=at(-400))
    downtimes = Receiving(http=[Downtime(at(-300), at(-200))])
    decision = decided(pool(held={"install": 1}, held_units=1), due=[late], receiving=downtimes)
    assert (decision.ended, len(decision.postponed)) == ((), 1)
    assert decision.wake_at == decision.postponed[0].deadline > NOW


def test_a_lost_lease_that_counts_no_more_is_freed() -> None:
    lost = held(state=State.LOST, counted_until=NOW)
    decision = decided(pool(held={"install": 1}, held_units=1), due=[lost])
    (ended,) = decision.ended
    assert (ended.ended_at, decision.events, decision.pool.held_units) == (NOW, (), 0)
    reason = "lost lease no longer counted: 1 unit freed"
    assert decision.history == (
        Entry(**COMMON, kind="freed", reason=reason, lease_id="lease-1", request_id="r", units=1),
    )


def test_a_lost_lease_counts_for_the_delay_of_its_pool() -> None:
    for delay, seconds in ((None, TERMS.lost_linger_seconds), (30.0, 30.0)):
        policy = Policy(pacing="off", lock_delay_seconds=delay)
        decision = decided(pool(policy=policy), due=[held(state=State.CONFIRMED, expires_at=NOW)])
        (lost,) = decision.ended
        assert (lost.state, lost.counted_until) == (State.LOST, at(seconds))
        assert (decision.history[0].kind, decision.postponed) == ("lost", ())


def test_more_is_to_be_decided_where_not_all_was_loaded() -> None:
    first, second = request(), request(id="s", place=1)
    assert decided(pool(waiting_units=2, waiting_requests=2), waiters=[first], per_queue=1).again
    assert decided(POOL, more=True).again
    assert not decided(pool(**WAITING), waiters=[first, second]).again
    skipped = decided(pool(**WAITING), waiters=[request(waiting_units=9, whole=True)], per_queue=1)
    assert (skipped.again, skipped.hidden) == (False, frozenset({("install", "t", 0, "")}))


def test_the_summary_keeps_the_first_lines_and_the_last() -> None:
    lines = [str(number) for number in range(22)]
    assert summary(lines[:20]) == "\n".join(lines[:20])
    assert summary(lines) == "\n".join([*lines[:19], "… 2 more …", "21"])


def test_a_wait_for_a_limit_names_its_reason() -> None:
    decision = decided(pool(pinned_reason="test", held={"install": 4}, held_units=4, **WAITING), waiters=[REQUEST])
    assert decision.waiting == {"r": "4 of 4 held (limit pinned: test)"}


def test_a_spared_wait_is_that_for_its_cost_or_for_its_pace() -> None:
    """None where it would have waited forever."""
    waiter = request(requested_units=2, waiting_units=2)
    full: dict[str, Any] = {"held": {"install": 4}, "held_units": 4}
    spared = []
    for operation, fields in (
        (Operation(weight=2), full),
        (Operation(pacing=Pacing(12)), {"paces": {"install": Pace(until=at(2000), interval_seconds=12)}}),
        (Operation(max_wait_seconds=900), {"limit_units": 0}),
    ):
        policy = Policy(pacing="off", mode=Mode.SHADOW, operations={"install": operation})
        (lease,) = decided(pool(policy=policy, **fields), waiters=[waiter]).granted
        spared.append(lease.advised_wait_seconds)
    assert spared == [1200.0, 2000.0, None]
