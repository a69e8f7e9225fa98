"""Who starts now, by operation, priority, tenant, group and mode: one case a line."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from slipway_lease_broker.domain.admit import OVER_THE_LIMIT, Admission, Queue, gangs_held_up
from slipway_lease_broker.domain.ledger import Group, LeasePool, Request, Tenant
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.terms import Mode, Operation, Policy

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DESTROY_KEPT = Policy(pacing="off", operations={"destroy": Operation(reserved_units=2, max_wait_seconds=600)})


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def waiter(name: str, units: int = 1, *, since: float = 0, **fields: Any) -> Request:
    made = Request(
        id=name,
        lease_pool_id="p",
        tenant="t",
        operation="install",
        asked_units=units,
        waiting_units=units,
        asked_at=at(-since),
        last_asked_at=NOW,
        since=at(-since),
    )
    return msgspec.structs.replace(made, **fields)


def round_(
    waiters: Sequence[Request],
    *,
    limit: int = 5,
    held: dict[str, int] | None = None,
    policy: Policy | None = None,
    tenants: Sequence[Tenant] = (),
    groups: Sequence[Group] = (),
    per_queue: int = 100,
    deeper: Mapping[Queue, int] | None = None,
    held_up: Mapping[str, str] | None = None,
    **state: Any,
) -> Admission:
    pool = LeasePool(
        id="p",
        limit_units=limit,
        hold_seconds=1200,
        ttl_seconds=300,
        reserve_seconds=180,
        held=held or {},
        policy=policy or Policy(pacing="off"),
        **state,
    )
    placed = [msgspec.structs.replace(waiter, place=place) for place, waiter in enumerate(waiters)]
    admission = Admission(
        pool,
        limit,
        placed,
        NOW,
        tenants=tenants,
        groups=groups,
        per_queue=per_queue,
        deeper=deeper or {},
        held_up=held_up or {},
    )
    return admission.run()


def started(admission: Admission) -> list[tuple[str, int]]:
    return [(grant.request.id, grant.units) for grant in admission.grants]


a, b, c = (waiter(name) for name in "abc")


#   held, waiting → started
OPERATIONS: list[tuple[dict[str, int], list[Request], list[str]]] = [
    ({}, [waiter(f"i{n}") for n in range(5)], ["i0", "i1", "i2"]),  # two of five are kept for destroys
    ({"destroy": 1}, [waiter(f"i{n}") for n in range(5)], ["i0", "i1", "i2"]),  # one held by them, one kept
    ({"destroy": 3}, [waiter(f"i{n}") for n in range(5)], ["i0", "i1"]),  # nothing kept, and a heavy load counts
    ({"destroy": 5}, [waiter("i")], []),  # a heavy destroy load holds back creates
    ({"install": 3}, [waiter("i"), waiter("d", operation="destroy")], ["d"]),  # what is kept is used beside the wait
    (
        {"install": 3},
        [waiter("i"), waiter("d", 2, operation="destroy", whole=True), waiter("e", operation="destroy")],
        ["d"],
    ),
    ({"install": 5}, [waiter("d", operation="destroy", since=599)], []),
    ({"install": 5}, [waiter("d", operation="destroy", since=600)], ["d"]),  # past its maximum wait
    ({"install": 5}, [waiter("i", since=900), waiter("d", operation="destroy", since=700)], ["d"]),
]


@pytest.mark.parametrize(("held", "waiters", "expected"), OPERATIONS)
def test_operations(held: dict[str, int], waiters: list[Request], expected: list[str]) -> None:
    """What is kept for an operation is free to it alone; what waited for long enough goes over the limit."""
    admission = round_(waiters, held=held, policy=DESTROY_KEPT)
    assert [name for name, _ in started(admission)] == expected


def test_past_its_maximum_wait_says_so() -> None:
    """Only if it really goes over; and never in a pool that people closed, nor before a Retry-After has passed."""
    late = waiter("d", operation="destroy", since=600)
    (over,) = round_([late], held={"install": 5}, policy=DESTROY_KEPT).grants
    assert over.reason == OVER_THE_LIMIT
    (within,) = round_([late], policy=DESTROY_KEPT).grants
    assert within.reason == ""
    assert started(round_([late], limit=0, policy=DESTROY_KEPT, drained_reason="maintenance")) == []
    gated = round_([late], policy=DESTROY_KEPT, blocked_until=at(9))
    assert (started(gated), gated.wake) == ([], [at(9)])
    soon = waiter("d", operation="destroy", since=100)
    assert round_([soon], held={"install": 5}, policy=DESTROY_KEPT).overdue_at() == at(500)


def test_the_age_of_an_attempt_before_is_no_maximum_wait() -> None:
    """Most of it was spent holding a lease: what went over the limit for it would go over it for ever."""
    heir = waiter("d", operation="destroy", since=601, asked_at=at(-100))
    round_before = round_([heir], held={"install": 5}, policy=DESTROY_KEPT)
    assert (started(round_before), round_before.overdue_at()) == ([], at(500))


def test_the_age_of_an_attempt_before_hides_nobody_past_its_maximum_wait() -> None:
    """It stands ahead of them in their queue, and they proceed all the same."""
    heir = waiter("h", operation="destroy", since=5000, asked_at=at(-1))
    late = waiter("d", operation="destroy", since=700)
    admission = round_([heir, late], held={"install": 5}, policy=DESTROY_KEPT)
    assert (started(admission), admission.overdue_at()) == ([("d", 1)], at(599))


#   waiting, state → when its maximum wait is over
WAITS: list[tuple[Request, dict[str, Any], datetime | None]] = [
    (waiter("never", 6, whole=True), {}, at(600)),  # asks for more than there will be
    (waiter("never", 6, gang_id="g"), {}, at(600)),
    (waiter("kept", gang_id="g"), {}, at(600)),
    (waiter("failing", tenant="f", since=10), {}, at(590)),
    (waiter("failing", tenant="f", since=700), {"blocked_until": at(30)}, at(30)),
    (waiter("parts", 7), {}, at(600)),
    (waiter("starts"), {}, None),
    (waiter("never"), {"drained_reason": "maintenance"}, None),
]


@pytest.mark.parametrize(("request_", "state", "expected"), WAITS)
def test_whatever_holds_it_back_its_maximum_wait_ends(
    request_: Request, state: dict[str, Any], expected: datetime | None
) -> None:
    """So the decision then is not missed; but for a pool that people closed."""
    failing = Tenant(lease_pool_id="p", tenant="f", failures=9, backoff_until=at(3600))
    asked = msgspec.structs.replace(request_, operation="destroy")
    assert round_([asked], policy=DESTROY_KEPT, tenants=[failing], **state).overdue_at() == expected


#   weight, waiting units, whole → started units, of 5
COSTS = [
    (1, 7, False, 5),
    (2, 7, False, 2),
    (3, 7, False, 1),
    (6, 1, False, 0),
    (0, 99, False, 99),
    (2, 2, True, 2),
    (2, 3, True, 0),
]


@pytest.mark.parametrize(("weight", "units", "whole", "expected"), COSTS)
def test_cost_is_units_times_weight(weight: int, units: int, whole: bool, expected: int) -> None:
    """The sum of costs stays within the limit; what weighs nothing is admitted at once."""
    policy = Policy(pacing="off", operations={"install": Operation(weight=weight)})
    assert sum(units for _, units in started(round_([waiter("a", units, whole=whole)], policy=policy))) == expected


def test_what_weighs_nothing_is_not_held_back() -> None:
    """Neither by a full pool, nor by pacing, nor by a Retry-After."""
    policy = Policy(pacing=Pacing(10), operations={"look": Operation(weight=0)})
    admission = round_(
        [waiter("i"), waiter("l", 3, operation="look")],
        held={"install": 5},
        policy=policy,
        blocked_until=at(5),
        paced_until=at(60),
        paced_interval_seconds=10.0,
    )
    assert started(admission) == [("l", 3)]
    assert admission.held == {"install": 5}


#   held, waiting → started
HELD_BACK = [
    (2, [waiter("big", 4, whole=True), waiter("small")], []),  # the small one does not pass the big one
    (1, [waiter("big", 4, whole=True), waiter("small")], ["big"]),
    (2, [waiter("never", 6, whole=True), waiter("small")], ["small"]),  # what can never fit holds back nobody
    (4, [waiter("parts", 4), waiter("small")], ["parts"]),
]


@pytest.mark.parametrize(("held", "waiters", "expected"), HELD_BACK)
def test_the_first_holds_back_the_later(held: int, waiters: list[Request], expected: list[str]) -> None:
    assert [name for name, _ in started(round_(waiters, held={"install": held}))] == expected


def test_a_unit_that_weighs_more_than_the_limit_holds_back_nobody() -> None:
    """Nor does it start in parts ever. However many they are, that they were looked at is all there is to decide."""
    policy = Policy(pacing="off", operations={"heavy": Operation(weight=6)})
    admission = round_([waiter("heavy", 3, operation="heavy"), waiter("small")], policy=policy)
    assert (started(admission), list(admission.waiting)) == ([("small", 1)], ["heavy"])
    assert round_([a, b, c], limit=0, per_queue=3).complete


def test_however_many_can_never_start_others_do() -> None:
    """Neither tenants whose turn comes later wait for them, nor who stands behind them: there are more to be read."""
    never = [waiter(f"n{n}", 6, whole=True, since=9) for n in range(3)]
    admission = round_([*never, waiter("x", tenant="other"), waiter("y", tenant="other")], per_queue=3)
    assert (started(admission), admission.complete) == ([("x", 1), ("y", 1)], True)
    assert admission.hidden == {never[0].queue}
    assert not round_([*never, waiter("x", tenant="other")], per_queue=4).hidden
    # Read further, it is known to its end: only what was read as far as it was to be may go on.
    further = round_([*never, waiter("w"), waiter("x", tenant="other")], per_queue=2, deeper={never[0].queue: 5})
    assert (started(further), further.complete, further.hidden) == ([("w", 1), ("x", 1)], True, set())
    # Of a queue that something starts of, the next may come before others: the round ends, and another one follows.
    first = round_([waiter("w", since=10), *never[1:], waiter("x"), waiter("y", tenant="other")], per_queue=4)
    assert (started(first), first.complete, first.hidden) == ([("w", 1), ("y", 1), ("x", 1)], False, set())


#   waiting → order of starts
ORDER = [
    ([waiter("low"), waiter("high", priority=5)], ["high", "low"]),
    ([waiter("aged", since=1499), waiter("high", priority=5)], ["high", "aged"]),
    ([waiter("aged", since=1500), waiter("high", priority=5)], ["aged", "high"]),  # five steps of waiting
    ([waiter("late"), waiter("early", since=5)], ["early", "late"]),
    (
        [waiter("x1", since=3, tenant="x"), waiter("x2", since=2, tenant="x"), waiter("y1", tenant="y")],
        ["x1", "y1", "x2"],
    ),  # tenants take turns
]


@pytest.mark.parametrize(("waiters", "expected"), ORDER)
def test_order(waiters: list[Request], expected: list[str]) -> None:
    """Levels first, tenants in turn within a level, who asked first within a tenant."""
    assert [name for name, _ in started(round_(waiters))] == expected


def test_weights_of_tenants() -> None:
    """A tenant of weight 3 gets three of four units."""
    waiters = [waiter(f"{tenant}{n}", tenant=tenant) for tenant in ("x", "y") for n in range(40)]
    admission = round_(waiters, limit=40, policy=Policy(pacing="off", tenants={"x": 3.0}))
    assert sum(grant.request.tenant == "x" for grant in admission.grants) == 30


def test_pacing() -> None:
    """A lone job starts at once; then one per interval, whatever is free. Without terms the interval is
    hold / (2 × limit)."""
    first = round_([a, b, c], policy=Policy())
    assert (started(first), first.paced_until, first.wake) == ([("a", 1)], at(120), [at(120)])
    burst = round_([waiter("m", 5)], policy=Policy(pacing=Pacing(10, 3)))
    assert (started(burst), burst.wake) == ([("m", 3)], [at(10)])
    held_back = round_(
        [waiter("big", 2, whole=True), b],
        policy=Policy(pacing=Pacing(10, 2)),
        paced_until=at(10),
        paced_interval_seconds=10.0,
    )
    assert (started(held_back), held_back.wake) == ([], [at(10)])


def test_what_goes_over_the_limit_is_paced_like_a_limit() -> None:
    """It closes the pool for a hold or a limit's worth of starts, not for as long as its units would take."""
    policy = Policy(operations={"destroy": Operation(max_wait_seconds=600)})
    late = [waiter(f"d{n}", 1_000_000, operation="destroy", since=600) for n in range(7)]
    assert round_(late, policy=policy).paced_until == at(1200)
    slow = msgspec.structs.replace(policy, pacing=Pacing(600, 3))
    assert round_(late, policy=slow).paced_until == at(3000)


