"""Confirmation on receipt: a caller that gets its grant in the answer to an open call need not confirm it separately.
Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from slipway_common.events.lease import LeaseConfirmRequested, LeaseGranted, LeaseRenewRequested, LeaseRequested
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.exchange import Answer, Exchange, Submission
from slipway_lease_broker.domain.holders import is_holder
from slipway_lease_broker.domain.ledger import Entry, Lease, State, advance, alive_until
from slipway_lease_broker.domain.refusals import Refusal, end_of, in_use, lease_ended


def receive(
    decision: Decision, exchanges: Sequence[Exchange], confirms: Callable[[str, str], bool], now: datetime
) -> tuple[Decision, list[Exchange]]:
    """Confirm the leases that callers receive now; returns the decision and the outcomes of its batch.

    A caller that confirms on receipt gets its grant in the answer of this batch, if it was not refused, or of an
    earlier one: `confirms` is true of a lease pool and a request for which such a caller waits.
    """
    pool_id = decision.pool.id
    requesting = {
        command.request_id
        for submission, outcome in exchanges
        if submission.confirm
        and isinstance(command := submission.command, LeaseRequested)
        and isinstance(outcome, Answer)
        and command.lease_pool_id == pool_id
    }
    decision = _confirm(
        decision,
        lambda lease: lease.request_id in requesting or confirms(pool_id, lease.request_id),
        now,
    )
    granted = {lease.request_id: lease for lease in decision.granted}
    ended = {lease.id: lease for lease in decision.ended}
    after: list[Exchange] = []
    for submission, outcome in exchanges:
        if isinstance(outcome, Answer) and submission.command.lease_pool_id == pool_id:
            outcome.pool = decision.pool
            if outcome.request is not None and outcome.lease is None:
                outcome.lease = granted.get(outcome.request.id)
                outcome = _of_another(submission, outcome) or outcome
            elif outcome.lease is not None and (then := ended.get(outcome.lease.id)) is not None:
                outcome.lease = then
                outcome = overtaken(submission, then) or outcome
        after.append((submission, outcome))
    return decision, after


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


def _confirm(decision: Decision, is_received: Callable[[Lease], bool], now: datetime) -> Decision:
    granted = tuple(_confirmed(decision, lease, now) if is_received(lease) else lease for lease in decision.granted)
    confirmed = {lease.id: lease for lease in granted if lease.state is State.CONFIRMED}
    if not confirmed:
        return decision
    deadlines = [lease.deadline for lease in granted]
    return msgspec.structs.replace(
        decision,
        granted=granted,
        events=tuple(_with_deadline(event, confirmed) for event in decision.events),
        history=(*decision.history, *(_entry(lease, now) for lease in confirmed.values())),
        wake_at=min(deadlines if decision.wake_at is None else [decision.wake_at, *deadlines]),
    )


def _confirmed(decision: Decision, lease: Lease, now: datetime) -> Lease:
    state = advance(lease.state, "confirmed")
    expires_at = alive_until(decision.pool, state, now, lease.hold_until)
    return msgspec.structs.replace(lease, state=state, expires_at=expires_at)


def _with_deadline(event: Any, leases: dict[str, Lease]) -> Any:
    lease = leases.get(event.lease_id) if isinstance(event, LeaseGranted) else None
    return event if lease is None else msgspec.structs.replace(event, expires_at=lease.expires_at)


def _entry(lease: Lease, now: datetime) -> Entry:
    return Entry(
        lease_pool_id=lease.lease_pool_id,
        at=now,
        kind="confirmed",
        reason="confirmed by receipt of the grant",
        lease_id=lease.id,
        request_id=lease.request_id,
        actor=lease.owner,
    )
