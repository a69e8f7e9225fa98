"""Rows that lease commands write: whole requests and leases, the history of each change, and what a start counts as."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.lease import LeaseGroup, LeaseReleased, ReplacedLease
from slipway_lease_broker.domain.commands import LeaseCommand, apply_command, apply_permitted
from slipway_lease_broker.domain.exchange import Submission
from slipway_lease_broker.domain.ledger import (
    Entry,
    Holding,
    Lease,
    Ledger,
    Request,
    State,
    Tenant,
    UnleasedBy,
    accrue_idle,
)
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.submissions import of_request, record
from slipway_lease_broker.domain.terms import Bounds, Mode, Operation, Policy
from slipway_lease_broker.domain.unleased import Allowance, Start, charge, lost_id
from tests.support.lease_rows import NOW, POOL, REQUEST
from tests.unit.lease_broker.test_submissions import (
    GONE,
    HELD,
    again,
    asked,
    cancel,
    lease,
    ledger_of,
    own,
    release,
    submitted,
)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize("over_kafka", [False, True])
@pytest.mark.parametrize("apply", [apply_command, apply_permitted])
def test_a_new_request_is_stored_as_it_was_made(apply: Callable[..., Any], over_kafka: bool) -> None:
    """It counts against the bound of its token, unless it came over Kafka; until then the pool counts idle units."""
    idle = msgspec.structs.replace(POOL, limit_in_force=4, waiting_units=1, counted_at=at(-10))
    ledger, sender = Ledger([idle], [], []), Sender(name="ann", holder="h", over_kafka=over_kafka)
    group = LeaseGroup(name="g", size=2, spread_seconds=9)
    command = again(units=3, priority=4, whole=True, hold_seconds=60.0, group=group)
    apply(ledger, command, NOW, sender, traceparent="00-1-2-01", gang_id="gang")
    (group_row,) = ledger.groups_to_save()
    assert ledger.requests_to_add() == [
        Request(
            id="r",
            lease_pool_id="p",
            tenant="t",
            operation="install",
            requested_units=3,
            waiting_units=3,
            requested_at=NOW,
            last_requested_at=NOW,
            since=NOW,
            traceparent="00-1-2-01",
            priority=4,
            whole=True,
            hold_seconds=60.0,
            owner="ann",
            group_name=group_row.name,
            gang_id="gang",
            over_kafka=over_kafka,
            holder="h",
        )
    ]
    pool = ledger.pools["p"]
    assert (pool.waiting_units, pool.waiting_requests) == (4, 1)
    assert pool.waiting_by == ({} if over_kafka else {"ann": 1})
    assert (pool.counted_at, pool.idle_unit_seconds) == (NOW, 10.0)


#   limit in force, held cost, units that wait, seconds since they were counted → idle unit seconds
IDLE: Final = [
    (5, 3, 4, 10, 20.0),
    (5, 3, 1, 10, 10.0),
    (5, 3, 0, 10, 0.0),
    (5, 7, 4, 10, 0.0),  # its limit was lowered
    (5, 3, 4, -10, 0.0),  # the clock was set back
    (5, 3, 4, 0.5, 1.0),
    (None, 3, 4, 10, 0.0),  # not decided yet
    (5, 3, 4, None, 0.0),
]


@pytest.mark.parametrize(("limit", "held", "waiting", "seconds", "idle"), IDLE)
def test_free_units_are_idle_while_requests_wait(
    limit: int | None, held: int, waiting: int, seconds: float | None, idle: float
) -> None:
    counted_at = None if seconds is None else at(-seconds)
    pool = msgspec.structs.replace(
        POOL, limit_in_force=limit, held={"install": held}, waiting_units=waiting, counted_at=counted_at
    )
    after = accrue_idle(msgspec.structs.replace(pool, idle_unit_seconds=3.0), NOW)
    assert (after.idle_unit_seconds, after.counted_at) == (3.0 + idle, NOW)


#   tenant of the request, sender, known tenants → tenants named by its token
NAMED: Final[list[tuple[str, dict[str, Any], list[str], int]]] = [
    ("t", {}, [], 1),
    ("t", {}, ["t"], 0),
    ("t", {}, ["u"], 1),
    ("ann", {}, [], 0),
    ("t", {"over_kafka": True}, [], 0),
]


@pytest.mark.parametrize(("tenant", "sender", "known", "named"), NAMED)
def test_a_tenant_is_charged_to_the_token_that_names_it(
    tenant: str, sender: dict[str, Any], known: list[str], named: int
) -> None:
    ledger = ledger_of()
    ledger.tenants = {("p", name): Tenant(lease_pool_id="p", tenant=name) for name in known}
    ledger.tenants_by = {("p", "ann"): 3}
    apply_command(ledger, again(tenant=tenant), NOW, Sender(name="ann", **sender))
    assert ledger.tenants_to_save() == [Tenant(lease_pool_id="p", tenant=tenant, owner="ann")] * named
    assert ledger.tenants_by == {("p", "ann"): 3 + named}


@pytest.mark.parametrize(("asks", "holder"), [("h2", "h2"), ("", "h1")])
def test_a_lapsed_request_that_is_repeated_waits_again(asks: str, holder: str) -> None:
    """For the process that asked last, if it gave its name."""
    lapsed = asked(lapsed=True, holder="h1", last_requested_at=at(-900))
    ledger = Ledger([POOL], [], [lapsed])
    for _ in range(2):
        apply_command(ledger, again(), NOW, Sender(name="ann", holder=asks))
    assert ledger.requests_to_save() == [asked(holder=holder)]
    pool = ledger.pools["p"]
    assert (pool.waiting_units, pool.waiting_requests, pool.waiting_by) == (2, 1, {"ann": 1})
    assert ledger.dirty == {"p"}


def test_a_batch_over_kafka_is_answered_by_events_alone() -> None:
    """Those of a command do not replace those of the ones before; its trace goes on."""
    ledger = ledger_of(asked(0), own())
    commands: list[LeaseCommand] = [release(units=1), again(), again(request_id="new"), cancel("new")]
    sender = Sender(name="ann", over_kafka=True)
    batch = [Submission(command=each, sender=sender, answered=False, traceparent="00-1-2-01") for each in commands]
    assert record(batch, ledger, NOW) == []
    assert [event.type.split(".")[-2] for event in ledger.events] == ["released", "granted", "queued"]
    new = ledger.requests["p", "new"]
    assert (new.requested_at, new.traceparent, new.waiting_units) == (NOW, "00-1-2-01", 1)
    over_http = Submission(command=again(request_id="http"), sender=Sender(name="ann"), traceparent="00-3-4-01")
    record([over_http], ledger, NOW)
    assert ledger.requests["p", "http"].traceparent == "00-3-4-01"


def entry(kind: str, reason: str, **changes: Any) -> Entry:
    about: dict[str, Any] = {"lease_id": "l1", "request_id": "r", "actor": "ann"}
    return Entry(lease_pool_id="p", at=NOW, kind=kind, reason=reason, **(about | changes))


SILENT: Final = own(holders={"h1": Holding(since=NOW)}, extended_at=at(-226), expires_at=at(1))
REPLACING: Final = again(request_id="new", replaces=ReplacedLease(lease_id="l1", fencing_token=1))
#   rows, command, sender → history
HISTORY: Final[list[tuple[Sequence[Lease | Request], LeaseCommand, dict[str, Any], list[Entry]]]] = [
    ([own(3)], release(units=1), {}, [entry("released", "1 unit released: done", units=1)]),
    ([own(3)], release(result="failed"), {}, [entry("released", "3 units released: failed", units=3)]),
    ([own()], REPLACING, {}, [entry("released", "2 units released: replaced", units=2)]),
    ([asked(0), own()], cancel(), {}, [entry("released", "2 units released: cancelled", units=2)]),
    ([own(holders=HELD)], release(), {"holder": "r1"}, [entry("left", "r1 has released it: done")]),
    ([asked(0), own(state=State.RESERVED)], again(), {}, [entry("confirmed", "confirmed by its holder")]),
    ([asked(0), own(holders=HELD)], again(), {"holder": "b", "join": True}, [entry("joined", "b holds it, too")]),
    (
        [asked(0), SILENT],
        again(),
        {"holder": "h2"},
        [entry("taken-over", "h2 holds it instead of h1, which was not heard of")],
    ),
    (
        [msgspec.structs.replace(GONE, granted_units=2)],
        release(throttled=True),
        {},
        [
            entry("reported-late", "released after its hold had ended: done"),
            entry("throttled", "its holder was throttled by the provider"),
        ],
    ),
    (
        [own(), lease(2, State.CONFIRMED, request_id="other", owner="ben", units=9)],
        release(throttled=True),
        {},
        [
            entry("released", "2 units released: done", units=2),
            entry(
                "throttled",
                "its holder was throttled by the provider; one report moves only its own tenant",
            ),
        ],
    ),
]


@pytest.mark.parametrize(("rows", "command", "sender", "history"), HISTORY)
def test_each_change_of_a_lease_is_in_its_history(
    rows: Sequence[Lease | Request], command: LeaseCommand, sender: dict[str, Any], history: list[Entry]
) -> None:
    ledger = ledger_of(*rows, pool=msgspec.structs.replace(POOL, last_token=1))
    held = [each for each in rows if isinstance(each, Lease) and each.live]
    ledger.held_by = {"p": {each.owner: each.units for each in held}}
    submitted(ledger, command, confirm=True, **sender)
    assert ledger.history == history
    assert ledger.dirty == (set() if history[0].kind in ("confirmed", "joined", "left", "taken-over") else {"p"})


def test_a_release_by_one_of_several_holders_counts_once() -> None:
    """Units return with the last of them. A name that is unknown, or has left, changes nothing, and a part of the units
    is no part of what each of them uses."""
    ledger = ledger_of(own(holders=HELD))
    ledger.deadlines["p"] = at(9)
    for holder, units in (("c", 2), ("r1", 1)):
        apply_command(ledger, release(result="failed", units=units), NOW, Sender(name="ann", holder=holder))
        assert (ledger.leases_to_save(), ledger.tenants_to_save(), ledger.refusals) == ([], [], ["unknown holder"])
    for _ in range(2):
        apply_command(ledger, release(result="failed", units=2), NOW, Sender(name="ann", holder="r1"))
        left = {"r1": msgspec.structs.replace(HELD["r1"], left=True), "r2": HELD["r2"]}
        assert ledger.leases_to_save() == [own(holders=left)]
        assert [tenant.failures for tenant in ledger.tenants_to_save()] == [1]
        assert (ledger.events, ledger.deadlines, ledger.refusals) == ([], {"p": at(9)}, ["unknown holder"])
    apply_command(ledger, release(), NOW, Sender(name="ann", holder="r2"))
    assert [type(event) for event in ledger.events] == [LeaseReleased]
    assert ledger.pools["p"].held_units == 0


@pytest.mark.parametrize(("state", "expires"), [(State.RESERVED, 180), (State.CONFIRMED, 300)])
def test_a_lease_that_is_taken_over_lives_on_as_if_extended(state: State, expires: float) -> None:
    """Its deadline is the next one of the pool, unless another is sooner."""
    for deadlines in ({}, {"p": at(9)}):
        silent = msgspec.structs.replace(SILENT, state=state)
        ledger = ledger_of(asked(0), silent, pool=msgspec.structs.replace(POOL, last_token=6))
        ledger.deadlines = dict(deadlines)
        submitted(ledger, again(), holder="h2")
        taken = msgspec.structs.replace(
            silent, fencing_token=7, holders={"h2": Holding(since=NOW)}, expires_at=at(expires), extended_at=NOW
        )
        assert ledger.leases_to_save() == [taken]
        assert ledger.deadlines == {"p": min(at(expires), deadlines.get("p", at(expires)))}


#   lease that its hold ended or its holder released, policy, evidence → recorded late
LATE: Final[list[tuple[dict[str, Any], Policy, dict[str, Any], bool]]] = [
    ({}, Policy(), {}, False),
    ({}, Policy(), {"throttled": True}, True),
    ({}, Policy(), {"retry_after_seconds": 9.0}, True),
    ({}, Policy(), {"quota_remaining": 0}, True),
    ({}, Policy(adaptive=Bounds(floor=1, ceiling=9)), {}, True),
    ({"reported_late": True}, Policy(), {"throttled": True}, False),
    ({"reason": "released"}, Policy(), {"throttled": True}, False),
]


@pytest.mark.parametrize(("changes", "policy", "evidence", "recorded"), LATE)
def test_evidence_after_the_end_of_a_hold_is_recorded_once(
    changes: dict[str, Any], policy: Policy, evidence: dict[str, Any], recorded: bool
) -> None:
    ended = msgspec.structs.replace(GONE, **changes)
    ledger = ledger_of(ended, pool=msgspec.structs.replace(POOL, policy=policy))
    apply_command(ledger, release(**evidence), NOW, Sender(name="ann"))
    assert ledger.leases_to_save() == [msgspec.structs.replace(ended, reported_late=True)] * recorded
    assert ledger.refusals == ([] if recorded else ["already released"])


def test_a_tenant_waits_no_longer_for_starts_that_were_released() -> None:
    """Unless it was held back for something else, or holds a part of them."""
    started = own(3, uncounted_units=1, tenant="t")
    for until, units, held_back in ((1200, 9, False), (1200, 1, True), (60, 9, True)):
        tenant = Tenant(lease_pool_id="p", tenant="t", failures=2, held_back_until=at(until), held_back_reason="why")
        ledger = Ledger([msgspec.structs.replace(POOL, held={"launch": 2}, held_units=2)], [started], [], [tenant])
        apply_command(ledger, release(units=units, result="registered"), NOW, Sender(name="ann"))
        free = msgspec.structs.replace(tenant, held_back_until=None, held_back_reason="")
        assert ledger.tenants_to_save() == ([] if held_back else [free])


def test_what_a_tenant_reports_holds_it_back_and_keeps_its_failures() -> None:
    """Until the latest of the times that it reported."""
    tenant = Tenant(lease_pool_id="p", tenant="t", failures=2, owner="ann")
    ledger = Ledger([POOL], [], [], [tenant])
    for until, reason in ((9, "first"), (60, "longest"), (30, "last")):
        ledger.hold_back(own(tenant="t"), at(until), reason)
    held_back = msgspec.structs.replace(tenant, held_back_until=at(60), held_back_reason="longest")
    assert ledger.tenants_to_save() == [held_back]
    ledger.hold_back(own(tenant="new"), at(9), "why")
    new = Tenant(lease_pool_id="p", tenant="new", held_back_until=at(9), held_back_reason="why")
    assert ledger.tenants_to_save() == [new, held_back]


def test_the_lease_of_a_request_is_its_newest() -> None:
    """Of those of a request that was granted in parts."""
    parts = [lease(token, State.CONFIRMED) for token in (1, 3, 2)]
    assert of_request([*parts, lease(9, State.CONFIRMED, request_id="other")], "r") is parts[1]
    assert of_request([], "r") is None


# Starts without a lease.

KNOWN: Final = msgspec.structs.replace(REQUEST, tenant="u", owner="ben", holder="h", requested_units=3, waiting_units=3)
WEIGHTED: Final = msgspec.structs.replace(
    POOL, policy=Policy(operations={"install": Operation(weight=2)}, mode=Mode.ADVISORY), last_token=6
)


def start(**changes: Any) -> Start:
    usual = Start(request_id="r", operation="install", units=3, started_at=at(-60), tenant="t")
    return msgspec.structs.replace(usual, **changes)


def charged(ledger: Ledger, of: Start, allowance: Allowance | None = None) -> Lease:
    options = {} if allowance is None else {"allowance": allowance}
    return charge(ledger, "p", of, NOW, Sender(name="ann"), **options, lease_id="new")


STARTED: Final = Lease(
    id="new",
    lease_pool_id="p",
    request_id="r",
    fencing_token=7,
    granted_units=3,
    units=3,
    state=State.CONFIRMED,
    granted_at=at(-60),
    expires_at=at(1140),
    hold_until=at(1140),
    tenant="t",
    operation="install",
    weight=2,
    owner="ann",
    mode=Mode.ADVISORY,
    reason="started without a lease",
    extended_at=NOW,
    over_kafka=True,
    unleased_by=UnleasedBy.UNAVAILABLE,
)
OVER: Final = {"units": 0, "state": State.RELEASED, "reason": "hold"}
#   requests, start → changes of its lease
STARTS: Final[list[tuple[list[Request], Start, dict[str, Any]]]] = [
    ([], start(), {}),
    ([], start(tenant=""), {"tenant": "ann"}),
    ([], start(started_at=at(60)), {"granted_at": NOW, "expires_at": at(1200), "hold_until": at(1200)}),  # their clock
    ([], start(hold_seconds=90.0), {"expires_at": at(30), "hold_until": at(30)}),
    ([], start(hold_seconds=9999.0), {}),
    (
        [],
        start(hold_seconds=60.0),
        OVER | {"expires_at": NOW, "hold_until": NOW, "ended_at": NOW},
    ),
    (
        [KNOWN],
        start(cause=UnleasedBy.MAX_WAIT),
        {
            "tenant": "u",
            "owner": "ben",
            "unleased_by": UnleasedBy.MAX_WAIT,
            "holders": {"h": Holding(since=at(-60))},
        },
    ),
]


@pytest.mark.parametrize(("requests", "of", "changes"), STARTS)
def test_a_start_counts_as_a_lease_from_its_beginning(
    requests: list[Request], of: Start, changes: dict[str, Any]
) -> None:
    """It is stored with a request that waits no longer, and counted and told of once."""
    ledger = ledger_of(*requests, pool=WEIGHTED)
    expected = msgspec.structs.replace(STARTED, **changes)
    for _ in range(2):
        assert charged(ledger, of) == expected
    assert ledger.leases_to_add() == [expected]
    pool = ledger.pools["p"]
    assert (pool.held_units, pool.held_cost) == (expected.units, 2 * expected.units)
    assert (pool.waiting_units, pool.last_token, ledger.dirty) == (0, 7, {"p"})
    started_at = expected.granted_at.isoformat()
    reason = f"3 units started without a lease at {started_at} ({of.cause})"
    assert ledger.history == [entry("unleased", reason, lease_id="new", units=3)]
    made = msgspec.structs.replace(
        REQUEST,
        tenant=expected.tenant,
        requested_units=3,
        requested_at=expected.granted_at,
        since=expected.granted_at,
        whole=True,
        owner="ann",
        over_kafka=True,
    )
    (request,) = requests or [made]
    assert [*ledger.requests.values()] == [msgspec.structs.replace(request, waiting_units=0)]


#   leases of its request id, and whether the start has one of them
GRANTS: Final = [
    ([lease(1, State.RESERVED)], "l1"),
    ([lease(1, State.CONFIRMED), lease(2, State.CONFIRMED)], "l2"),
    ([lease(2, State.CONFIRMED), lease(1, State.CONFIRMED)], "l2"),
    ([lease(1, State.RELEASED, reason="released")], "l1"),  # it has ended already
    ([lease(1, State.EXPIRED)], "new"),
    ([lease(1, State.RELEASED)], "new"),  # nobody heard of the grant, and its hold has ended
    ([lease(1, State.LOST)], "new"),
    ([lease(1, State.LOST, unleased_by=UnleasedBy.UNAVAILABLE)], "l1"),
    ([lease(1, State.LOST), lease(2, State.CONFIRMED)], "l2"),
]


@pytest.mark.parametrize(("grants", "has"), GRANTS)
def test_a_start_has_the_grant_of_its_request(grants: list[Lease], has: str) -> None:
    """But for one that time alone has ended: nobody heard of that."""
    ledger = ledger_of(*grants)
    assert charged(ledger, start(units=1)).id == has
    assert bool(ledger.leases_to_add()) == (has == "new")


def test_a_start_counts_in_place_of_a_lost_grant_that_still_counted() -> None:
    """Of several the last; within no allowance, since the broker knew of these units."""
    lost = [lease(token, State.LOST, units=units, ended_at=None) for token, units in ((3, 1), (4, 2))]
    pool = msgspec.structs.replace(POOL, held={"launch": 3}, held_units=3, last_token=4)
    ledger = Ledger([pool], lost, [])
    made = charged(ledger, start(units=2), Allowance(units=0))
    assert (made.id, made.fencing_token, made.uncounted_units) == ("new", 5, 0)
    assert [each.ended_at for each in ledger.leases_to_save()] == [NOW]
    assert ledger.leases["p", "l4"].ended_at == NOW
    assert ledger.pools["p"].held == {"launch": 1, "install": 2}


#   start of 3 units of weight 2, with a request, allowance → units that count, units of which the reporter has too many
BOUNDED: Final[list[tuple[Start, bool, Allowance, int, int]]] = [
    (start(), False, Allowance(), 3, 0),
    (start(), False, Allowance(units=3, units_max=3), 3, 0),
    (start(), False, Allowance(units=2, units_max=3), 2, 1),
    (start(), False, Allowance(units=0, units_max=3), 0, 3),
    (start(), True, Allowance(units=2, units_max=3), 2, 1),  # a request vouches for nothing
    (start(), False, Allowance(waited_cost=0), 3, 0),
    (start(cause=UnleasedBy.MAX_WAIT), True, Allowance(units=0), 3, 0),
    (start(cause=UnleasedBy.MAX_WAIT), False, Allowance(units=0), 0, 3),
    (start(cause=UnleasedBy.MAX_WAIT), True, Allowance(units=0, waited_cost=5), 2, 0),
    (start(cause=UnleasedBy.MAX_WAIT), True, Allowance(units=0, waited_cost=1), 0, 0),
]


@pytest.mark.parametrize(("of", "has_request", "allowance", "counts", "excess"), BOUNDED)
def test_a_start_counts_within_what_its_reporter_may_count(
    of: Start, has_request: bool, allowance: Allowance, counts: int, excess: int
) -> None:
    """Units above the allowance hold back their own tenant, until their hold ends."""
    requests = [msgspec.structs.replace(KNOWN, tenant="t", owner="ann")] if has_request else []
    ledger = ledger_of(*requests, pool=WEIGHTED)
    made = charged(ledger, of, allowance)
    assert (made.units, made.counted_units, ledger.pools["p"].held_units) == (3, counts, counts)
    reason = ledger.history[0].reason
    assert reason.endswith(f"({of.cause})" if counts == 3 else f"; {3 - counts} not counted")
    units = "1 unleased unit" if excess == 1 else f"{excess} unleased units"
    held_back = Tenant(
        lease_pool_id="p",
        tenant="t",
        held_back_until=at(1140),
        held_back_reason=f"reported {units} more than ann may count",
    )
    assert ledger.tenants_to_save() == ([held_back] if excess else [])
    alarm = ledger.pools["p"].excess
    assert (alarm is None) == (excess == 0)
    if alarm is not None:
        assert (alarm.units, alarm.units_max, alarm.until) == (excess, allowance.units_max, at(1140))


def test_only_a_start_whose_lease_was_lost_stands_for_it() -> None:
    """By its cause and the form of its request id; a lease that was renewed after all is its lease."""
    assert (lost_id("lost-l1"), lost_id("l1")) == ("l1", None)
    for cause, request_id, has in (
        (UnleasedBy.LOST, "lost-l1", "l1"),
        (UnleasedBy.LOST, "l1", "new"),
        (UnleasedBy.UNAVAILABLE, "lost-l1", "new"),
    ):
        assert charged(ledger_of(own()), start(cause=cause, request_id=request_id)).id == has