def test_pacing_follows_the_limit_in_force() -> None:
    """As many starts lie ahead as before, each at its new interval."""
    twice = round_([a], limit=10, policy=Policy(), paced_until=at(120), paced_interval_seconds=120.0)
    assert (started(twice), twice.paced_until) == ([], at(60))


def test_a_pool_that_is_closed_for_a_while_owes_what_it_owed() -> None:
    """A drain and its end are no terms: neither forgives the starts that lie ahead."""
    closed = round_([a], limit=0, policy=Policy(), paced_until=at(600), paced_interval_seconds=12.0, drained_reason="d")
    assert closed.paced_until == at(600)
    assert closed.pacing == Pacing(12)
    never_open = round_([a], limit=0, policy=Policy())
    assert never_open.pacing == Pacing(600)


def test_a_tenant_backs_off() -> None:
    """Its requests are passed over, and keep their place; others start."""
    failing = Tenant(lease_pool_id="p", tenant="t", failures=2, backoff_until=at(40))
    admission = round_([a, waiter("o", tenant="other")], tenants=[failing])
    assert (started(admission), admission.wake) == ([("o", 1)], [at(40)])
    assert admission.waiting == {"a": "tenant t backs off after 2 failures"}
    assert started(round_([a], tenants=[msgspec.structs.replace(failing, backoff_until=NOW)])) == [("a", 1)]


