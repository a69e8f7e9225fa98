"""Admission by operation, priority, tenant, group and mode: one case per line."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from slipway_lease_broker.domain.admit import OVER_THE_LIMIT, Admission
from slipway_lease_broker.domain.gangs import find_blocked_gangs
from slipway_lease_broker.domain.ledger import Group, LeasePool, Request, Tenant
from slipway_lease_broker.domain.limits import Limit
from slipway_lease_broker.domain.paces import OPERATIONS_MAX, SHARED
from slipway_lease_broker.domain.pacing import Pace, Pacing
from slipway_lease_broker.domain.situation import Queue, Situation
from slipway_lease_broker.domain.terms import Mode, Operation, Policy

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SLOW = Policy(max_interval_seconds=600)
DESTROY_RESERVED = Policy(pacing="off", operations={"destroy": Operation(reserved_units=2, max_wait_seconds=600)})


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def paced(until: float, interval: float, operation: str = "install") -> dict[str, Pace]:
    """Pace of an operation, in seconds from now."""
    return {operation: Pace(until=at(until), interval_seconds=interval)}


def waiter(name: str, units: int = 1, *, since: float = 0, **fields: Any) -> Request:
    made = Request(
        id=name,
        lease_pool_id="p",
        tenant="t",
        operation="install",
        requested_units=units,
        waiting_units=units,
        requested_at=at(-since),
        last_requested_at=NOW,
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
    blocked_gangs: Mapping[str, str] | None = None,
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
    situation = Situation(
        waiters=placed,
        per_queue=per_queue,
        deeper=deeper or {},
        tenants=tenants,
        groups=groups,
        blocked_gangs=blocked_gangs or {},
    )
    return Admission(pool, Limit(limit, "declared", "as declared"), situation, NOW).run()


def started(admission: Admission) -> list[tuple[str, int]]:
    return [(grant.request.id, grant.units) for grant in admission.grants]


a, b, c = (waiter(name) for name in "abc")


#   held, waiting → started
OPERATIONS: list[tuple[dict[str, int], list[Request], list[str]]] = [
    ({}, [waiter(f"i{n}") for n in range(5)], ["i0", "i1", "i2"]),  # two of five are reserved for destroys
    ({"destroy": 1}, [waiter(f"i{n}") for n in range(5)], ["i0", "i1", "i2"]),  # one held by them, one reserved
    (
        {"destroy": 3},
        [waiter(f"i{n}") for n in range(5)],
        ["i0", "i1"],
    ),  # nothing reserved, and a heavy operation counts its weight
    ({"destroy": 5}, [waiter("i")], []),  # many destroys block creates
    (
        {"install": 3},
        [waiter("i"), waiter("d", operation="destroy")],
        ["d"],
    ),  # reserved units are granted while others wait
    (
        {"install": 3},
        [waiter("i"), waiter("d", 2, operation="destroy", whole=True), waiter("e", operation="destroy")],
        ["d"],
    ),
    (
        {"install": 2, "destroy": 1},
        [waiter("i", 2, whole=True), waiter("d", operation="destroy"), waiter("e", operation="destroy")],
        ["d"],
    ),  # of its two reserved units one is held
    ({"install": 5}, [waiter("d", operation="destroy", since=599)], []),
    ({"install": 5}, [waiter("d", operation="destroy", since=600)], ["d"]),  # past its maximum wait
    ({"install": 5}, [waiter("i", since=900), waiter("d", operation="destroy", since=700)], ["d"]),
]


@pytest.mark.parametrize(("held", "waiters", "expected"), OPERATIONS)
def test_operations(held: dict[str, int], waiters: list[Request], expected: list[str]) -> None:
    """Units reserved for an operation are available to it alone; an operation past its maximum wait goes over the
    limit."""
    admission = round_(waiters, held=held, policy=DESTROY_RESERVED)
    assert [name for name, _ in started(admission)] == expected


def test_units_that_are_reserved_for_others_are_a_reason() -> None:
    for held, reason in (
        ({"install": 3}, "3 of 5 held, 2 reserved for others"),
        ({"install": 3, "destroy": 1}, "4 of 5 held, 1 reserved for others"),
    ):
        assert round_([waiter("i")], held=held, policy=DESTROY_RESERVED).waiting == {"i": reason}


def test_a_cost_that_fits_its_reserved_units_does_not_go_over_the_limit() -> None:
    heavy = Operation(weight=2, reserved_units=4, max_wait_seconds=10)
    policy = Policy(pacing="off", operations={"install": heavy})
    for limit, reason in ((4, ""), (3, OVER_THE_LIMIT)):
        (grant,) = round_([waiter("i", 2, since=20)], limit=limit, policy=policy).grants
        assert (grant.units, grant.reason) == (2, reason)


def test_past_its_maximum_wait_has_a_reason() -> None:
    """Only if it really goes over the limit; never in a drained or archived pool, nor before a Retry-After has
    passed."""
    late = waiter("d", operation="destroy", since=600)
    (over,) = round_([late], held={"install": 5}, policy=DESTROY_RESERVED).grants
    assert over.reason == OVER_THE_LIMIT
    (within,) = round_([late], policy=DESTROY_RESERVED).grants
    assert within.reason == ""
    assert started(round_([late], limit=0, policy=DESTROY_RESERVED, drained_reason="maintenance")) == []
    blocked = round_([late], policy=DESTROY_RESERVED, blocked_until=at(9))
    assert (started(blocked), blocked.wake_times) == ([], [at(9)])
    soon = waiter("d", operation="destroy", since=100)
    assert round_([soon], held={"install": 5}, policy=DESTROY_RESERVED).overdue_at == at(500)


def test_an_inherited_age_does_not_count_for_the_maximum_wait() -> None:
    """Most of that age was spent holding a lease; otherwise such a request would always go over the limit."""
    heir = waiter("d", operation="destroy", since=601, requested_at=at(-100))
    round_before = round_([heir], held={"install": 5}, policy=DESTROY_RESERVED)
    assert (started(round_before), round_before.overdue_at) == ([], at(500))


def test_an_inherited_age_hides_no_overdue_request() -> None:
    """It stands ahead of overdue requests in their queue, and they still proceed."""
    heir = waiter("h", operation="destroy", since=5000, requested_at=at(-1))
    late = waiter("d", operation="destroy", since=700)
    admission = round_([heir, late], held={"install": 5}, policy=DESTROY_RESERVED)
    assert (started(admission), admission.overdue_at) == ([("d", 1)], at(599))


#   waiting, state → end of its maximum wait
WAITS: list[tuple[Request, dict[str, Any], datetime | None]] = [
    (waiter("never", 6, whole=True), {}, at(600)),  # requests more than there will ever be
    (waiter("never", 6, gang_id="g"), {}, at(600)),
    (waiter("kept", gang_id="g"), {}, at(600)),
    (waiter("failing", tenant="f", since=10), {}, at(590)),
    (waiter("failing", tenant="f", since=700), {"blocked_until": at(30)}, at(30)),
    (waiter("parts", 7), {}, at(600)),
    (waiter("starts"), {}, None),
    (waiter("never"), {"drained_reason": "maintenance"}, None),
]


@pytest.mark.parametrize(("request_", "state", "expected"), WAITS)
def test_the_end_of_a_maximum_wait_is_a_wake_up_time(
    request_: Request, state: dict[str, Any], expected: datetime | None
) -> None:
    """For any reason that blocks the request, except in a drained or archived pool: the decision is not missed."""
    failing = Tenant(lease_pool_id="p", tenant="f", failures=9, backoff_until=at(3600))
    waiting = msgspec.structs.replace(request_, operation="destroy")
    assert round_([waiting], policy=DESTROY_RESERVED, tenants=[failing], **state).overdue_at == expected


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
    """The sum of costs stays within the limit; an operation of weight 0 is admitted at once."""
    policy = Policy(pacing="off", operations={"install": Operation(weight=weight)})
    assert sum(units for _, units in started(round_([waiter("a", units, whole=whole)], policy=policy))) == expected


def test_weight_0_is_not_blocked() -> None:
    """Neither by a full pool, nor by pacing, nor by a Retry-After; it starts before those past their maximum wait."""
    policy = Policy(pacing=Pacing(10), operations={"look": Operation(weight=0)})
    admission = round_(
        [waiter("i"), waiter("l", 3, operation="look")],
        held={"install": 5},
        policy=policy,
        blocked_until=at(5),
        paces=paced(60, 10),
    )
    assert started(admission) == [("l", 3)]
    assert admission.held == {"install": 5}
    operations = {"look": Operation(weight=0), "destroy": Operation(max_wait_seconds=600)}
    late = waiter("d", operation="destroy", since=700)
    overdue = round_([late, waiter("l", operation="look")], policy=Policy(pacing="off", operations=operations))
    assert started(overdue) == [("l", 1), ("d", 1)]


#   held, waiting → started
HELD_BACK = [
    (2, [waiter("big", 4, whole=True), waiter("small")], []),  # a small request does not pass a large one
    (1, [waiter("big", 4, whole=True), waiter("small")], ["big"]),
    (2, [waiter("never", 6, whole=True), waiter("small")], ["small"]),  # a request that can never fit blocks no other
    (4, [waiter("parts", 4), waiter("small")], ["parts"]),
]


@pytest.mark.parametrize(("held", "waiters", "expected"), HELD_BACK)
def test_the_first_blocks_later_requests(held: int, waiters: list[Request], expected: list[str]) -> None:
    assert [name for name, _ in started(round_(waiters, held={"install": held}))] == expected


def test_a_unit_that_weighs_more_than_the_limit_blocks_nothing() -> None:
    """Nor is it ever granted in part. However many such requests there are, the decision is complete."""
    policy = Policy(pacing="off", operations={"heavy": Operation(weight=6)})
    admission = round_([waiter("heavy", 3, operation="heavy"), waiter("small")], policy=policy)
    assert (started(admission), list(admission.waiting)) == ([("small", 1)], ["heavy"])
    many = round_([a, b, c], limit=0, per_queue=3)
    assert (many.complete, many.hidden) == (True, set())


def test_others_start_behind_many_that_can_never_start() -> None:
    """Neither tenants whose turn comes later nor requests behind them are blocked: more requests are to be read."""
    never = [waiter(f"n{n}", 6, whole=True, since=9) for n in range(3)]
    admission = round_([*never, waiter("x", tenant="other"), waiter("y", tenant="other")], per_queue=3)
    assert (started(admission), admission.complete) == ([("x", 1), ("y", 1)], True)
    assert admission.hidden == {never[0].queue}
    assert not round_([*never, waiter("x", tenant="other")], per_queue=4).hidden
    # After reading further the queue is known to its end; only queues that were read as far as requested may go on.
    further = round_([*never, waiter("w"), waiter("x", tenant="other")], per_queue=2, deeper={never[0].queue: 5})
    assert (started(further), further.complete, further.hidden) == ([("w", 1), ("x", 1)], True, set())
    # If a request of a queue starts, its next one may come before others: the round ends, and another one follows.
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
    """Levels first, tenants in turn within a level, the oldest request first within a tenant."""
    assert [name for name, _ in started(round_(waiters))] == expected


def test_weights_of_tenants() -> None:
    """A tenant of weight 3 gets three of four units."""
    waiters = [waiter(f"{tenant}{n}", tenant=tenant) for tenant in ("x", "y") for n in range(40)]
    admission = round_(waiters, limit=40, policy=Policy(pacing="off", tenants={"x": 3.0}))
    assert sum(grant.request.tenant == "x" for grant in admission.grants) == 30


def test_pacing() -> None:
    """A single job starts at once, then one per interval, whatever units are free. Without terms the interval is hold /
    (2 × limit), up to the maximum."""
    assert round_([a, b, c], policy=Policy()).wake_times == [at(30)]
    first = round_([a, b, c], policy=SLOW)
    assert (started(first), first.paces.after(), first.wake_times) == ([("a", 1)], paced(120, 120), [at(120)])
    burst = round_([waiter("m", 5)], policy=Policy(pacing=Pacing(10, 3)))
    assert (started(burst), burst.wake_times) == ([("m", 3)], [at(10)])
    delayed = round_(
        [waiter("big", 2, whole=True), b],
        policy=Policy(pacing=Pacing(10, 2)),
        paces=paced(10, 10),
    )
    assert (started(delayed), delayed.wake_times) == ([], [at(10)])


def test_starts_over_the_limit_delay_at_most_a_limit_of_starts() -> None:
    """They delay later starts by a hold or a limit's worth of starts, not for as long as their units would take."""
    policy = Policy(max_interval_seconds=600, operations={"destroy": Operation(max_wait_seconds=600)})
    late = [waiter(f"d{n}", 1_000_000, operation="destroy", since=600) for n in range(7)]
    assert round_(late, policy=policy).paces.until("destroy") == at(1200)
    slow = msgspec.structs.replace(policy, pacing=Pacing(600, 3))
    assert round_(late, policy=slow).paces.until("destroy") == at(3000)


