"""Lease commands applied to the ledger: late, repeated, wrong owner, partial."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from slipway_common.base.errors import BadEvent
from slipway_common.events.lease import (
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
)
from slipway_lease_broker.domain.commands import LeaseCommand, apply_command
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Ledger, Request, State, counted, queued
from slipway_lease_broker.domain.sender import Sender

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


def renew(token: int = 7) -> LeaseRenewRequested:
    return LeaseRenewRequested(lease_pool_id="sim-a", lease_id="l", fencing_token=token)


def release(units: int, token: int = 7) -> LeaseReleaseRequested:
    return LeaseReleaseRequested(
        lease_pool_id="sim-a", lease_id="l", fencing_token=token, units=units, result="registered"
    )


def after(*commands: LeaseCommand, leases: tuple[Lease, ...] = (), requests: tuple[Request, ...] = ()) -> Ledger:
    pool = POOL
    for held in leases:
        pool = counted(pool, held, 0, held.units if held.ended_at is None else 0)
    for waiting in requests:
        pool = queued(pool, 0, waiting.waiting_units)
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
    assert (ledger.events, ledger.leases_to_save(), len(ledger.refusals)) == (answers, [], 1)


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
    assert (held.ended_at is not None) == (state is State.RELEASED)
    assert ledger.dirty == {"sim-a"}


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
    assert after(command, command, requests=(waiting_request(0),)).refusals == [
        "nothing to cancel",
        "nothing to cancel",
    ]


BAD: list[LeaseCommand] = [
    request(lease_pool_id="nowhere"),
    request(0),
    request(-1),
    request(2**70),
    request(request_id=""),
    release(0),
    msgspec.structs.replace(release(1), quota_remaining=10**400),
    msgspec.structs.replace(release(1), quota_remaining=-5),
    request(group=LeaseGroup(name="g", size=100_000, spread_seconds=86_401, member=99_999)),
]


@pytest.mark.parametrize("command", BAD)
def test_bad_values_are_dead_letters(command: LeaseCommand) -> None:
    """Values that no ledger can hold are an error of the record, not of the database."""
    with pytest.raises(BadEvent):
        after(command, leases=(lease(State.CONFIRMED),))


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


def test_an_unleased_launch_is_released_like_a_lease() -> None:
    """Also in the batch that reports it."""
    back = LeaseReleaseRequested(lease_pool_id="sim-a", lease_id="u", fencing_token=1, units=2, result="registered")
    ledger = after(unleased(0), back)
    assert [lease.state for lease in ledger.leases_to_add()] == [State.RELEASED]
    assert (ledger.pools["sim-a"].held_units, ledger.leases_to_save()) == (0, [])
