"""Confirmation on receipt, for batches with commands to several lease pools."""

from collections.abc import Sequence
from datetime import UTC, datetime

from slipway_api.events.lease import LeaseRequested
from slipway_lease_broker.domain.decide import Decision, decide
from slipway_lease_broker.domain.exchange import Answer, Exchange, Submission
from slipway_lease_broker.domain.ledger import LeasePool, State, new_request
from slipway_lease_broker.domain.receipt import answer, receivers
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