def test_pacing_follows_the_limit_in_force() -> None:
    """The same number of starts lies ahead, each at its new interval."""
    twice = round_([a], limit=10, policy=SLOW, paces=paced(120, 120))
    assert (started(twice), twice.paces.after()) == ([], paced(60, 60))


def test_a_drain_does_not_reset_pacing() -> None:
    """Draining and undraining are no new terms: the starts that lie ahead still count."""
    closed = round_([a], limit=0, policy=SLOW, paces=paced(600, 12), drained_reason="d")
    assert closed.paces.after() == paced(600, 12)
    assert closed.paces.pacing("install") == Pacing(12)
    never_open = round_([a], limit=0, policy=SLOW)
    assert never_open.paces.pacing("install") == Pacing(600)


def test_each_operation_is_paced_by_itself() -> None:
    """The starts of one delay no other, and a later request of another operation starts while the first one waits."""
    waiters = [waiter("i1"), waiter("i2"), waiter("d1", operation="destroy"), waiter("d2", operation="destroy")]
    admission = round_(waiters, policy=SLOW, paces=paced(60, 120))
    assert (started(admission), set(admission.wake_times)) == ([("d1", 1)], {at(60), at(120)})
    assert admission.paces.after() == paced(60, 120) | paced(120, 120, "destroy")
    assert admission.waiting == {
        "i1": "paced: next start in 60 s; 0 of 5 held",
        "d2": "paced: next start in 120 s; 1 of 5 held",
    }
    own = {"destroy": Operation(pacing=Pacing(10, 2)), "install": Operation(pacing="off")}
    admission = round_(waiters, policy=msgspec.structs.replace(SLOW, operations=own))
    assert [name for name, _ in started(admission)] == ["i1", "i2", "d1", "d2"]
    assert admission.paces.after() == paced(20, 10, "destroy")


