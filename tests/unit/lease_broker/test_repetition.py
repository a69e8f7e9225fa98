"""Answers to repeated requests: a grant or an end for each lease, then what waits."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from slipway_common.events.lease import (
    LeaseExpired,
    LeaseGranted,
    LeaseLost,
    LeaseQueued,
    LeaseReleased,
    LeaseRequested,
)
from slipway_lease_broker.domain.exchange import Submission
from slipway_lease_broker.domain.ledger import Lease, Ledger, State
from slipway_lease_broker.domain.repetition import answer_repeated
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.submissions import record
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
