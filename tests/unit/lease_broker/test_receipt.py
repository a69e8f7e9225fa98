"""What a decision gives to the callers of its batch: confirmed leases, and refusals of what it has overtaken."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from slipway_api.events.lease import (
    LeaseConfirmRequested,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
)
from slipway_lease_broker.domain.commands import LeaseCommand
from slipway_lease_broker.domain.decide import Decision, decide
from slipway_lease_broker.domain.exchange import Answer, Exchange, Submission
from slipway_lease_broker.domain.ledger import Holding, Lease, LeasePool, State, new_request
from slipway_lease_broker.domain.receipt import answer, receivers
from slipway_lease_broker.domain.refusals import Kind, Refusal
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.situation import Situation
from tests.support.lease_broker import TERMS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pool(name: str) -> LeasePool:
    return LeasePool(
        id=name,
        limit_units=1,
        hold_seconds=1200,
        ttl_seconds=300,
        reserve_seconds=180,
        waiting_units=1,
        waiting_requests=1,
    )


def requested(lease_pool_id: str) -> LeaseRequested:
    """A request for one unit of a pool; request ids are the same in all pools."""
    return LeaseRequested(
        lease_pool_id=lease_pool_id, request_id="r", units=1, tenant="t", operation="install", whole=True
    )


def answered(lease_pool_id: str) -> tuple[Submission, Answer]:
    """The exchange with a caller that confirms on receipt, before the decision."""
    command = requested(lease_pool_id)
    answer = Answer(pool=pool(lease_pool_id), now=NOW, request=new_request(command, NOW, sender=Sender()))
    return Submission(command=command, sender=Sender(name="ann"), confirm=True), answer


def decided(lease_pool_id: str, exchanges: Sequence[Exchange]) -> Decision:
    """The decision that grants a unit of a pool to its request, beside these exchanges."""
    situation = Situation(waiters=[new_request(requested(lease_pool_id), NOW, sender=Sender())], per_queue=2)
    is_received = receivers(exchanges, lease_pool_id, lambda *_: False)
    return decide(pool(lease_pool_id), situation, NOW, new_id=lambda: "lease", terms=TERMS, is_received=is_received)


def test_a_decision_answers_commands_to_its_own_pool() -> None:
    """Those to other pools are answered by the decisions for these."""
    own, other = answered("p"), answered("q")
    decision = decided("p", [own, other])
    answer(decision, [own, other])
    (lease,) = decision.granted
    assert (lease.state, own[1].lease, own[1].pool) == (State.CONFIRMED, lease, decision.pool)
    assert (other[1].lease, other[1].pool) == (None, pool("q"))


def test_a_caller_receives_no_lease_of_another_pool() -> None:
    decision = decided("p", [answered("q")])
    assert [lease.state for lease in decision.granted] == [State.RESERVED]


LEASE = Lease(
    id="l",
    lease_pool_id="p",
    request_id="r",
    fencing_token=1,
    granted_units=1,
    units=1,
    state=State.CONFIRMED,
    granted_at=NOW,
    extended_at=NOW,
    expires_at=NOW,
    hold_until=NOW,
    holders={"mine": Holding(since=NOW)},
)
LOST = replace(LEASE, state=State.LOST, counted_until=NOW)
ABOUT: dict[str, Any] = {"lease_pool_id": "p", "lease_id": "l", "fencing_token": 1}


@pytest.mark.parametrize(
    ("command", "detail"),
    [
        (requested("p"), "lease l of request r: lost"),
        (LeaseConfirmRequested(**ABOUT), "lease l: lost"),
        (LeaseRenewRequested(**ABOUT), "lease l: lost"),
        (LeaseReleaseRequested(**ABOUT, units=1, result="done"), ""),  # it has taken effect
    ],
)
def test_a_deadline_that_passes_in_the_same_transaction(command: LeaseCommand, detail: str) -> None:
    """The command is refused as a later one would be; commands on other leases, and to other pools, are answered."""
    sender, ended = Sender(name="ann"), Decision(pool=pool("p"), ended=(LOST,), wake_at=None)
    submission = Submission(command=command, sender=sender)
    request = new_request(requested("p"), NOW, sender=sender) if isinstance(command, LeaseRequested) else None
    for lease, then in ((LEASE, LOST), (replace(LEASE, id="m"), None)):
        given = Answer(pool=pool("q"), now=NOW, lease=lease, request=request)
        ((same, outcome),) = answer(ended, [(submission, given)])
        assert same is submission
        if then is not None and detail:
            assert outcome == Refusal(Kind.LEASE_ENDED, detail, {"reason": "lost"})
        else:
            assert outcome is given
            assert (given.lease, given.pool) == (then or lease, ended.pool)
    refused = Refusal(Kind.FENCED, "")
    assert answer(ended, [(submission, refused)]) == [(submission, refused)]


@pytest.mark.parametrize(("holder", "is_refused"), [("mine", False), ("", False), ("another", True)])
def test_a_grant_goes_to_the_process_that_asked_last(holder: str, is_refused: bool) -> None:
    """The one before, in the same batch, is told that its request is in use."""
    granted = Decision(pool=pool("p"), granted=(LEASE,), wake_at=None)
    given = answered("p")[1]
    submission = Submission(command=requested("p"), sender=Sender(name="ann", holder=holder))
    ((_, outcome),) = answer(granted, [(submission, given)])
    if is_refused:
        assert isinstance(outcome, Refusal)
        assert (outcome.kind, outcome.facts["holder"]) == (Kind.REQUEST_IN_USE, "mine")
        assert (NOW + timedelta(seconds=225)).isoformat() in outcome.detail
    else:
        assert outcome is given
        assert given.lease == LEASE


def test_a_request_that_is_not_granted_waits() -> None:
    given = answered("p")[1]
    submission = Submission(command=requested("p"), sender=Sender(name="ann"))
    assert answer(Decision(pool=pool("p"), wake_at=None), [(submission, given)]) == [(submission, given)]
    assert (given.lease, given.waits) == (None, True)