def test_a_paced_request_is_served_before_later_ones_of_other_operations() -> None:
    """Once its time has come, the next free unit is for it: others do not starve it."""
    waiters = [waiter("i", since=10), waiter("d", operation="destroy")]
    assert started(round_(waiters, limit=1, policy=SLOW, paces=paced(1, 600))) == [("d", 1)]
    assert started(round_(waiters, limit=1, policy=SLOW, paces=paced(0, 600))) == [("i", 1)]


def test_names_for_each_job_do_not_evade_pacing() -> None:
    """A few operations that are not declared have a pace of their own, all others share one."""
    waiters = [waiter(f"r{n}", operation=f"install-{n}") for n in range(9)]
    declared = {"launch": Operation()}
    admission = round_(
        [waiter("l", operation="launch"), *waiters], limit=9, policy=msgspec.structs.replace(SLOW, operations=declared)
    )
    assert len(admission.grants) == 1 + OPERATIONS_MAX + 1
    assert set(admission.paces.after()) == {"launch", SHARED, *(f"install-{n}" for n in range(OPERATIONS_MAX))}


@pytest.mark.parametrize(("limit", "installing"), [(50, OPERATIONS_MAX + 1), (2, 0)], ids=["paced", "full"])
def test_names_for_each_job_cost_no_look_each(limit: int, installing: int) -> None:
    """With as many operations as one token may name, a round would take minutes: it ends with the first one that waits.
    What is reserved for an operation is left to it."""
    waiters = [waiter(f"r{n}", operation=f"install-{n}") for n in range(200)]
    policy = msgspec.structs.replace(SLOW, operations={"destroy": Operation(reserved_units=1)})
    admission = round_([*waiters, waiter("d", operation="destroy")], limit=limit, held={"install": 1}, policy=policy)
    assert len(started(admission)) == installing + 1
    assert started(admission)[-1] == ("d", 1)
    assert list(admission.waiting) == [f"r{installing}"]


