"""Status of a waiting request: its reason is that of the verdict of admission, with times and position."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from slipway_lease_broker.domain.ledger import Group, Tenant
from slipway_lease_broker.domain.queue_status import QueuePosition, at_its_turn, queue_status
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
Q = msgspec.structs.replace(POOL, id="q", drained_reason="moving")

CASES = [
    (place(FULL, {}), "2 of 2 held", "full"),
    (place(FULL, {}, position=3), "2 of 2 held; 2 ahead", "full"),
    (place({}, {}, position=2), "0 of 2 held; 1 ahead", "full"),  # it may start: it waits for the one ahead
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
        place({"blocked_until": at(9)}, {}),
        "the provider asked for a pause (Retry-After); not before 2026-01-01T12:00:09+00:00",
        "blocked",
    ),
    (
        place({"policy": Policy(), "paced_until": at(9), "paced_interval_seconds": 300.0}, {}),
        "starts are paced; not before 2026-01-01T12:00:09+00:00",
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
    assert verdict.units or reason.startswith(verdict.reason)


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
