"""Checks submitted lease commands against the ledger, applies them to it, and answers them. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseExpired,
    LeaseGranted,
    LeaseLost,
    LeaseQueued,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRequested,
    LeaseUnleasedReported,
)
from slipway_lease_broker.domain.commands import (
    UNITS_MAX,
    apply_command,
    apply_permitted,
    claim_lease,
    confirmation,
    denial_of,
    is_late_evidence,
)
from slipway_lease_broker.domain.decide import grant_event, queued_event
from slipway_lease_broker.domain.endings import ended_event
from slipway_lease_broker.domain.exchange import Answer, Exchange, Submission
from slipway_lease_broker.domain.holders import Left, active, is_holder, is_in_use, left
from slipway_lease_broker.domain.ledger import Lease, Ledger, Request, State, new_request
from slipway_lease_broker.domain.limits import highest
from slipway_lease_broker.domain.ownership import denied, may_act
from slipway_lease_broker.domain.refusals import (
    Refusal,
    end_of,
    holder_unknown,
    in_use,
    lease_ended,
    of_denial,
    request_conflict,
    request_in_use,
    too_many_tenants,
    too_many_units,
    too_many_waiting,
    unknown_lease_pool,
    unknown_request,
    wrong_owner,
)
from slipway_lease_broker.domain.rules import never_starts
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.unleased import lost_id

Answered: TypeAlias = LeaseGranted | LeaseReleased | LeaseExpired | LeaseLost | LeaseQueued

TENANTS_MAX: Final = 100
"""Tenants in a pool that one token names beside its own: each gets a share of its own."""


def record(submissions: Iterable[Submission], ledger: Ledger, now: datetime) -> list[Exchange]:
    """Apply submissions in order, and return the outcomes of those that are answered; a refused one changes nothing. A
    repeated request of another way in is answered with events. Raises BadEvent for values that cannot be stored."""
    exchanges: list[Exchange] = []
    for submission in submissions:
        if submission.answered:
            exchanges.append((submission, refusal(submission, ledger, now) or apply(submission, ledger, now)))
            continue
        command = submission.command
        repeated = known_request(command, ledger) if isinstance(command, LeaseRequested) else None
        denial = apply_command(ledger, command, now, submission.sender, traceparent=submission.traceparent)
        if repeated is not None and denial is None:
            ledger.events += answer_repeated(repeated, ledger.leases.values())
    for _, outcome in exchanges:  # a later submission of the batch may be about the same request
        if isinstance(outcome, Answer) and outcome.request is not None:
            outcome.request = ledger.requests[outcome.pool.id, outcome.request.id]
    return exchanges


def is_report(submission: Submission) -> bool:
    """True for a release with throttle evidence that is judged by what its sender holds."""
    command = submission.command
    if not isinstance(command, LeaseReleaseRequested) or submission.sender.adapter:
        return False
    return command.throttled or bool(command.retry_after_seconds) or command.quota_remaining is not None


def names_tenant(submission: Submission) -> bool:
    """True for a request for another tenant than that of the sender's own name."""
    command, sender = submission.command, submission.sender
    return isinstance(command, LeaseRequested) and command.tenant != sender.name and not sender.over_kafka


def known_request(command: LeaseRequested | LeaseCancelRequested, ledger: Ledger) -> Request | None:
    """The request that a command names; None if there is none yet."""
    return ledger.requests.get((command.lease_pool_id, command.request_id))


def answer_repeated(request: Request, leases: Iterable[Lease]) -> list[Answered]:
    """Events that answer a repeated request: the grant or the end of each of its leases, in order of grants, then the
    units that wait. Without them, one lost event would let its owner wait for ever."""
    granted = sorted((one for one in leases if one.request_id == request.id), key=lambda lease: lease.fencing_token)
    answers: list[Answered] = [grant_event(lease) if lease.live else ended_event(lease) for lease in granted]
    return [*answers, queued_event(request, 0)]