def test_a_group_starts_spread() -> None:
    """One member now, the next after spread / size, even if both are due; others of the tenant pass."""
    group = Group(lease_pool_id="p", name="g", size=3, spread_seconds=90, first_at=at(-60))
    members = [
        waiter("m0", since=60, group_name="g"),
        waiter("m1", since=30, group_name="g"),
        waiter("m2", group_name="g"),
        waiter("other"),
    ]
    admission = round_(members, groups=[group])
    assert [name for name, _ in started(admission)] == ["m0", "other"]
    assert (admission.wake, admission.groups["g"].last_start_at) == ([at(30)], NOW)


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.ADVISORY])
def test_nobody_waits_unless_enforced(mode: Mode) -> None:
    """Everybody starts at once; what would have waited is known, and for how long."""
    waiters = [waiter("one", 5), waiter("two"), waiter("later", since=-30, group_name="g")]
    admission = round_(waiters, policy=Policy(pacing="off", mode=mode))
    assert started(admission) == [("one", 5), ("two", 1), ("later", 1)]
    spared = [(grant.spared_seconds, grant.reason) for grant in admission.grants]
    assert spared == [(None, ""), (240, "5 of 5 held"), (480, "its group starts it later")]
    paced = round_([a, b, c], policy=Policy(mode=mode))
    assert [grant.spared_seconds for grant in paced.grants] == [None, 120, 240]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("stopped", [{"drained_reason": "maintenance"}, {"retired": True}])
