"""Submitted lease commands: which are refused, what is answered, and the events that answer a repeated request."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias

import msgspec
import pytest

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmRequested,
    LeaseExpired,
    LeaseGranted,
    LeaseLost,
    LeaseQueued,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    ReplacedLease,
)
from slipway_lease_broker.domain.commands import LeaseCommand
from slipway_lease_broker.domain.exchange import Answer, Outcome, Submission
from slipway_lease_broker.domain.ledger import (
    Holding,
    Lease,
    LeasePool,
    Ledger,
    Request,
    State,
    Tenant,
    counted,
    queued,
)
from slipway_lease_broker.domain.refusals import Kind, Refusal
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.submissions import (
    TENANTS_MAX,
    answer_repeated,
    is_report,
    names_tenant,
    record,
)
from tests.support.lease_rows import NOW, POOL, REQUEST

OWNED = msgspec.structs.replace(REQUEST, owner="ann", requested_units=5, waiting_units=2)
AGAIN = LeaseRequested(lease_pool_id="p", request_id="r", units=2, tenant="t", operation="install")


def lease(token: int, state: State, **changes: Any) -> Lease:
    usual = Lease(
        id=f"l{token}",
        lease_pool_id="p",
        request_id="r",
        fencing_token=token,
        granted_units=1,
        units=0 if state is State.RELEASED else 1,
        state=state,
        granted_at=NOW,
        extended_at=NOW,
        expires_at=NOW + timedelta(seconds=180),
        hold_until=NOW + timedelta(seconds=1200),
        ended_at=None if state in (State.RESERVED, State.CONFIRMED) else NOW,
        owner="ann",
        reason="hold" if state is State.RELEASED else "",
    )
    return msgspec.structs.replace(usual, **changes)


def test_each_lease_is_answered_in_order_of_grants() -> None:
    leases = [lease(token, state) for token, state in enumerate(State, start=1)]
    answers = answer_repeated(OWNED, [*reversed(leases), lease(9, State.CONFIRMED, request_id="other")])
    assert [type(answer) for answer in answers] == [
        LeaseGranted,
        LeaseGranted,
        LeaseReleased,
        LeaseExpired,
        LeaseLost,
        LeaseQueued,
    ]
    assert [answer.lease_id for answer in answers[:-1] if not isinstance(answer, LeaseQueued)] == [
        "l1",
        "l2",
        "l3",
        "l4",
        "l5",
    ]
    assert [answer.units for answer in answers] == [1, 1, 1, 1, 1, 2]
    assert answers[-1] == LeaseQueued(lease_pool_id="p", request_id="r", units=2, position=0)


@pytest.mark.parametrize(
    ("caller", "answered", "published"),
    [("ann", False, ["granted", "queued"]), ("ben", False, []), ("ann", True, [])],
)
def test_only_the_owner_is_answered_with_events(caller: str, answered: bool, published: list[str]) -> None:
    """Callers that wait for an answer get it there."""
    ledger = Ledger([POOL], [lease(1, State.RESERVED)], [OWNED])
    command = msgspec.structs.replace(AGAIN, units=5)
    record([Submission(command=command, sender=Sender(name=caller), answered=answered)], ledger, NOW)
    assert [event.type.split(".")[-2] for event in ledger.events] == published


def test_a_new_request_is_not_answered_before_its_decision() -> None:
    ledger = Ledger([POOL], [], [])
    record([Submission(command=AGAIN, sender=Sender(name="ann"), answered=False)], ledger, NOW)
    assert ledger.events == []


EARLIER: Final = NOW - timedelta(seconds=30)
HELD: Final = {"r1": Holding(since=NOW), "r2": Holding(since=EARLIER)}


def own(units: int = 2, state: State = State.CONFIRMED, **changes: Any) -> Lease:
    return lease(1, state, **({"units": units, "granted_units": units} | changes))


def asked(waiting: int = 2, **changes: Any) -> Request:
    return msgspec.structs.replace(OWNED, requested_units=2, waiting_units=waiting, **changes)


def again(**changes: Any) -> LeaseRequested:
    return msgspec.structs.replace(AGAIN, **changes)


def cancel(request_id: str = "r") -> LeaseCancelRequested:
    return LeaseCancelRequested(lease_pool_id="p", request_id=request_id, units=1, reason="demand fell")


def release(token: int = 1, **changes: Any) -> LeaseReleaseRequested:
    made = LeaseReleaseRequested(lease_pool_id="p", lease_id="l1", fencing_token=token, units=9, result="done")
    return msgspec.structs.replace(made, **changes)


def confirm(token: int = 1) -> LeaseConfirmRequested:
    return LeaseConfirmRequested(lease_pool_id="p", lease_id="l1", fencing_token=token)


def renew(token: int = 1) -> LeaseRenewRequested:
    return LeaseRenewRequested(lease_pool_id="p", lease_id="l1", fencing_token=token)


def replacing(token: int = 1, lease_id: str = "l1") -> LeaseRequested:
    return again(request_id="new", replaces=ReplacedLease(lease_id=lease_id, fencing_token=token))


def ledger_of(*rows: Lease | Request, pool: LeasePool = POOL) -> Ledger:
    leases = [row for row in rows if isinstance(row, Lease)]
    requests = [row for row in rows if isinstance(row, Request)]
    for each in leases:
        pool = counted(pool, each, 0, each.units if each.live else 0)
    for waiting in requests:
        pool = queued(pool, waiting, 0, waiting.waiting_units)
    return Ledger([pool], leases, requests)


def submitted(
    ledger: Ledger, command: LeaseCommand, *, confirm: bool = False, remaining: int | None = None, **sender: Any
) -> Outcome:
    who = Sender(**({"name": "ann"} | sender))
    submission = Submission(command=command, sender=who, confirm=confirm, remaining=remaining)
    ((_, outcome),) = record([submission], ledger, NOW)
    return outcome


Refused: TypeAlias = tuple[Sequence[Lease | Request], LeaseCommand, dict[str, Any], Kind | None, dict[str, Any]]
GONE: Final = own(0, State.RELEASED, ended_at=NOW)  # ended by its hold


def about_a_lease(command: Callable[..., LeaseCommand]) -> list[Refused]:
    return [
        ([own()], command(), {}, None, {}),
        ([own()], command(), {"name": "root", "admin": True}, None, {}),
        ([], command(), {}, Kind.UNKNOWN_LEASE, {}),
        ([own()], command(), {"name": "ben"}, Kind.WRONG_OWNER, {}),
        ([own()], command(2), {}, Kind.FENCED, {}),
        ([own(state=State.LOST)], command(), {}, Kind.LEASE_ENDED, {"reason": "lost"}),
        ([own(state=State.EXPIRED)], command(), {}, Kind.LEASE_ENDED, {"reason": "expired"}),
    ]


#        rows, command, sender, refusal (None: it is applied), facts for programs
REFUSED: list[Refused] = [
    ([], again(), {}, None, {}),
    ([], again(units=5, whole=True), {}, Kind.TOO_MANY_UNITS, {"units_max": 4}),
    ([own()], again(request_id="lost-l1"), {}, None, {}),
    ([own(owner="ben")], again(request_id="lost-l1"), {}, Kind.WRONG_OWNER, {}),
    # Replacing a lease: it gives its age to a request of its own owner.
    ([own()], replacing(), {}, None, {}),
    ([own()], replacing(lease_id="l9"), {}, Kind.UNKNOWN_LEASE, {}),
    ([own()], replacing(2), {}, Kind.FENCED, {}),
    ([own(owner="ben")], replacing(), {}, Kind.WRONG_OWNER, {}),
    ([own(owner="ben")], replacing(), {"admin": True}, Kind.WRONG_OWNER, {}),
    # Asking again.
    ([asked()], again(), {}, None, {}),
    ([asked()], again(), {"name": "ben"}, Kind.WRONG_OWNER, {}),
    ([asked()], again(), {"name": "root", "admin": True}, None, {}),
    ([asked()], again(units=3), {}, Kind.REQUEST_CONFLICT, {"fields": ["units"]}),
    ([asked()], again(operation="check"), {}, Kind.REQUEST_CONFLICT, {"fields": ["operation"]}),
    ([asked()], again(tenant="u"), {}, Kind.REQUEST_CONFLICT, {"fields": ["tenant"]}),
    (
        [asked()],
        again(priority=1, hold_seconds=9.0),
        {},
        Kind.REQUEST_CONFLICT,
        {"fields": ["hold_seconds", "priority"]},
    ),
    ([asked(0)], again(), {}, Kind.LEASE_ENDED, {"reason": "cancelled"}),
    ([asked(0), own()], again(), {}, None, {}),
    ([asked(0), GONE], again(), {}, Kind.LEASE_ENDED, {"reason": "hold"}),
    ([asked(0), own(state=State.LOST)], again(), {}, Kind.LEASE_ENDED, {"reason": "lost"}),
    ([asked(0), own(holders=HELD)], again(), {"holder": "r2"}, None, {}),
    ([asked(0), own(holders=HELD)], again(), {"holder": "r3", "join": True}, None, {}),
    (
        [asked(0), own(holders=HELD)],
        again(),
        {"holder": "r3"},
        Kind.REQUEST_IN_USE,
        {"holder": "r2", "since": EARLIER.isoformat()},
    ),
    # Cancelling: not the wait or the lease of another process.
    ([], cancel(), {}, Kind.UNKNOWN_REQUEST, {}),
    ([asked()], cancel(), {"name": "ben"}, Kind.WRONG_OWNER, {}),
    ([asked()], cancel(), {"name": "root", "admin": True}, None, {}),
    ([asked(holder="r1")], cancel(), {"holder": "r1"}, None, {}),
    ([asked(holder="r1")], cancel(), {}, None, {}),
    ([asked()], cancel(), {"holder": "r2"}, None, {}),
    (
        [asked(holder="r1")],
        cancel(),
        {"holder": "r2"},
        Kind.REQUEST_IN_USE,
        {"holder": "r1", "since": NOW.isoformat()},
    ),
    ([asked(0, holder="r1")], cancel(), {"holder": "r2"}, None, {}),
    (
        [asked(0), own(holders={"r1": Holding(since=NOW)})],
        cancel(),
        {"holder": "r2"},
        Kind.REQUEST_IN_USE,
        {"holder": "r1", "since": NOW.isoformat()},
    ),
    ([asked(0), own(holders=HELD)], cancel(), {}, Kind.HOLDER_UNKNOWN, {"holders": ["r1", "r2"]}),
    ([asked(0), own(holders=HELD)], cancel(), {"holder": "r1"}, None, {}),
    ([asked(0), own(state=State.EXPIRED, holders=HELD)], cancel(), {}, None, {}),
    # Commands about a lease.
    *about_a_lease(confirm),
    *about_a_lease(renew),
    *about_a_lease(release),
    ([GONE], confirm(), {}, Kind.LEASE_ENDED, {"reason": "hold"}),
    ([GONE], renew(), {}, Kind.LEASE_ENDED, {"reason": "hold"}),
    ([GONE], release(), {}, None, {}),  # repeated: it has been released
    ([own(holders=HELD)], release(), {}, Kind.HOLDER_UNKNOWN, {"holders": ["r1", "r2"]}),
    ([own(holders=HELD)], renew(), {}, None, {}),
    ([own(holders=HELD)], release(), {"holder": "r1"}, None, {}),
]


@pytest.mark.parametrize(("rows", "command", "sender", "kind", "facts"), REFUSED)
def test_a_command_is_refused_for_one_cause_and_changes_nothing(
    rows: Sequence[Lease | Request],
    command: LeaseCommand,
    sender: dict[str, Any],
    kind: Kind | None,
    facts: dict[str, Any],
) -> None:
    ledger = ledger_of(*rows)
    before = (dict(ledger.pools), dict(ledger.leases), dict(ledger.requests))
    outcome = submitted(ledger, command, **sender)
    if kind is None:
        assert isinstance(outcome, Answer), outcome
        return
    assert isinstance(outcome, Refusal), outcome
    assert (outcome.kind, outcome.facts) == (kind, facts)
    subject = outcome.detail.replace("'", "")
    assert any(name in subject for name in ("lease l1", "lease l9", "request r", "pool p"))
    assert kind is not Kind.FENCED or "fencing token 2;" in subject
    assert kind is not Kind.UNKNOWN_REQUEST or subject == "lease pool p has no request r"
    assert all(name in subject for name in facts.get("fields", []))
    if kind is Kind.REQUEST_IN_USE and ledger.leases:  # its lease is taken over after three quarters of the TTL
        assert "request r is in use by" in outcome.detail
        assert (NOW + timedelta(seconds=225)).isoformat() in outcome.detail
    assert (ledger.pools, ledger.leases, ledger.requests) == before
    assert (ledger.events, ledger.history, ledger.dirty, ledger.refusals) == ([], [], set(), [])


def test_every_kind_of_refusal_has_a_case() -> None:
    """But for those that need a pool of its own; see below."""
    of_pools = {Kind.UNKNOWN_LEASE_POOL, Kind.TOO_MANY_TENANTS, Kind.TOO_MANY_WAITING}
    assert {kind for *_, kind, _ in REFUSED if kind is not None} == set(Kind) - of_pools


def test_an_archived_pool_takes_no_new_request() -> None:
    """It would wait for ever; those that wait already may be repeated and cancelled."""
    archived = msgspec.structs.replace(POOL, archived=True)
    outcome = submitted(ledger_of(pool=archived), again())
    assert isinstance(outcome, Refusal)
    assert outcome.kind is Kind.UNKNOWN_LEASE_POOL
    assert outcome.detail.startswith("lease pool 'p' is not declared")
    for command in (again(), cancel()):
        assert isinstance(submitted(ledger_of(asked(), pool=archived), command), Answer)


@pytest.mark.parametrize(
    ("tenant", "known", "sender", "refused"),
    [
        ("t", False, {}, True),
        ("t", True, {}, False),
        ("ann", False, {}, False),
        ("t", False, {"over_kafka": True}, False),
    ],
)
def test_a_token_names_so_many_tenants_and_no_more(
    tenant: str, known: bool, sender: dict[str, Any], refused: bool
) -> None:
    """Beside its own; one that it named before is none more."""
    for named in (TENANTS_MAX - 1, TENANTS_MAX):
        ledger = ledger_of()
        ledger.tenants_by["p", "ann"] = named
        if known:
            ledger.tenants["p", "t"] = Tenant(lease_pool_id="p", tenant="t", owner="ann")
        outcome = submitted(ledger, again(tenant=tenant), **sender)
        assert isinstance(outcome, Refusal if refused and named == TENANTS_MAX else Answer)
        if isinstance(outcome, Refusal):
            assert outcome.kind is Kind.TOO_MANY_TENANTS
            assert outcome.detail.startswith("ann already requests leases")


#   request, number that waits, sender → refused
WAITING_MAX: Final = [
    ("new", 2, {}, False),
    ("new", 3, {}, True),
    ("new", 3, {"name": "ben"}, False),
    ("new", 3, {"name": "ben", "waiting_max": 1}, False),
    ("new", 3, {"over_kafka": True, "waiting_max": None}, False),
    ("r", 3, {}, False),  # it waits already
]


@pytest.mark.parametrize(("request_id", "number", "sender", "refused"), WAITING_MAX)
def test_so_many_requests_of_a_token_wait_and_no_more(
    request_id: str, number: int, sender: dict[str, Any], refused: bool
) -> None:
    """In one pool. A refused one changes nothing, and says when to ask again; one that repeats a known id is none
    more."""
    waiting = [asked(), *(msgspec.structs.replace(asked(), id=f"r{n}") for n in range(number - 1))]
    ledger = ledger_of(*waiting)
    assert ledger.pools["p"].waiting_by == {"ann": number}
    outcome = submitted(ledger, again(request_id=request_id), **({"waiting_max": 3} | sender))
    assert isinstance(outcome, Refusal if refused else Answer)
    if isinstance(outcome, Refusal):
        assert (outcome.kind, outcome.facts) == (Kind.TOO_MANY_WAITING, {"retry_after_seconds": 30})
        assert "3 requests of ann already wait in lease pool p" in outcome.detail
        assert (ledger.changed_requests, ledger.dirty) == ({}, set())


def test_requests_of_one_batch_count() -> None:
    """The last of them is refused, and one that is cancelled makes room."""
    ledger, sender = ledger_of(), Sender(name="ann", waiting_max=2)
    first, second, third = (again(request_id=name) for name in "abc")
    commands: list[LeaseCommand] = [first, second, third, cancel("a"), third]
    exchanges = record([Submission(command=command, sender=sender) for command in commands], ledger, NOW)
    assert [isinstance(outcome, Answer) for _, outcome in exchanges] == [True, True, False, True, True]
    assert ledger.pools["p"].waiting_by == {"ann": 2}


#        rows, command, options, units released and cancelled, units and state of its lease afterwards
ANSWERED: list[
    tuple[list[Lease | Request], LeaseCommand, dict[str, Any], tuple[int, int], tuple[int, State] | None]
] = [
    ([], again(), {}, (0, 0), None),
    ([asked()], again(), {}, (0, 0), None),
    ([asked(0), own()], again(), {}, (0, 0), (2, State.CONFIRMED)),
    ([asked(0), own(state=State.RESERVED)], again(), {}, (0, 0), (2, State.RESERVED)),
    ([asked(0), own(state=State.RESERVED)], again(), {"confirm": True}, (0, 0), (2, State.CONFIRMED)),
    ([own(state=State.RESERVED)], confirm(), {}, (0, 0), (2, State.CONFIRMED)),
    ([own(state=State.RESERVED)], renew(), {}, (0, 0), (2, State.RESERVED)),
    ([own(3)], release(units=1), {}, (1, 0), (2, State.CONFIRMED)),
    ([own(3)], release(), {}, (3, 0), (0, State.RELEASED)),
    ([own(3)], release(), {"remaining": 1}, (2, 0), (1, State.CONFIRMED)),
    ([own(3)], release(), {"remaining": 2}, (1, 0), (2, State.CONFIRMED)),
    ([own(3)], release(), {"remaining": 0}, (3, 0), (0, State.RELEASED)),
    ([own(3)], release(), {"remaining": 3}, (0, 0), (3, State.CONFIRMED)),  # repeated
    ([own(3)], release(), {"remaining": 4}, (0, 0), (3, State.CONFIRMED)),
    ([GONE], release(), {"remaining": 0}, (0, 0), (0, State.RELEASED)),
    ([GONE], release(), {}, (0, 0), (0, State.RELEASED)),
    ([asked()], cancel(), {}, (0, 2), None),
    ([asked(0), own()], cancel(), {}, (2, 0), None),
    ([asked(1), own(1)], cancel(), {}, (1, 1), None),
    ([asked(1), own(1), lease(2, State.CONFIRMED)], cancel(), {}, (2, 1), None),  # granted in parts
    ([asked(0), own(), lease(2, State.CONFIRMED, request_id="other")], cancel(), {}, (2, 0), None),
    ([asked(0), own(holders=HELD)], cancel(), {"holder": "r1"}, (0, 0), None),  # r2 still holds it
    ([asked(0)], cancel(), {}, (0, 0), None),
]


@pytest.mark.parametrize(("rows", "command", "options", "units", "held"), ANSWERED)
def test_the_answer_is_what_the_rows_say(
    rows: list[Lease | Request],
    command: LeaseCommand,
    options: dict[str, Any],
    units: tuple[int, int],
    held: tuple[int, State] | None,
) -> None:
    """And the pool counts what is held and what waits, exactly."""
    ledger = ledger_of(*rows)
    outcome = submitted(ledger, command, **options)
    assert isinstance(outcome, Answer)
    assert (outcome.released_units, outcome.cancelled_units, outcome.now) == (*units, NOW)
    assert (outcome.pool.id, ledger.refusals) == ("p", [])
    assert (None if outcome.lease is None else (outcome.lease.units, outcome.lease.state)) == held
    assert outcome.lease is None or outcome.lease == ledger.leases["p", "l1"]
    assert outcome.request is None or outcome.request == ledger.requests["p", "r"]
    assert (outcome.request is not None) == isinstance(command, LeaseRequested | LeaseCancelRequested)
    pool = ledger.pools["p"]
    assert pool.held_units == sum(each.units for each in ledger.leases.values() if each.ended_at is None)
    assert pool.waiting_units == sum(each.waiting_units for each in ledger.requests.values())


@pytest.mark.parametrize(
    ("remaining", "recorded"),
    [(None, ["reported-late", "throttled"]), (0, ["reported-late", "throttled"]), (1, [])],
    ids=["units", "all", "some-kept"],
)
def test_a_late_release_is_answered_once_with_its_evidence(remaining: int | None, recorded: list[str]) -> None:
    """Its lease was ended by its hold. One that keeps units may be a repetition of one from before."""
    ledger = ledger_of(GONE)
    for _ in range(2):
        assert isinstance(submitted(ledger, release(throttled=True), remaining=remaining), Answer)
    assert [entry.kind for entry in ledger.history] == recorded


def test_answers_of_a_batch_are_those_of_its_end() -> None:
    """A request that a later command of the batch cancels does not wait."""
    sender, ledger = Sender(name="ann"), ledger_of()
    exchanges = record([Submission(command=command, sender=sender) for command in (again(), cancel())], ledger, NOW)
    waits = [outcome.waits for _, outcome in exchanges if isinstance(outcome, Answer)]
    assert waits == [False, False]


def test_another_process_takes_a_lease_over_by_asking_for_it() -> None:
    """Once its holder was silent for too long: under a new token, which is published."""
    silent = own(holders={"r1": Holding(since=NOW)}, extended_at=NOW - timedelta(seconds=226))
    ledger = ledger_of(asked(0), silent, pool=msgspec.structs.replace(POOL, last_token=6))
    outcome = submitted(ledger, again(), holder="r2")
    assert isinstance(outcome, Answer)
    assert outcome.lease is not None
    assert (outcome.lease.fencing_token, outcome.lease.holder, ledger.pools["p"].last_token) == (7, "r2", 7)
    assert [entry.kind for entry in ledger.history] == ["taken-over"]
    assert [(event.lease_id, event.fencing_token) for event in ledger.events] == [("l1", 7)]


@pytest.mark.parametrize(
    ("command", "sender", "report", "tenant"),
    [
        (release(), {}, False, False),
        (release(throttled=True), {}, True, False),
        (release(retry_after_seconds=9.0), {}, True, False),
        (release(quota_remaining=0), {}, True, False),
        (release(throttled=True), {"adapter": True}, False, False),  # believed whatever it holds
        (again(), {}, False, True),
        (again(tenant="ann"), {}, False, False),
        (again(), {"over_kafka": True}, False, False),
        (cancel(), {}, False, False),
    ],
)
def test_commands_for_which_more_rows_are_read(
    command: LeaseCommand, sender: dict[str, Any], report: bool, tenant: bool
) -> None:
    submission = Submission(command=command, sender=Sender(name="ann", **sender))
    assert (is_report(submission), names_tenant(submission)) == (report, tenant)
