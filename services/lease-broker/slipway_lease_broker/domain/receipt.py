"""Confirmation on receipt: a caller that gets its grant in the answer to an open call need not confirm it separately.
Pure."""

from collections.abc import Callable, Sequence

from slipway_api.events.lease import LeaseConfirmRequested, LeaseRenewRequested, LeaseRequested
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.exchange import Answer, Exchange, Submission
from slipway_lease_broker.domain.holders import is_holder
from slipway_lease_broker.domain.ledger import Lease
from slipway_lease_broker.domain.refusals import Refusal, end_of, in_use, lease_ended


def receivers(
    exchanges: Sequence[Exchange], lease_pool_id: str, confirms: Callable[[str, str], bool]
) -> Callable[[str], bool]:
    """Test of request ids: true of those of a lease pool whose callers confirm on receipt. Such a caller gets its grant
    in the answer of this batch, if it was not refused, or of an earlier one: `confirms` is true of a lease pool and a
    request for which such a caller waits."""
    requesting = {
        command.request_id
        for submission, outcome in exchanges
        if submission.confirm
        and isinstance(command := submission.command, LeaseRequested)
        and isinstance(outcome, Answer)
        and command.lease_pool_id == lease_pool_id
    }
    return lambda request_id: request_id in requesting or confirms(lease_pool_id, request_id)


def answer(decision: Decision, exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Give the callers of a batch what a decision granted them, and refuse the commands that it has overtaken."""
    granted = {lease.request_id: lease for lease in decision.granted}
    ended = {lease.id: lease for lease in decision.ended}
    after: list[Exchange] = []
    for submission, outcome in exchanges:
        if isinstance(outcome, Answer) and submission.command.lease_pool_id == decision.pool.id:
            outcome.pool = decision.pool
            if outcome.request is not None and outcome.lease is None:
                outcome.lease = granted.get(outcome.request.id)
                outcome = _of_another(submission, outcome) or outcome
            elif outcome.lease is not None and (then := ended.get(outcome.lease.id)) is not None:
                outcome.lease = then
                outcome = overtaken(submission, then) or outcome
        after.append((submission, outcome))
    return after


def overtaken(submission: Submission, then: Lease) -> Refusal | None:
    """Refusal of a command on a lease whose deadline passed in the same transaction, as for a later command. None for a
    release, which has taken effect."""
    match submission.command:
        case LeaseRequested():
            return lease_ended(f"lease {then.id} of request {then.request_id}", end_of(then))
        case LeaseConfirmRequested() | LeaseRenewRequested():
            return lease_ended(f"lease {then.id}", end_of(then))
        case _:
            return None


def _of_another(submission: Submission, answer: Answer) -> Refusal | None:
    """Refusal of a request whose grant belongs to another process, which asked later in the same batch."""
    lease = answer.lease
    if lease is None or is_holder(lease, submission.sender.holder):
        return None
    return in_use(lease, answer.pool)