def test_nobody_starts_in_a_pool_that_people_stopped(mode: Mode, stopped: dict[str, Any]) -> None:
    """Neither in shadow, nor what weighs nothing, nor a gang."""
    policy = Policy(pacing="off", mode=mode, operations={"look": Operation(weight=0)})
    waiting = [waiter("i"), waiter("l", operation="look", tenant="other"), waiter("g", tenant="third", gang_id="g")]
    admission = round_(waiting, policy=policy, **stopped)
    assert (started(admission), admission.gangs, admission.complete) == ([], [], True)
    assert set(admission.waiting) == {"i", "l", "g"}


def test_a_gang_is_kept_for() -> None:
    """Its units stay free for it; what else is free others may take. Nothing of it starts here alone."""
    admission = round_([waiter("g", 3, gang_id="g"), waiter("x", 1), waiter("y", 2)])
    assert (started(admission), admission.gangs) == ([("x", 1), ("y", 1)], ["g"])
    weightless = Policy(pacing="off", operations={"install": Operation(weight=0)})
    for alone in (
        round_([waiter("g", gang_id="g")], policy=weightless),
        round_([waiter("g", gang_id="g", operation="destroy", since=600)], policy=DESTROY_KEPT),
    ):
        assert (started(alone), alone.gangs) == ([], ["g"])
    short = round_([waiter("g", 3, gang_id="g"), waiter("x", 1)], held={"install": 3})
    assert (started(short), short.gangs) == ([], [])


