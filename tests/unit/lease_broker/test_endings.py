"""Ends of leases by time: the deadline that comes first, and the event and reason of each end."""

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.lease import LeaseExpired, LeaseLost, LeaseReleased
from slipway_lease_broker.domain.endings import (
    EXPIRED,
    HOLD,
    LOST,
    NO_PROGRESS,
    apply_deadline,
    end_event,
    end_reason,
    ended_event,
)
from slipway_lease_broker.domain.ledger import Lease, State
from slipway_lease_broker.domain.reception import Downtime, Receiving
from tests.support.lease_rows import NOW

LINGER: Final = timedelta(seconds=900)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


LEASE: Final = Lease(
    id="l",
    lease_pool_id="p",
    request_id="r",
    fencing_token=1,
    granted_units=3,
    units=2,
    state=State.CONFIRMED,
    granted_at=NOW,
    expires_at=at(100),
    hold_until=at(1000),
    extended_at=NOW,
)
IDS: Final = {"lease_pool_id": "p", "lease_id": "l", "request_id": "r"}


def lease(**changes: Any) -> Lease:
    return msgspec.structs.replace(LEASE, **changes)


#    lease, seconds, changes of it at its deadline
ENDS: Final[list[tuple[Lease, float, dict[str, Any]]]] = [
    (lease(), 99.9, {}),
    (lease(), 100, {"state": State.LOST, "counted_until": at(100) + LINGER, "reason": LOST}),
    (lease(state=State.RESERVED), 100, {"state": State.EXPIRED, "ended_at": at(100), "reason": EXPIRED}),
    (lease(expires_at=at(1000)), 999, {}),
    (lease(expires_at=at(1000)), 1000, {"state": State.RELEASED, "units": 0, "ended_at": at(1000), "reason": HOLD}),
    (
        lease(state=State.RESERVED, hold_until=at(50)),
        70,
        {"state": State.RELEASED, "units": 0, "ended_at": at(70), "reason": HOLD},
    ),
    (
        lease(progress_until=at(40)),
        40,
        {"state": State.LOST, "counted_until": at(40) + LINGER, "reason": NO_PROGRESS},
    ),
    (  # it was not renewed either
        lease(progress_until=at(100)),
        100,
        {"state": State.LOST, "counted_until": at(100) + LINGER, "reason": LOST},
    ),
    (  # a hold that ends no later than its progress is no stall
        lease(hold_until=at(40), progress_until=at(40)),
        40,
        {"state": State.RELEASED, "units": 0, "ended_at": at(40), "reason": HOLD},
    ),
    (lease(state=State.LOST, counted_until=at(300)), 299, {}),
    (lease(state=State.LOST, counted_until=at(300)), 301, {"ended_at": at(301)}),
]


@pytest.mark.parametrize(("before", "seconds", "changes"), ENDS)
def test_a_lease_ends_at_its_first_deadline(before: Lease, seconds: float, changes: dict[str, Any]) -> None:
    then = apply_deadline(before, at(seconds), LINGER)
    assert then == msgspec.structs.replace(before, **changes)
    assert (then is before) is not bool(changes)


DOWN: Final = Receiving(kafka=None, http=[Downtime(at(50), at(80))])


def test_a_renewal_that_could_not_arrive_is_waited_for() -> None:
    """As long as its own way in was down, and no longer than its hold; while that is down it does not end."""
    assert apply_deadline(lease(over_kafka=True), at(500), LINGER, DOWN) == lease(over_kafka=True)
    postponed = apply_deadline(lease(progress_until=at(90)), at(101), LINGER, DOWN)
    assert postponed == lease(expires_at=at(130), progress_until=at(120), extended_at=at(101))
    assert apply_deadline(lease(), at(130), LINGER, DOWN).state is State.LOST
    short = apply_deadline(lease(hold_until=at(110)), at(105), LINGER, DOWN)
    assert short == lease(expires_at=at(110), hold_until=at(110), extended_at=at(105))
    ended = apply_deadline(lease(hold_until=at(110)), at(110), LINGER, DOWN)
    assert (ended.state, ended.reason) == (State.RELEASED, HOLD)


@pytest.mark.parametrize(
    ("before", "event", "reason"),
    [
        (lease(), LeaseLost(**IDS, units=2, counted_until=at(100) + LINGER), "lost, not renewed in time: 2 units"),
        (
            lease(progress_until=at(40), units=1),
            LeaseLost(**IDS, units=1, counted_until=at(100) + LINGER),
            "lost, no progress reported: 1 unit counted until ",
        ),
        (
            lease(state=State.RESERVED),
            LeaseExpired(**IDS, units=2),
            "not confirmed before its reserve deadline: 2 units freed",
        ),
        (
            lease(hold_until=at(100)),
            LeaseReleased(**IDS, units=2, remaining=0, reason=HOLD),
            "hold ended: 2 units freed",
        ),
        (lease(state=State.LOST, counted_until=at(100)), None, "lost lease no longer counted: 2 units freed"),
    ],
)
def test_each_end_has_its_event_and_reason(before: Lease, event: object, reason: str) -> None:
    then = apply_deadline(before, at(100), LINGER)
    assert end_event(before, then) == event
    assert end_reason(before, then).startswith(reason)


def test_an_end_is_published_again_as_it_was() -> None:
    """A released lease returned all that it was granted, and a lost one counts for as long as it was said to."""
    released = lease(state=State.RELEASED, units=0, reason="done")
    assert ended_event(released) == LeaseReleased(**IDS, units=3, remaining=0, reason="done")
    assert ended_event(lease(state=State.EXPIRED)) == LeaseExpired(**IDS, units=2)
    for times, until in (({"counted_until": at(7), "ended_at": at(8)}, 7), ({"ended_at": at(8)}, 8), ({}, 100)):
        lost = lease(state=State.LOST, **times)
        assert ended_event(lost) == LeaseLost(**IDS, units=2, counted_until=at(until))
