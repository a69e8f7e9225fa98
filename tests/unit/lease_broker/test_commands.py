"""Lease commands applied to the ledger: late, repeated, wrong owner, partial."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmed,
    LeaseConfirmRequested,
    LeaseGroup,
    LeaseLost,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    LeaseUnleasedReported,
    ReplacedLease,
)
from slipway_common.base.errors import BadEvent
from slipway_lease_broker.domain.adaptive import Evidence
from slipway_lease_broker.domain.commands import UNITS_MAX, LeaseCommand, apply_command
from slipway_lease_broker.domain.ledger import Entry, Lease, LeasePool, Ledger, Request, State, Tenant, counted, queued
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.terms import Backoff, Bounds, Policy

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POOL = LeasePool(id="sim-a", limit_units=5, hold_seconds=1200, ttl_seconds=300, reserve_seconds=180)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def lease(state: State, units: int = 3, *, hold: float = 900, **changes: Any) -> Lease:
    made = Lease(
        id="l",
        lease_pool_id="sim-a",
        request_id="r",
        fencing_token=7,
        granted_units=units,
        units=units,
        state=state,
        granted_at=at(hold - 1200),
        expires_at=at(-1),
        hold_until=at(hold),
        extended_at=at(hold - 1200),
    )
    return msgspec.structs.replace(made, **changes)


def waiting_request(waiting: int = 4) -> Request:
    return Request(
        id="r",
        lease_pool_id="sim-a",
        tenant="linux",
        operation="launch",
        requested_units=5,
        waiting_units=waiting,
        requested_at=at(-60),
        last_requested_at=at(-60),
        since=at(-60),
    )


def request(units: int = 5, **changes: Any) -> LeaseRequested:
    made = LeaseRequested(lease_pool_id="sim-a", request_id="r", units=units, tenant="linux")
    return msgspec.structs.replace(made, **changes)


def confirm(token: int = 7) -> LeaseConfirmRequested:
    return LeaseConfirmRequested(lease_pool_id="sim-a", lease_id="l", fencing_token=token)


def renew(token: int = 7, progress: str | None = None) -> LeaseRenewRequested:
    return LeaseRenewRequested(lease_pool_id="sim-a", lease_id="l", fencing_token=token, progress=progress)


def release(units: int, token: int = 7, **changes: Any) -> LeaseReleaseRequested:
    made = LeaseReleaseRequested(
        lease_pool_id="sim-a", lease_id="l", fencing_token=token, units=units, result="registered"
    )
    return msgspec.structs.replace(made, **changes)


def after(*commands: LeaseCommand, leases: tuple[Lease, ...] = (), requests: tuple[Request, ...] = ()) -> Ledger:
    pool = POOL
    for held in leases:
        pool = counted(pool, held, 0, held.units if held.ended_at is None else 0)
    for waiting in requests:
        pool = queued(pool, waiting, 0, waiting.waiting_units)
    ledger = Ledger([pool], leases, requests)
    for command in commands:
        apply_command(ledger, command, NOW, Sender())
    return ledger


def confirmed(seconds: float) -> LeaseConfirmed:
    return LeaseConfirmed(lease_pool_id="sim-a", lease_id="l", fencing_token=7, expires_at=at(seconds))


def test_request_is_recorded_and_waits() -> None:
    """A new request waits for all of its units, and a decision is due."""
    ledger = after(request(5))
    (new,) = ledger.requests_to_add()
    assert (new.requested_units, new.waiting_units, new.requested_at, new.queued_at) == (5, 5, NOW, None)
    assert (ledger.dirty, ledger.events) == ({"sim-a"}, [])


def test_repeated_request_changes_only_its_last_time() -> None:
    """Also with other units and within one batch, and no decision becomes due."""
    ledger = after(request(9), requests=(waiting_request(4),))
    assert ledger.requests_to_save() == [msgspec.structs.replace(waiting_request(4), last_requested_at=NOW)]
    assert (ledger.requests_to_add(), ledger.dirty, ledger.events) == ([], set(), [])
    twice = after(request(5), request(9))
    assert [new.requested_units for new in twice.requests_to_add()] == [5]
    assert twice.requests_to_save() == []


def test_rows_are_saved_in_one_order() -> None:
    """Of pools those where a decision is due, or a deadline has changed."""
    ledger = Ledger([msgspec.structs.replace(POOL, id=name) for name in "cab"], [], [])
    ledger.dirty, ledger.deadlines = {"c"}, {"b": NOW, "c": NOW}
    assert [pool.id for pool in ledger.pools_to_save()] == ["b", "c"]


def test_requests_keep_their_order() -> None:
    """The order in the batch is the order in the queue."""
    names = ["z", "a", "m"]
    assert [new.id for new in after(*(request(request_id=n) for n in names)).requests_to_add()] == names


#          lease                                        command       answer              state
PROLONG: list[tuple[Lease, LeaseCommand, LeaseConfirmed, State]] = [
    (lease(State.RESERVED), confirm(), confirmed(300), State.CONFIRMED),
    (lease(State.RESERVED), renew(), confirmed(180), State.RESERVED),
    (lease(State.CONFIRMED), renew(), confirmed(300), State.CONFIRMED),
    (lease(State.CONFIRMED), confirm(), confirmed(300), State.CONFIRMED),
    (lease(State.CONFIRMED, hold=50), renew(), confirmed(50), State.CONFIRMED),  # the hold is the end
    (
        lease(State.CONFIRMED, expires_at=at(600)),
        renew(),
        confirmed(600),
        State.CONFIRMED,
    ),  # a renewal never shortens a lease
]


@pytest.mark.parametrize(("held", "command", "answer", "state"), PROLONG)
def test_extended(held: Lease, command: LeaseCommand, answer: LeaseConfirmed, state: State) -> None:
    """All these leases are past their deadline; they may be extended until an expiry has committed."""
    ledger = after(command, leases=(held,))
    assert ledger.events == [answer]
    (now_held,) = ledger.leases_to_save()
    assert (now_held.state, now_held.expires_at) == (state, answer.expires_at)
    assert (ledger.deadlines, ledger.dirty) == ({"sim-a": answer.expires_at}, set())


def entry(kind: str, reason: str, **changes: Any) -> Entry:
    about: dict[str, Any] = {"lease_id": "l", "request_id": "r", "actor": "ann"}
    return Entry(lease_pool_id="sim-a", at=NOW, kind=kind, reason=reason, **(about | changes))


STEPS = Policy(no_progress_seconds=60.0)
HELD = lease(State.CONFIRMED, owner="ann", expires_at=at(100))
#        policy, lease, command of its owner, all fields of the lease that it changes, history
EXTENDED: list[tuple[Policy, Lease, LeaseCommand, dict[str, Any], list[Entry]]] = [
    (
        Policy(),
        msgspec.structs.replace(HELD, state=State.RESERVED),
        confirm(),
        {"state": State.CONFIRMED, "expires_at": at(300), "extended_at": NOW},
        [entry("confirmed", "confirmed by its holder")],
    ),
    (Policy(), HELD, renew(), {"expires_at": at(300), "extended_at": NOW}, []),
    (
        Policy(),
        HELD,
        renew(progress="1 %"),
        {"expires_at": at(300), "extended_at": NOW, "progress": "1 %"},
        [],
    ),
    (
        STEPS,
        HELD,
        renew(progress="1 %"),
        {"expires_at": at(300), "extended_at": NOW, "progress": "1 %", "progress_until": at(60)},
        [],
    ),
    (
        STEPS,
        msgspec.structs.replace(HELD, progress="1 %", progress_until=at(9)),
        renew(progress="1 %"),  # no news
        {"expires_at": at(300), "extended_at": NOW},
        [],
    ),
]


@pytest.mark.parametrize(("policy", "held", "command", "fields", "history"), EXTENDED)
def test_what_an_extension_changes(
    policy: Policy, held: Lease, command: LeaseCommand, fields: dict[str, Any], history: list[Entry]
) -> None:
    """These fields and no other. Its deadline is the next one of the pool, unless another is sooner."""
    for over_kafka in (False, True):
        ledger = Ledger([msgspec.structs.replace(POOL, policy=policy)], [held], [])
        ledger.deadlines["sim-a"] = at(200)
        assert apply_command(ledger, command, NOW, Sender(name="ann", over_kafka=over_kafka)) is None
        after_it = msgspec.structs.replace(held, over_kafka=over_kafka, **fields)
        assert (ledger.leases_to_save(), ledger.history) == ([after_it], history)
        assert ledger.deadlines == {"sim-a": min(at(200), after_it.deadline)}


LOST = LeaseLost(lease_pool_id="sim-a", lease_id="l", request_id="r", units=3, counted_until=at(40))
RELEASED = LeaseReleased(lease_pool_id="sim-a", lease_id="l", request_id="r", units=3, remaining=0, reason="hold")
TOO_LATE = [
    (lease(State.LOST, counted_until=at(40)), [LOST]),
    (lease(State.LOST, counted_until=at(40), ended_at=at(40)), [LOST]),
    (lease(State.EXPIRED, ended_at=at(-1)), [msgspec.structs.replace(LOST, counted_until=at(-1))]),
    (lease(State.RELEASED, ended_at=at(-1), reason="hold"), [RELEASED]),
    (None, [msgspec.structs.replace(LOST, request_id="", units=0, counted_until=NOW)]),
]


@pytest.mark.parametrize("command", [confirm(), renew()])
@pytest.mark.parametrize(("held", "answers"), TOO_LATE)
def test_too_late(held: Lease | None, answers: list[LeaseLost | LeaseReleased], command: LeaseCommand) -> None:
    """A committed end is never undone; the holder receives it again."""
    ledger = after(command, leases=() if held is None else (held,))
    refusal = "unknown lease" if held is None else f"already {held.state}"
    assert (ledger.events, ledger.leases_to_save(), ledger.refusals) == (answers, [], [refusal])


@pytest.mark.parametrize("command", [confirm(6), renew(8), release(1, 6)])
def test_a_stale_token_changes_and_publishes_nothing(command: LeaseCommand) -> None:
    """An answer would reach the true holder."""
    ledger = after(command, leases=(lease(State.CONFIRMED),))
    assert (ledger.events, ledger.leases_to_save(), ledger.refusals) == ([], [], ["stale token"])


@pytest.mark.parametrize(
    "command",
    [
        confirm(),
        renew(),
        release(1),
        request(),
        LeaseCancelRequested(lease_pool_id="sim-a", request_id="r", units=1, reason="not mine"),
    ],
)
def test_only_the_owner_may_act_on_a_lease(command: LeaseCommand) -> None:
    """Only its owner extends, releases or cancels it; an administrator may, too."""
    theirs = (lease(State.CONFIRMED, owner="ann"),), (msgspec.structs.replace(waiting_request(4), owner="ann"),)
    for owner, admin, refused in (("ben", False, True), ("ann", False, False), ("root", True, False)):
        ledger = Ledger((POOL,), *theirs)
        apply_command(ledger, command, NOW, Sender(name=owner, admin=admin))
        assert (ledger.refusals == ["wrong owner"]) == refused
        assert bool(ledger.leases_to_save() or ledger.requests_to_save()) != refused


#           units of each release → (units, remaining) of each event, state
RELEASE = [
    ([1], [(1, 2)], State.CONFIRMED),
    ([1, 2], [(1, 2), (2, 0)], State.RELEASED),
    ([9], [(3, 0)], State.RELEASED),
    ([3, 1], [(3, 0)], State.RELEASED),  # the second finds nothing to release
]


@pytest.mark.parametrize(("units", "released", "state"), RELEASE)
def test_release(units: list[int], released: list[tuple[int, int]], state: State) -> None:
    """Units may be released in parts; the last part ends the lease."""
    ledger = after(*map(release, units), leases=(lease(State.CONFIRMED),))
    assert ledger.events == [
        LeaseReleased(
            lease_pool_id="sim-a", lease_id="l", request_id="r", units=gone, remaining=left, reason="registered"
        )
        for gone, left in released
    ]
    (held,) = ledger.leases_to_save()
    assert (held.state, held.units, held.granted_units) == (state, released[-1][1], 3)
    assert (held.ended_at is not None, held.reason) == ((True, "released") if state is State.RELEASED else (False, ""))
    assert ledger.dirty == {"sim-a"}


OURS = lease(State.CONFIRMED, owner="ann", tenant="linux", operation="install")
ENDED = msgspec.structs.replace(OURS, state=State.RELEASED, units=0, ended_at=at(-1), reason="hold")
ADAPTIVE = Policy(adaptive=Bounds(floor=1, ceiling=9))
ONE_ALONE = "reported a Retry-After that no other reporter has confirmed"
#        policy, lease, units held by others, by the adapter of the provider, evidence
#        → end of the pool's pause, end of its tenant's wait, evidence for the adaptive limit
REPORTS: list[tuple[Policy, Lease, int, bool, dict[str, Any], float | None, float | None, list[Evidence]]] = [
    (Policy(), OURS, 0, False, {"throttled": True}, None, None, []),
    (Policy(), OURS, 0, False, {"retry_after_seconds": 9.0}, 9, None, []),
    (Policy(), OURS, 4, False, {"retry_after_seconds": 9.0}, None, 9, []),
    (Policy(), OURS, 4, True, {"retry_after_seconds": 9.0}, 9, None, []),
    (Policy(), OURS, 4, True, {"retry_after_seconds": 999.0}, 300, None, []),
    (Policy(), ENDED, 4, False, {"retry_after_seconds": 9.0}, None, 9, []),
    (Policy(), ENDED, 3, False, {"retry_after_seconds": 9.0}, 9, None, []),  # it was among the held ones until then
    (ADAPTIVE, OURS, 0, False, {}, None, None, [Evidence(granted_at=at(-300))]),
    (
        ADAPTIVE,
        OURS,
        0,
        False,
        {"throttled": True, "quota_remaining": 5},
        None,
        None,
        [Evidence(granted_at=at(-300), throttled=True, quota_remaining=5)],
    ),
    (ADAPTIVE, OURS, 4, False, {"throttled": True}, None, None, []),
    (ADAPTIVE, OURS, 0, False, {"quota_remaining": 5}, None, None, [Evidence(granted_at=at(-300), quota_remaining=5)]),
    (ADAPTIVE, OURS, 4, True, {"quota_remaining": 5}, None, None, [Evidence(granted_at=at(-300), quota_remaining=5)]),
    (ADAPTIVE, OURS, 4, False, {"quota_remaining": 5}, None, None, [Evidence(granted_at=at(-300))]),
    (
        ADAPTIVE,
        ENDED,
        4,
        True,
        {"throttled": True},
        None,
        None,
        [Evidence(granted_at=at(-300), throttled=True, late=True)],
    ),
]


@pytest.mark.parametrize(("policy", "held", "others", "adapter", "reported", "pause", "wait", "evidence"), REPORTS)
def test_the_evidence_of_a_release(
    policy: Policy,
    held: Lease,
    others: int,
    adapter: bool,
    reported: dict[str, Any],
    pause: float | None,
    wait: float | None,
    evidence: list[Evidence],
) -> None:
    """It moves the pool by the word of its provider, or of who holds half of the units; else only its tenant waits."""
    ledger = Ledger([msgspec.structs.replace(POOL, policy=policy)], [held], [])
    ledger.held_by = {"sim-a": {"ben": others} | ({"ann": held.units} if held.live else {})}
    apply_command(ledger, release(9, **reported), NOW, Sender(name="ann", adapter=adapter))
    pool = ledger.pools["sim-a"]
    assert pool.blocked_until == (None if pause is None else at(pause))
    assert [*pool.evidence] == evidence
    (tenant,) = ledger.tenants_to_save() or [Tenant(lease_pool_id="sim-a", tenant="linux")]
    assert tenant.held_back_until == (None if wait is None else at(wait))
    assert tenant.held_back_reason == ("" if wait is None else ONE_ALONE)
    assert ledger.throttles == (["sim-a"] if reported.get("throttled") else [])
    assert ("throttled" in {each.kind for each in ledger.history}) == bool(reported.get("throttled"))
    reporters = [report.reporter for report in pool.throttle_reports]
    assert reporters == (["ann"] if reported.keys() & {"throttled", "retry_after_seconds"} else [])


def test_the_units_of_a_lease_whose_hold_has_ended_are_its_reporters() -> None:
    """Beside those that it holds: together they are half of all."""
    ledger = Ledger([POOL], [ENDED], [])
    ledger.held_by = {"sim-a": {"ann": 1, "ben": 4}}
    apply_command(ledger, release(9, retry_after_seconds=9.0), NOW, Sender(name="ann"))
    assert ledger.pools["sim-a"].blocked_until == at(9)


def test_a_pause_is_never_shortened_by_another_report() -> None:
    pool = msgspec.structs.replace(POOL, blocked_until=at(60))
    ledger = Ledger([pool], [OURS], [])
    apply_command(ledger, release(1, retry_after_seconds=9.0), NOW, Sender(name="ann", adapter=True))
    assert ledger.pools["sim-a"].blocked_until == at(60)


@pytest.mark.parametrize(
    ("result", "failures", "backoff", "after_failures", "seconds"),
    [
        ("failed", 0, Backoff(seconds=30, max_seconds=900), 1, 30),
        ("failed", 1, Backoff(seconds=30, max_seconds=900), 2, 60),
        ("failed", 9, Backoff(seconds=30, max_seconds=900), 10, 900),
        ("failed", 0, None, 0, None),
        ("done", 2, Backoff(), 0, None),
        ("done", 2, None, 0, None),
        ("registered", 2, Backoff(), 2, None),
    ],
)
def test_a_tenant_whose_leases_fail_backs_off(
    result: str, failures: int, backoff: Backoff | None, after_failures: int, seconds: float | None
) -> None:
    """Until one is done; other results concern machines, images or providers."""
    ledger = Ledger([msgspec.structs.replace(POOL, policy=Policy(backoff=backoff))], [OURS], [])
    if failures:
        ledger.tenants["sim-a", "linux"] = Tenant(lease_pool_id="sim-a", tenant="linux", failures=failures)
    apply_command(ledger, release(9, result=result), NOW, Sender(name="ann"))
    tenant = ledger.tenants.get(("sim-a", "linux"), Tenant(lease_pool_id="sim-a", tenant="linux"))
    assert tenant.failures == after_failures
    assert tenant.backoff_until == (None if seconds is None else at(seconds))


def test_leases_that_fail_together_are_one_failure() -> None:
    """Those that were granted before the first of them failed."""
    tenant = Tenant(lease_pool_id="sim-a", tenant="linux", failures=2, backoff_until=at(50))
    failed_at = 50 - 60  # the second failure began a wait of 60 s
    for granted, failures in ((failed_at - 1, 2), (failed_at, 3)):
        held = msgspec.structs.replace(OURS, granted_at=at(granted))
        ledger = Ledger([POOL], [held], [], [tenant])
        apply_command(ledger, release(9, result="failed"), NOW, Sender(name="ann"))
        assert ledger.tenants["sim-a", "linux"].failures == failures


REPLACED = ReplacedLease(lease_id="l", fencing_token=7)


@pytest.mark.parametrize(
    ("replaced", "changes", "since", "ended", "refusals"),
    [
        (REPLACED, {}, -60, True, []),
        (ReplacedLease(lease_id="l", fencing_token=6), {}, 0, False, ["stale token"]),
        (ReplacedLease(lease_id="m", fencing_token=7), {}, 0, False, ["unknown lease"]),
        (REPLACED, {"tenant": "windows"}, 0, True, ["not an earlier attempt"]),
        (REPLACED, {"operation": "check"}, 0, True, ["not an earlier attempt"]),
    ],
)
def test_a_new_attempt_has_the_age_of_the_one_before(
    replaced: ReplacedLease, changes: dict[str, Any], since: float, ended: bool, refusals: list[str]
) -> None:
    """Once, and only one with the same tenant and operation; the lease of the earlier attempt ends."""
    before = msgspec.structs.replace(waiting_request(0), owner="ann", operation="install")
    ledger = Ledger([counted(POOL, OURS, 0, 3)], [OURS], [before])
    for name, at_, more in (("new", since, []), ("newer", 0, ["not an earlier attempt"] if since else refusals)):
        command = request(2, request_id=name, replaces=replaced, **({"operation": "install"} | changes))
        apply_command(ledger, command, NOW, Sender(name="ann", over_kafka=True))
        assert ledger.requests["sim-a", name].since == at(at_)
        refusals = refusals if name == "new" else refusals + more
        assert ledger.refusals == refusals
    held = ledger.leases["sim-a", "l"]
    assert (held.live, held.reason, held.replaced) == (not ended, "replaced" if ended else "", since != 0)
    assert ledger.pools["sim-a"].held_units == (0 if ended else 3)
    assert [event.reason for event in ledger.events] == (["replaced"] if ended else [])


def test_a_new_attempt_is_as_old_as_the_grant_if_its_request_is_forgotten() -> None:
    ledger = Ledger([counted(POOL, OURS, 0, 3)], [OURS], [])
    command = request(2, request_id="new", operation="install", replaces=REPLACED)
    apply_command(ledger, command, NOW, Sender(name="ann"))
    assert ledger.requests["sim-a", "new"].since == at(-300)


def test_members_of_a_group_start_at_their_offsets() -> None:
    """By their number, or in order of arrival; a group whose time is over starts anew, at its distance."""
    group = LeaseGroup(name="g", size=3, spread_seconds=30)
    sent = [group, group, msgspec.structs.replace(group, member=0), group]
    ledger = after(*(request(1, request_id=f"r{n}", group=each) for n, each in enumerate(sent)))
    assert [each.since for each in ledger.requests_to_add()] == [at(0), at(10), at(0), at(30)]
    (row,) = ledger.groups_to_save()
    assert (row.size, row.members, row.first_at, row.last_start_at) == (3, 4, NOW, None)
    started = msgspec.structs.replace(row, last_start_at=at(5))
    for seconds, since in ((30, 40), (31, 31)):
        later = Ledger([POOL], [], [], [], [started])
        apply_command(later, request(1, group=group), at(seconds), Sender())
        assert [each.since for each in later.requests_to_add()] == [at(since)]
        assert later.groups_to_save()[0].last_start_at == at(5)


def test_release_does_not_shorten_a_lost_lease() -> None:
    """Its units stay counted, since a call may be in flight."""
    ledger = after(release(3), leases=(lease(State.LOST, counted_until=at(40)),))
    assert (ledger.events, ledger.leases_to_save(), ledger.refusals) == ([], [], ["already lost"])


@pytest.mark.parametrize(("units", "left"), [(1, 3), (4, 0), (9, 0)])
def test_cancel(units: int, left: int) -> None:
    """Only units that still wait are cancelled."""
    command = LeaseCancelRequested(lease_pool_id="sim-a", request_id="r", units=units, reason="demand fell")
    ledger = after(command, requests=(waiting_request(4),))
    assert [request.waiting_units for request in ledger.requests_to_save()] == [left]
    assert (ledger.pools["sim-a"].waiting_units, ledger.dirty) == (left, {"sim-a"})
    assert ledger.history == [entry("cancelled", "demand fell", lease_id=None, units=4 - left, actor="")]
    for nothing in ((), (waiting_request(0),)):
        assert after(command, requests=nothing).refusals == ["nothing to cancel"]


BAD: list[LeaseCommand] = [
    request(lease_pool_id="nowhere"),
    request(0),
    request(-1),
    request(2**70),
    request(request_id=""),
    release(0),
    release(1, quota_remaining=10**400),
    release(1, quota_remaining=2**31),
    release(1, quota_remaining=-1),
    release(1, retry_after_seconds=-0.1),
    release(1, retry_after_seconds=31_536_001.0),
    request(UNITS_MAX + 1),
    request(priority=-1),
    request(priority=10),
    request(hold_seconds=0.0),
    request(hold_seconds=31_536_001.0),
    request(group=LeaseGroup(name="", size=1, spread_seconds=1)),
    *(
        request(group=msgspec.structs.replace(LeaseGroup(name="g", size=2, spread_seconds=9), **changes))
        for changes in (
            {"size": 0},
            {"size": UNITS_MAX + 1},
            {"spread_seconds": 0},
            {"spread_seconds": 86_401},
            {"member": -1},
            {"member": 2},
        )
    ),
]


@pytest.mark.parametrize("command", BAD)
def test_bad_values_are_dead_letters(command: LeaseCommand) -> None:
    """Values that no ledger can hold are an error of the record, not of the database."""
    with pytest.raises(BadEvent, match=r" is (not declared|empty)$|: must be |size must be |members count from 0$"):
        after(command, leases=(lease(State.CONFIRMED),))


@pytest.mark.parametrize(
    "command",
    [
        request(UNITS_MAX, priority=0),
        request(1, priority=9, hold_seconds=31_536_000.0),
        request(1, hold_seconds=0.5),
        request(group=LeaseGroup(name="g", size=UNITS_MAX, spread_seconds=86_400, member=UNITS_MAX - 1)),
        request(group=LeaseGroup(name="g", size=1, spread_seconds=0.5, member=0)),
        release(1, quota_remaining=2**31 - 1, retry_after_seconds=31_536_000.0),
        release(1, quota_remaining=0, retry_after_seconds=0.0),
    ],
)
def test_the_largest_and_smallest_values_are_none(command: LeaseCommand) -> None:
    assert after(command, leases=(lease(State.CONFIRMED),)).refusals == []


def unleased(seconds: float, **changes: Any) -> LeaseUnleasedReported:
    made = LeaseUnleasedReported(
        lease_pool_id="sim-a", lease_id="u", request_id="u-request", units=2, tenant="linux", started_at=at(seconds)
    )
    return msgspec.structs.replace(made, **changes)


def test_an_unleased_launch_is_counted_once_and_gets_a_token() -> None:
    """It counts as granted when it started, whatever the clock of its starter shows; a repeated report is answered
    again."""
    ledger = after(unleased(-60), unleased(-60))
    (charged,) = ledger.leases_to_add()
    assert (charged.request_id, charged.operation) == ("u-request", "launch")
    assert (charged.state, charged.units, charged.tenant, charged.hold_until) == (State.CONFIRMED, 2, "linux", at(1140))
    assert (ledger.pools["sim-a"].held_units, ledger.leases_to_save(), len(ledger.requests_to_add())) == (2, [], 1)
    assert (
        ledger.events == [LeaseConfirmed(lease_pool_id="sim-a", lease_id="u", fencing_token=1, expires_at=at(1140))] * 2
    )
    assert (ledger.dirty, ledger.deadlines) == ({"sim-a"}, {"sim-a": at(1140)})
    assert after(unleased(999)).leases_to_add()[0].granted_at == NOW


def test_an_unleased_launch_whose_hold_has_ended_does_not_count() -> None:
    ledger = after(unleased(-1200))
    assert [lease.state for lease in ledger.leases_to_add()] == [State.RELEASED]
    assert ledger.pools["sim-a"].held_units == 0
    assert [(type(event), event.remaining) for event in ledger.events] == [(LeaseReleased, 0)]


def test_an_unleased_launch_with_a_known_request_id_is_refused() -> None:
    ledger = after(unleased(0, request_id="r"), requests=(waiting_request(4),))
    assert (ledger.leases_to_add(), ledger.refusals, ledger.events) == ([], ["known request"], [])


def test_an_unleased_launch_with_the_lease_id_of_another_pool_is_refused() -> None:
    """One with another id is not."""
    for lease_id, refusals in (("l", ["known lease"]), ("u", [])):
        others = lease(State.CONFIRMED, lease_pool_id="sim-b")
        ledger = Ledger([POOL], [others], [])
        ledger.deadlines["sim-a"] = at(9)
        apply_command(ledger, unleased(0, lease_id=lease_id), NOW, Sender(name="ann"))
        assert (ledger.refusals, len(ledger.leases_to_add())) == (refusals, 0 if refusals else 1)
        assert ledger.deadlines == {"sim-a": at(9)}


def test_an_unleased_launch_is_released_like_a_lease() -> None:
    """Also in the batch that reports it."""
    back = LeaseReleaseRequested(lease_pool_id="sim-a", lease_id="u", fencing_token=1, units=2, result="registered")
    ledger = after(unleased(0), back)
    assert [lease.state for lease in ledger.leases_to_add()] == [State.RELEASED]
    assert (ledger.pools["sim-a"].held_units, ledger.leases_to_save()) == (0, [])