def test_a_queue_that_runs_out_ends_the_round() -> None:
    """Who comes next in it is not known, so nobody is granted before them."""
    admission = round_([waiter("x1", since=2), waiter("y1", since=1, tenant="y")], per_queue=1)
    assert (started(admission), admission.complete) == ([("x1", 1)], False)
    assert round_([a, b], per_queue=3).complete


def test_a_gang_that_is_held_up_keeps_nothing() -> None:
    """Neither what it would keep at its turn, nor what it lacks, is kept from others; and it starts nowhere alone."""
    gang = waiter("g", 3, gang_id="g")
    at_its_turn = round_([gang, waiter("x", 4)], held_up={"g": "b is drained"})
    assert (started(at_its_turn), at_its_turn.gangs) == ([("x", 4)], [])
    assert at_its_turn.waiting["g"] == "b is drained"
    lacking = round_([gang, waiter("x")], held={"install": 4}, held_up={"g": "b is drained"})
    assert started(lacking) == [("x", 1)]
    shadow = round_([gang, waiter("x")], policy=Policy(pacing="off", mode=Mode.SHADOW), held_up={"g": "b is drained"})
    assert (started(shadow), shadow.gangs) == ([("x", 1)], [])


#   the pool of its other member, that member → whether the gang is held up
NEVER = [
    ({}, {}, False),
    ({"held": {"install": 5}}, {}, False),  # units come back
    ({"blocked_until": at(9)}, {}, False),  # time passes
    ({"drained_reason": "maintenance"}, {}, True),
    ({"drained_reason": "maintenance", "policy": Policy(mode=Mode.SHADOW)}, {}, True),
    ({"retired": True}, {}, True),
    ({}, {"waiting_units": 6}, True),
    ({"policy": Policy(operations={"install": Operation(weight=2)})}, {"waiting_units": 3}, True),
    ({"policy": DESTROY_KEPT}, {"waiting_units": 4}, True),  # of five, two are kept for destroys
    ({"policy": DESTROY_KEPT}, {"waiting_units": 6, "operation": "destroy"}, False),  # goes over the limit in time
    ({"policy": Policy(operations={"install": Operation(weight=0)})}, {"waiting_units": 6}, False),
    ({"policy": Policy(mode=Mode.SHADOW)}, {"waiting_units": 6}, False),
    ({}, {"lapsed": True}, True),
    ({"drained_reason": "maintenance"}, {"waiting_units": 0}, False),  # cancelled: it is given up at its turn
]


@pytest.mark.parametrize(("pool", "member", "expected"), NEVER)
def test_what_holds_a_gang_up(pool: dict[str, Any], member: dict[str, Any], expected: bool) -> None:
    """What neither time nor units that come back will change: people, terms, and askers that are gone."""
    other = LeasePool(id="p", limit_units=5, hold_seconds=1200, ttl_seconds=300, reserve_seconds=180)
    other = msgspec.structs.replace(other, **pool)
    assert bool(gangs_held_up([waiter("g", **({"gang_id": "g"} | member))], {"p": other})) is expected


def test_a_gang_is_told_what_holds_it_up() -> None:
    drained = LeasePool(
        id="p", limit_units=5, hold_seconds=1200, ttl_seconds=300, reserve_seconds=180, drained_reason="maintenance"
    )
    told = gangs_held_up([waiter("g", gang_id="g")], {"p": drained})
    assert told == {"g": "its gang cannot start in p: drained: maintenance"}
