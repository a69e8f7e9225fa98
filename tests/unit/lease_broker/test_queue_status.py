"""Status of a waiting request: its reason is that of the verdict of admission, with times and position."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain.ledger import Group, Tenant
from slipway_lease_broker.domain.pacing import Pace, Pacing
from slipway_lease_broker.domain.queue_status import HoldEnd, QueuePosition, at_its_turn, queue_status
from slipway_lease_broker.domain.terms import Operation, Policy
from tests.support import lease_rows
from tests.support.lease_rows import NOW

RESERVED = Policy(pacing="off", operations={"destroy": Operation(reserved_units=2)})


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


POOL = msgspec.structs.replace(lease_rows.POOL, limit_units=2, policy=Policy(pacing="off"))
REQUEST = msgspec.structs.replace(lease_rows.REQUEST, whole=True)
GROUP = Group(lease_pool_id="p", name="g", size=2, spread_seconds=60, first_at=NOW, last_start_at=NOW)
ELSEWHERE = msgspec.structs.replace(REQUEST, lease_pool_id="q", gang_id="g")
FULL: dict[str, Any] = {"held": {"install": 2}}


def place(
    pool: dict[str, Any], request: dict[str, Any], *, position: int = 1, tenant: Tenant | None = None, **more: Any
) -> QueuePosition:
    return QueuePosition(
        request=msgspec.structs.replace(REQUEST, **request),
        position=position,
        pool=msgspec.structs.replace(POOL, **pool),
        now=NOW,
        tenant=tenant,
        granted_units=0,
        granted_seconds=0.0,
        **more,
    )


BACKING_OFF = Tenant(lease_pool_id="p", tenant="t", failures=2, backoff_until=at(40))
HELD_BACK = Tenant(lease_pool_id="p", tenant="t", held_back_until=at(40), held_back_reason="lost a lease")
Q = msgspec.structs.replace(POOL, id="q", drained_reason="moving")

CASES = [
    (place(FULL, {}), "2 of 2 held", "full"),
    (place(FULL, {}, position=3), "2 of 2 held; 2 ahead", "full"),
    (place({}, {}, position=2), "0 of 2 held; 1 ahead", "full"),  # it may start: it waits for the one ahead
    (place({"policy": RESERVED}, {"operation": "destroy"}, position=2), "0 of 2 held; 1 ahead", "full"),
    (place({"drained_reason": "moving"}, {}), "drained: moving", "drained"),
    (place({"limit_units": 0}, {}), "the limit is 0: as declared", "limit-zero"),
    (
        place({}, {"waiting_units": 3}),
        "requests 3 units, more than the limit of 2 allows: as declared",
        "too-many-units",
    ),
    (
        place({"policy": RESERVED}, {}),
        "requests 1 unit, more than the limit of 2 allows with 2 reserved for other operations: as declared",
        "too-many-units",
    ),
    (place({}, {"since": at(9)}), "its group starts it later; not before 2026-01-01T12:00:09+00:00", "spread"),
    (
        place({}, {"group_name": "g"}, group=GROUP),
        "another member of its group has just started; not before 2026-01-01T12:00:30+00:00",
        "spread",
    ),
    (
        place({}, {}, tenant=BACKING_OFF),
        "tenant t backs off after 2 failures; not before 2026-01-01T12:00:40+00:00",
        "backoff",
    ),
    (
        place({}, {}, tenant=HELD_BACK),
        "tenant t waits alone: it lost a lease; not before 2026-01-01T12:00:40+00:00",
        "backoff",
    ),
    (
        place({"blocked_until": at(9)}, {}),
        "the provider asked for a pause (Retry-After); not before 2026-01-01T12:00:09+00:00",
        "blocked",
    ),
    (
        place({"policy": Policy(), "paces": {"install": Pace(until=at(9.7), interval_seconds=30)}}, {}),
        "paced: next start in 9.7 s; 0 of 2 held",
        "paced",
    ),
    (place({}, {"gang_id": "g"}), "its gang starts once all of its pools have free units", "gang"),
    (
        place({}, {"gang_id": "g"}, elsewhere=[ELSEWHERE], other_pools=[Q]),
        "its gang cannot start in q: drained: moving",
        "gang",
    ),
]

TOO_MANY: dict[str, Any] = {"waiting_units": 3}
NEVER = "requests 3 units, more than the limit of 2 allows: as declared"
# With a reason that will pass: the one that will not is given, since the request would otherwise be repeated forever.
NEVER_CASES = [
    (place({"blocked_until": at(9)}, TOO_MANY), NEVER, "too-many-units"),
    (place({}, TOO_MANY, tenant=BACKING_OFF), NEVER, "too-many-units"),
    (place({}, TOO_MANY | {"since": at(9)}), NEVER, "too-many-units"),
    (place({}, TOO_MANY | {"group_name": "g"}, group=GROUP), NEVER, "too-many-units"),
    (place({"limit_units": 0, "blocked_until": at(9)}, {}), "the limit is 0: as declared", "limit-zero"),
    (place({"limit_units": 0}, {}, tenant=BACKING_OFF), "the limit is 0: as declared", "limit-zero"),
]


@pytest.mark.parametrize(("position", "reason", "cause"), CASES + NEVER_CASES)
def test_reason(position: QueuePosition, reason: str, cause: str) -> None:
    """The status adds to the reason of the verdict by which the request waits in a decision, and gives its code."""
    status = queue_status(position)
    assert (status.reason, status.cause) == (reason, cause)
    verdict = at_its_turn(position).verdict(position.request)
    assert at_its_turn(position).run().waiting == ({} if verdict.units else {"r": verdict.reason})
    assert verdict.units == (0 if verdict.reason else position.request.waiting_units)
    assert reason.startswith(verdict.reason)
    assert status.position == position.position


@pytest.mark.parametrize(("position", "reason", "cause"), NEVER_CASES)
def test_no_time_is_named_for_what_never_starts(position: QueuePosition, reason: str, cause: str) -> None:
    """Neither in the status nor as the next time of a decision."""
    status = queue_status(position)
    assert (status.reason, status.cause, status.eta_seconds) == (reason, cause, None)
    assert status.retry_after_seconds == 60.0
    assert at_its_turn(position).run().wake_times == []


def test_a_later_start_without_weight_passes_a_limit_of_reserved_units() -> None:
    """An operation of weight 0 is not counted, also before it may start and where all units are reserved."""
    policy = Policy(pacing="off", operations={"install": Operation(weight=0), "destroy": Operation(reserved_units=3)})
    status = queue_status(place({"policy": policy}, {"since": at(9)}))
    assert status.reason == "its group starts it later; not before 2026-01-01T12:00:09+00:00"


ENDS = (HoldEnd(at=at(90), cost=1), HoldEnd(at=at(200), cost=1))
WEIGHT = Policy(pacing="off", operations={"install": Operation(weight=2)})
ONE: dict[str, Any] = {"held": {"install": 1}}
OWN: dict[str, Any] = {"policy": RESERVED, "limit_units": 4, "held": {"install": 2}}
#   request, expected end of the leases that it waits for, expected wait; in seconds
BEHIND = [
    (place(FULL, {}, hold_ends=ENDS), 90, 90),
    (place(FULL, {}, position=2, hold_ends=ENDS), 200, 200),
    (place(FULL, {"waiting_units": 2}, hold_ends=ENDS), 200, 200),
    (place(FULL, {}, position=3, hold_ends=ENDS), None, 1800),  # for the next hold of one of them: two of 1200 s
    (place(FULL, {}, hold_ends=(HoldEnd(at=at(0), cost=1),)), 0, 1),  # the end of a lease takes a decision
    (place(ONE | {"policy": WEIGHT}, {}, hold_ends=ENDS), 90, 90),  # a unit is free, and it needs two
    (place({}, {}), None, 0),
    (place({}, {}, position=2), None, 0),  # the next decision grants both
    (
        place(FULL | {"drained_reason": "moving"}, {}, hold_ends=[HoldEnd(at=at(90), cost=9)]),
        None,
        None,
    ),  # change nothing
    (place(OWN, {"operation": "destroy"}, hold_ends=ENDS), None, 0),  # two units are reserved for it
]


@pytest.mark.parametrize(("position", "held_until", "eta_seconds"), BEHIND)
def test_a_waiter_is_told_when_the_leases_ahead_end(
    position: QueuePosition, held_until: float | None, eta_seconds: float | None
) -> None:
    """Not later than at the end of their holds."""
    status = queue_status(position)
    assert (status.held_until, status.eta_seconds) == (None if held_until is None else at(held_until), eta_seconds)
    assert ("free by" in status.reason) == (held_until is not None)


@given(
    held=st.integers(1, 5),
    units=st.integers(1, 5),
    position=st.integers(1, 4),
    weight=st.integers(1, 3),
    granted=st.integers(0, 10**6),
    left=st.floats(-5, 1200),
)
def test_no_request_behind_held_leases_is_expected_at_once(
    held: int, units: int, position: int, weight: int, granted: int, left: float
) -> None:
    """However many units were granted in the last minute, and however soon their holds end."""
    policy = Policy(pacing="off", operations={"install": Operation(weight=weight)})
    waits = place(
        {"policy": policy, "held": {"install": held}, "limit_units": max(held, units * weight)},
        {"waiting_units": units},
        position=position,
        hold_ends=[HoldEnd(at=at(left), cost=held)],
    )
    status = queue_status(msgspec.structs.replace(waits, granted_units=granted, granted_seconds=60))
    assert status.eta_seconds is not None
    if held + (position - 1 + units) * weight > waits.pool.limit_units:
        assert status.eta_seconds >= 1


def test_a_request_waits_for_the_starts_ahead_of_it() -> None:
    """One interval each, also while units are free."""
    limit = {
        "limit_units": 9,
        "policy": Policy(pacing=Pacing(100), operations={"install": Operation(pacing=Pacing(12))}),
        "paces": {"install": Pace(until=at(5), interval_seconds=12)},
    }
    waits = [place(limit, {}, position=n, tenant=Tenant(lease_pool_id="p", tenant="t")) for n in (1, 2, 4)]
    assert [queue_status(each).eta_seconds for each in waits] == [5, 17, 41]


#   request, expected wait, seconds until its holder asks again
RETRIES = [
    (place({}, {}), 0, 1),
    (place({}, {"group_name": "g"}, group=GROUP), 30, 30),
    (place({"blocked_until": at(9.74)}, {}), 9.7, 9.7),
    (place(FULL, {}, hold_ends=ENDS), 90, 60),
]


@pytest.mark.parametrize(("position", "eta_seconds", "retry_seconds"), RETRIES)
def test_a_waiter_asks_again_when_its_wait_may_be_over(
    position: QueuePosition, eta_seconds: float, retry_seconds: float
) -> None:
    """To a tenth of a second, at most once a second and at least once a minute."""
    status = queue_status(position)
    assert (status.eta_seconds, status.retry_after_seconds) == (eta_seconds, retry_seconds)


def test_recent_grants_give_the_rate() -> None:
    """Of forty units a minute three are granted in 4.5 s."""
    third = place(FULL, {}, position=3)
    assert queue_status(msgspec.structs.replace(third, granted_units=40, granted_seconds=60)).eta_seconds == 4.5
    assert queue_status(msgspec.structs.replace(third, granted_units=20, granted_seconds=30)).eta_seconds == 4.5