def test_a_tenant_backs_off() -> None:
    """Its requests are skipped and keep their place; others start."""
    failing = Tenant(lease_pool_id="p", tenant="t", failures=2, backoff_until=at(40))
    admission = round_([a, waiter("o", tenant="other")], tenants=[failing])
    assert (started(admission), admission.wake_times) == ([("o", 1)], [at(40)])
    assert admission.waiting == {"a": "tenant t backs off after 2 failures"}
    assert started(round_([a], tenants=[msgspec.structs.replace(failing, backoff_until=NOW)])) == [("a", 1)]


def test_a_group_starts_spread() -> None:
    """One member now, the next after spread / size even if both are due; other requests of the tenant pass."""
    group = Group(lease_pool_id="p", name="g", size=3, spread_seconds=90, first_at=at(-60))
    members = [
        waiter("m0", since=60, group_name="g"),
        waiter("m1", since=30, group_name="g"),
        waiter("m2", group_name="g"),
        waiter("other"),
    ]
    admission = round_(members, groups=[group])
    assert [name for name, _ in started(admission)] == ["m0", "other"]
    assert (admission.wake_times, admission.groups["g"].last_start_at) == ([at(30)], NOW)


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.ADVISORY])
def test_nothing_waits_unless_enforced(mode: Mode) -> None:
    """All requests start at once; the wait that each would have had is known."""
    waiters = [waiter("one", 5), waiter("two"), waiter("later", since=-30, group_name="g")]
    admission = round_(waiters, policy=Policy(pacing="off", mode=mode))
    assert started(admission) == [("one", 5), ("two", 1), ("later", 1)]
    spared = [(grant.spared_seconds, grant.reason) for grant in admission.grants]
    assert spared == [(None, ""), (240, "5 of 5 held"), (480, "its group starts it later")]
    early = round_([a, b, c], policy=Policy(mode=mode))
    assert [grant.spared_seconds for grant in early.grants] == [None, 30, 60]
    full = round_([a], held={"install": 5}, policy=Policy(mode=mode, pacing=Pacing(600)), paces=paced(1000, 600))
    assert [grant.spared_seconds for grant in full.grants] == [1000]
    assert started(round_([waiter("parts", 7)], policy=Policy(pacing="off", mode=mode))) == [("parts", 5), ("parts", 2)]
    for most, spared_seconds in ((None, None), (60.0, 240.0)):  # without a maximum wait it would have waited forever
        terms = {"install": Operation(max_wait_seconds=most)}
        (never,) = round_(
            [waiter("never", 6, whole=True)], policy=Policy(pacing="off", mode=mode, operations=terms)
        ).grants
        assert (never.units, never.spared_seconds) == (6, spared_seconds)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("stopped", [{"drained_reason": "maintenance"}, {"archived": True}])