def refusal(submission: Submission, ledger: Ledger, now: datetime) -> Refusal | None:
    """Refusal of a submission; None if it may be applied."""
    command = submission.command
    denial = denial_of(command, ledger, submission.sender)
    if isinstance(command, LeaseRequested | LeaseCancelRequested):
        known = known_request(command, ledger)
        if denial is not None:
            return wrong_owner(f"request {command.request_id}")
        if isinstance(command, LeaseCancelRequested):
            return _refused_cancel(submission, command, known, ledger)
        if known is None:
            return _refused_new(submission, command, ledger, now)
        return _refused_repeat(submission, command, known, ledger, now)
    assert not isinstance(command, LeaseUnleasedReported)  # it is reported without waiting for an answer
    lease = ledger.leases.get((command.lease_pool_id, command.lease_id))
    if lease is None or denial is not None:
        return of_denial(denial, command.lease_id, command.fencing_token)
    if lease.live:
        is_unnamed = isinstance(command, LeaseReleaseRequested) and left(lease, submission.sender) is Left.UNNAMED
        return holder_unknown(lease, active(lease)) if is_unnamed else None
    is_repeat = lease.state is State.RELEASED and isinstance(command, LeaseReleaseRequested)
    return None if is_repeat else lease_ended(f"lease {lease.id}", end_of(lease))


def _refused_cancel(
    submission: Submission, command: LeaseCancelRequested, known: Request | None, ledger: Ledger
) -> Refusal | None:
    """Refusal of a cancellation of nothing, or one that would end the wait or the lease of another process."""
    if known is None:
        return unknown_request(command.lease_pool_id, command.request_id)
    sender = submission.sender
    if known.waiting_units and sender.holder and known.holder not in ("", sender.holder):
        return request_in_use(known.id, known.holder, known.last_requested_at)
    for lease in ledger.leases.values():
        if lease.request_id == known.id and lease.live:
            if not is_holder(lease, sender.holder):
                return in_use(lease, ledger.pools[known.lease_pool_id])
            if left(lease, sender) is Left.UNNAMED:
                return holder_unknown(lease, active(lease))
    return None


def _refused_new(submission: Submission, command: LeaseRequested, ledger: Ledger, now: datetime) -> Refusal | None:
    """Refusal of a new request: its pool is archived, or can never grant it; the lease that it replaces, or that its id
    stands for, belongs to another caller; or its sender has used up what it may create."""
    pool = ledger.pools[command.lease_pool_id]
    if pool.archived:  # the request would wait forever
        return unknown_lease_pool(command.lease_pool_id)
    never = never_starts(pool, highest(pool), new_request(command, now, sender=submission.sender))
    if never is not None:  # it would wait forever, too
        return too_many_units(command, never)
    lost = ledger.leases.get((pool.id, lost_id(command.request_id) or ""))
    if lost is not None and not may_act(lost.owner, submission.sender.name):
        return wrong_owner(f"lease {lost.id}")
    key, owner = (pool.id, command.tenant), (pool.id, submission.sender.name)
    is_named = names_tenant(submission) and key not in ledger.tenants
    if is_named and ledger.tenants_by.get(owner, 0) >= TENANTS_MAX:
        return too_many_tenants(submission.sender.name)
    waiting_max = submission.sender.waiting_max
    if waiting_max is not None and pool.waiting_by.get(submission.sender.name, 0) >= waiting_max:
        return too_many_waiting(pool.id, submission.sender.name, waiting_max)
    if (replaced := command.replaces) is None:
        return None
    # Not as an admin: the new request inherits the age of its own owner's lease.
    lease = ledger.leases.get((command.lease_pool_id, replaced.lease_id))
    denial = denied(lease, replaced.fencing_token, submission.sender.name)
    return of_denial(denial, replaced.lease_id, replaced.fencing_token)


def _refused_repeat(
    submission: Submission, command: LeaseRequested, known: Request, ledger: Ledger, now: datetime
) -> Refusal | None:
    """Refusal of a repeated request: its fields differ from the first time, its lease has ended, or another process
    uses it."""
    fields = {
        "units": (known.requested_units, command.units),
        "operation": (known.operation, command.operation),
        "tenant": (known.tenant, command.tenant),
        "priority": (known.priority, command.priority),
        "hold_seconds": (known.hold_seconds, command.hold_seconds),
    }
    if different := {name: was for name, (was, wanted) in fields.items() if was != wanted}:
        before = ", ".join(f"{name} {was!r}" for name, was in different.items())
        detail = f"request {known.id} was made with {before}; use a new id for a new request"
        return request_conflict(detail, fields=sorted(different))
    lease = of_request(ledger.leases.values(), known.id)
    if lease is not None and not lease.live:
        return lease_ended(f"lease {lease.id} of request {known.id}", end_of(lease))
    if lease is None and known.waiting_units == 0:
        return lease_ended(f"request {known.id}", "cancelled")
    pool = ledger.pools[command.lease_pool_id]
    if lease is not None and is_in_use(lease, pool, submission.sender, now):
        return in_use(lease, pool)
    return None


def of_request(leases: Iterable[Lease], request_id: str) -> Lease | None:
    """The lease of a request; the newest one if the request was granted in parts."""
    found = [lease for lease in leases if lease.request_id == request_id]
    return max(found, key=lambda lease: lease.fencing_token, default=None)


def apply(submission: Submission, ledger: Ledger, now: datetime) -> Answer:
    """Apply a submission that is not refused. Raises BadEvent for values that cannot be stored."""
    command, pool_id = submission.command, submission.command.lease_pool_id
    before = ledger.pools[pool_id]
    if isinstance(command, LeaseCancelRequested):
        return _cancel(command, ledger, now, submission.sender)
    if isinstance(command, LeaseRequested):
        apply_permitted(ledger, command, now, submission.sender, traceparent=submission.traceparent)
        lease = of_request(ledger.leases.values(), command.request_id)
        if lease is not None:
            lease = claim_lease(ledger, lease, submission.sender, now)
        if lease is not None and lease.state is State.RESERVED and submission.confirm:
            apply_permitted(ledger, confirmation(lease), now, Sender(name=lease.owner))
            lease = ledger.leases[pool_id, lease.id]
        return Answer(pool=before, now=now, lease=lease, request=ledger.requests[pool_id, command.request_id])
    assert not isinstance(command, LeaseUnleasedReported)
    lease = ledger.leases[pool_id, command.lease_id]
    units = lease.units
    if isinstance(command, LeaseReleaseRequested) and submission.remaining is not None:
        # Repeated. One that keeps some units may have been sent, and answered, while the lease was alive.
        if units <= submission.remaining and (lease.live or submission.remaining):
            return Answer(pool=before, now=now, lease=lease)
        command = msgspec.structs.replace(command, units=max(1, units - submission.remaining))
    if lease.live or (isinstance(command, LeaseReleaseRequested) and is_late_evidence(before, lease, command)):
        apply_permitted(ledger, command, now, submission.sender)
        lease = ledger.leases[pool_id, command.lease_id]
    return Answer(pool=before, now=now, lease=lease, released_units=units - lease.units)


def _cancel(command: LeaseCancelRequested, ledger: Ledger, now: datetime, sender: Sender) -> Answer:
    """Cancel the units that wait, and release the units granted meanwhile."""
    pool_id = command.lease_pool_id
    request = ledger.requests[pool_id, command.request_id]
    waited, released = request.waiting_units, 0
    if waited:
        apply_permitted(ledger, msgspec.structs.replace(command, units=UNITS_MAX), now, sender)
    for lease in list(ledger.leases.values()):
        if lease.request_id == request.id and lease.live:
            release = LeaseReleaseRequested(
                lease_pool_id=pool_id,
                lease_id=lease.id,
                fencing_token=lease.fencing_token,
                units=lease.units,
                result="cancelled",
            )
            apply_permitted(ledger, release, now, sender)
            released += lease.units - ledger.leases[pool_id, lease.id].units
    return Answer(
        pool=ledger.pools[pool_id],
        now=now,
        request=ledger.requests[pool_id, request.id],
        cancelled_units=waited,
        released_units=released,
    )