def test_nothing_starts_in_a_drained_or_archived_pool(mode: Mode, stopped: dict[str, Any]) -> None:
    """Neither in shadow mode, nor with weight 0, nor in a gang."""
    policy = Policy(pacing="off", mode=mode, operations={"look": Operation(weight=0)})
    waiting = [waiter("i"), waiter("l", operation="look", tenant="other"), waiter("g", tenant="third", gang_id="g")]
    admission = round_(waiting, policy=policy, **stopped)
    assert (started(admission), admission.gangs, admission.complete) == ([], [], True)
    assert set(admission.waiting) == {"i", "l", "g"}


def test_units_are_reserved_for_a_gang() -> None:
    """Its units stay free for it, others may take the rest. No member starts alone."""
    admission = round_([waiter("g", 3, gang_id="g"), waiter("x", 1), waiter("y", 2)])
    assert (started(admission), admission.gangs) == ([("x", 1), ("y", 1)], ["g"])
    assert admission.waiting["y"] == "2 of 5 held, 3 reserved for gangs"
    two = round_([waiter("g", 2, gang_id="g"), waiter("h", 2, gang_id="h"), waiter("x", 2)])
    assert (started(two), two.gangs) == ([("x", 1)], ["g", "h"])
    weightless = Policy(pacing="off", operations={"install": Operation(weight=0)})
    for alone in (
        round_([waiter("g", gang_id="g")], policy=weightless),
        round_([waiter("g", gang_id="g", operation="destroy", since=600)], policy=DESTROY_RESERVED),
    ):
        assert (started(alone), alone.gangs) == ([], ["g"])
    short = round_([waiter("g", 3, gang_id="g"), waiter("x", 1)], held={"install": 3})
    assert (started(short), short.gangs) == ([], [])


def test_a_queue_that_runs_out_ends_the_round() -> None:
    """The next request of that queue is unknown, so no later request is granted before it."""
    admission = round_([waiter("x1", since=2), waiter("y1", since=1, tenant="y")], per_queue=1)
    assert (started(admission), admission.complete) == ([("x1", 1)], False)
    assert round_([a, b], per_queue=3).complete


def test_a_blocked_gang_reserves_nothing() -> None:
    """Neither the units reserved at its turn nor the units it lacks are withheld from others, and it never starts
    alone."""
    gang = waiter("g", 3, gang_id="g")
    at_its_turn = round_([gang, waiter("x", 4)], blocked_gangs={"g": "b is drained"})
    assert (started(at_its_turn), at_its_turn.gangs) == ([("x", 4)], [])
    assert at_its_turn.waiting["g"] == "b is drained"
    lacking = round_([gang, waiter("x")], held={"install": 4}, blocked_gangs={"g": "b is drained"})
    assert started(lacking) == [("x", 1)]
    shadow = round_(
        [gang, waiter("x")], policy=Policy(pacing="off", mode=Mode.SHADOW), blocked_gangs={"g": "b is drained"}
    )
    assert (started(shadow), shadow.gangs) == ([("x", 1)], [])


#   the pool of its other member, that member → whether the gang is blocked
NEVER = [
    ({}, {}, False),
    ({"held": {"install": 5}}, {}, False),  # units will be released
    ({"blocked_until": at(9)}, {}, False),  # time passes
    ({"drained_reason": "maintenance"}, {}, True),
    ({"drained_reason": "maintenance", "policy": Policy(mode=Mode.SHADOW)}, {}, True),
    ({"archived": True}, {}, True),
    ({}, {"waiting_units": 6}, True),
    ({"policy": Policy(operations={"install": Operation(weight=2)})}, {"waiting_units": 3}, True),
    ({"policy": DESTROY_RESERVED}, {"waiting_units": 4}, True),  # two of five are reserved for destroys
    ({"policy": DESTROY_RESERVED}, {"waiting_units": 6, "operation": "destroy"}, False),  # goes over the limit in time
    ({"policy": Policy(operations={"install": Operation(weight=0)})}, {"waiting_units": 6}, False),
    ({"policy": Policy(mode=Mode.SHADOW)}, {"waiting_units": 6}, False),
    ({}, {"lapsed": True}, True),
    ({"drained_reason": "maintenance"}, {"waiting_units": 0}, False),  # cancelled: it is given up at its turn
]


@pytest.mark.parametrize(("pool", "member", "expected"), NEVER)
def test_reasons_that_block_a_gang(pool: dict[str, Any], member: dict[str, Any], expected: bool) -> None:
    """Reasons that neither time nor released units change: operators, terms, and lapsed requests."""
    other = LeasePool(id="p", limit_units=5, hold_seconds=1200, ttl_seconds=300, reserve_seconds=180)
    other = msgspec.structs.replace(other, **pool)
    assert bool(find_blocked_gangs([waiter("g", **({"gang_id": "g"} | member))], {"p": other})) is expected


def test_a_blocked_gang_has_a_reason() -> None:
    drained = LeasePool(
        id="p", limit_units=5, hold_seconds=1200, ttl_seconds=300, reserve_seconds=180, drained_reason="maintenance"
    )
    found = find_blocked_gangs([waiter("alone"), waiter("g", gang_id="g")], {"p": drained})
    assert found == {"g": "its gang cannot start in p: drained: maintenance"}
    running = msgspec.structs.replace(drained, drained_reason=None)
    found = find_blocked_gangs([waiter("g", gang_id="g", lapsed=True)], {"p": running})
    assert found == {"g": "the request of its gang in p has lapsed"}
