"""Lease commands over HTTP: checks of a command against the ledger, its effect, and the Problems it is refused with.
Pure apart from the HTTP Problems."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmRequested,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
)
from slipway_common.web.problem import Problem
from slipway_lease_broker.domain.commands import UNITS_MAX, Ledger, confirmation, is_late_evidence
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Request, State
from slipway_lease_broker.domain.limits import most_ever
from slipway_lease_broker.domain.ownership import Denial, denied, may_act
from slipway_lease_broker.domain.text import quantity

HeldLeaseCommand = LeaseConfirmRequested | LeaseRenewRequested | LeaseReleaseRequested
CallerCommand = LeaseRequested | LeaseCancelRequested | HeldLeaseCommand
# Reasons for which a lease ends without a release by its holder.
INVOLUNTARY = frozenset({"hold", "no-progress", "replaced"})


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One lease command with its caller. With `confirm` the answer that carries a grant confirms it; with `wait` the
    caller waits for a grant. With `remaining` a release returns all but that many units."""

    command: CallerCommand
    caller: str
    admin: bool = False
    confirm: bool = False
    wait: bool = False
    remaining: int | None = None
    traceparent: str = ""

    @property
    def request_id(self) -> str | None:
        return self.command.request_id if isinstance(self.command, LeaseRequested | LeaseCancelRequested) else None

    @property
    def lease_id(self) -> str | None:
        if isinstance(self.command, LeaseRequested):
            return self.command.replaces.lease_id if self.command.replaces else None
        return None if isinstance(self.command, LeaseCancelRequested) else self.command.lease_id


class Answer(msgspec.Struct, kw_only=True):
    """The result of a submission as of `now` (database clock)."""

    pool: LeasePool
    now: datetime
    lease: Lease | None = None
    request: Request | None = None
    released_units: int = 0
    cancelled_units: int = 0
    woken: Any = (
        None  # of a caller that waits: future of the lease, or of None when the request must be submitted again
    )
    confirm: bool = False  # receiving the grant confirms it

    @property
    def waits(self) -> bool:
        return self.request is not None and self.request.waiting_units > 0


def unknown_lease_pool(lease_pool_id: str) -> Problem:
    detail = f"lease pool {lease_pool_id[:100]!r} is not declared; list the declared ones with `slipway lease pools`"
    return Problem(404, "unknown-lease-pool", "Lease pool not found", detail)


def unknown_lease(lease_id: str) -> Problem:
    return Problem(404, "unknown-lease", "Lease not found", f"lease {lease_id[:100]!r} was never granted")


def unknown_request(lease_pool_id: str, request_id: str) -> Problem:
    detail = f"lease pool {lease_pool_id} has no request {request_id[:100]!r}"
    return Problem(404, "unknown-request", "Lease request not found", detail)


def too_many_units(command: LeaseRequested, most: int) -> Problem:
    detail = (
        f"lease pool {command.lease_pool_id}: at most {quantity(most, 'unit')} of operation {command.operation} can be "
        f"granted at once (requested {command.units}); request fewer units or raise the limit"
    )
    return Problem(422, "too-many-units", "More units requested than can ever be granted", detail, units_max=most)


def lease_ended(what: str, reason: str) -> Problem:
    return Problem(410, "lease-ended", "The lease has ended", f"{what}: {reason}", reason=reason)


def wrong_owner(what: str) -> Problem:
    detail = f"{what} was acquired with another token; use that token"
    return Problem(403, "wrong-owner", "Owned by another token", detail)


def stale_token(lease_id: str, token: int) -> Problem:
    detail = f"lease {lease_id} does not have fencing token {token}; the token belongs to an earlier or a later lease"
    return Problem(409, "stale-token", "Stale fencing token", detail)


def end_of(lease: Lease) -> str:
    """The end reason of a lease that is not live: its state, or a more precise word."""
    if lease.reason in INVOLUNTARY:
        return lease.reason
    return lease.state.value


def refusal(submission: Submission, ledger: Ledger) -> Problem | None:
    """The Problem that refuses a submission; None when it may be applied."""
    command = submission.command
    if isinstance(command, LeaseRequested):
        known = ledger.requests.get((command.lease_pool_id, command.request_id))
        if known is None:
            return _refused_new(submission, command, ledger)
        return _refused_repeat(submission, command, known, ledger)
    if isinstance(command, LeaseCancelRequested):
        known = ledger.requests.get((command.lease_pool_id, command.request_id))
        if known is None:
            return unknown_request(command.lease_pool_id, command.request_id)
        return _refused_owner(submission, known)
    lease = ledger.leases.get((command.lease_pool_id, command.lease_id))
    denial = denied(lease, command.fencing_token, submission.caller, admin=submission.admin)
    if lease is None or denial is not None:
        return denial_problem(denial, command.lease_id, command.fencing_token)
    if lease.live:
        return None
    is_repeat = lease.state is State.RELEASED and isinstance(command, LeaseReleaseRequested)
    return None if is_repeat else lease_ended(f"lease {lease.id}", end_of(lease))


def denial_problem(denial: Denial | None, lease_id: str, token: int) -> Problem | None:
    match denial:
        case Denial.UNKNOWN_LEASE:
            return unknown_lease(lease_id)
        case Denial.WRONG_OWNER:
            return wrong_owner(f"lease {lease_id}")
        case Denial.FENCED:
            return stale_token(lease_id, token)
    return None


def _refused_owner(submission: Submission, known: Request) -> Problem | None:
    is_allowed = may_act(known.owner, submission.caller, admin=submission.admin)
    return None if is_allowed else wrong_owner(f"request {known.id}")


def _refused_new(submission: Submission, command: LeaseRequested, ledger: Ledger) -> Problem | None:
    """The Problem of a new request: its pool is retired, can never grant it, or the lease that it replaces belongs to
    another caller."""
    pool = ledger.pools[command.lease_pool_id]
    if pool.retired:  # the request would wait forever
        return unknown_lease_pool(command.lease_pool_id)
    most = most_ever(pool, command.operation)
    if command.whole and most is not None and command.units > most:  # it would wait forever, too
        return too_many_units(command, most)
    if (replaced := command.replaces) is None:
        return None
    # Not as an admin: the new request inherits the age of its own owner's lease.
    lease = ledger.leases.get((command.lease_pool_id, replaced.lease_id))
    denial = denied(lease, replaced.fencing_token, submission.caller)
    return denial_problem(denial, replaced.lease_id, replaced.fencing_token)


def _refused_repeat(submission: Submission, command: LeaseRequested, known: Request, ledger: Ledger) -> Problem | None:
    """The Problem of a repeated request: its fields differ from the first time, or its lease has ended."""
    if (refused := _refused_owner(submission, known)) is not None:
        return refused
    fields = {
        "units": (known.requested_units, command.units),
        "operation": (known.operation, command.operation),
        "tenant": (known.tenant, command.tenant),
        "priority": (known.priority, command.priority),
        "hold_seconds": (known.hold_seconds, command.hold_seconds),
    }
    if different := {name: was for name, (was, wanted) in fields.items() if was != wanted}:
        before = ", ".join(f"{name} {was!r}" for name, was in different.items())
        return Problem(
            409,
            "request-conflict",
            "Request id already used",
            f"request {known.id} was made with {before}; use a new id for a new request",
            fields=sorted(different),
        )
    lease = of_request(ledger.leases.values(), known.id)
    if lease is not None and not lease.live:
        return lease_ended(f"lease {lease.id} of request {known.id}", end_of(lease))
    if lease is None and known.waiting_units == 0:
        return lease_ended(f"request {known.id}", "cancelled")
    return None


def overtaken(submission: Submission, then: Lease) -> Problem | None:
    """The Problem of a command about a lease whose deadline passed in the same transaction: the answer that it would
    get a moment later. None for a release, which has taken effect."""
    match submission.command:
        case LeaseRequested():
            return lease_ended(f"lease {then.id} of request {then.request_id}", end_of(then))
        case LeaseConfirmRequested() | LeaseRenewRequested():
            return lease_ended(f"lease {then.id}", end_of(then))
        case _:
            return None


def of_request(leases: Iterable[Lease], request_id: str) -> Lease | None:
    """The lease of a request; the newest one if the request was granted in parts."""
    found = [lease for lease in leases if lease.request_id == request_id]
    return max(found, key=lambda lease: lease.fencing_token, default=None)


def apply(submission: Submission, ledger: Ledger, now: datetime) -> Answer:
    """Apply a submission that is not refused. Raises BadEvent for values that no ledger can hold."""
    command, pool_id = submission.command, submission.command.lease_pool_id
    before = ledger.pools[pool_id]
    if isinstance(command, LeaseCancelRequested):
        return _cancel(command, ledger, now, submission.caller, admin=submission.admin)
    if isinstance(command, LeaseRequested):
        ledger.apply(command, now, submission.traceparent, owner=submission.caller, admin=submission.admin)
        lease = of_request(ledger.leases.values(), command.request_id)
        if lease is not None and lease.state is State.RESERVED and submission.confirm:
            ledger.apply(confirmation(lease), now, owner=lease.owner)
            lease = ledger.leases[pool_id, lease.id]
        return Answer(pool=before, now=now, lease=lease, request=ledger.requests[pool_id, command.request_id])
    lease = ledger.leases[pool_id, command.lease_id]
    units = lease.units
    if isinstance(command, LeaseReleaseRequested) and submission.remaining is not None:
        if units <= submission.remaining and (lease.live or submission.remaining):  # repeated
            return Answer(pool=before, now=now, lease=lease)
        command = msgspec.structs.replace(command, units=max(1, units - submission.remaining))
    if lease.live or (isinstance(command, LeaseReleaseRequested) and is_late_evidence(before, lease, command)):
        ledger.apply(command, now, owner=submission.caller, admin=submission.admin)
        lease = ledger.leases[pool_id, command.lease_id]
    return Answer(pool=before, now=now, lease=lease, released_units=units - lease.units)


def _cancel(command: LeaseCancelRequested, ledger: Ledger, now: datetime, caller: str, *, admin: bool) -> Answer:
    """Cancel the units that wait, and release the units granted meanwhile."""
    pool_id = command.lease_pool_id
    request = ledger.requests[pool_id, command.request_id]
    waited, released = request.waiting_units, 0
    if waited:
        ledger.apply(msgspec.structs.replace(command, units=UNITS_MAX), now, owner=caller, admin=admin)
    for lease in list(ledger.leases.values()):
        if lease.request_id == request.id and lease.live:
            release = LeaseReleaseRequested(
                lease_pool_id=pool_id,
                lease_id=lease.id,
                fencing_token=lease.fencing_token,
                units=lease.units,
                result="cancelled",
            )
            ledger.apply(release, now, owner=caller, admin=admin)
            released += lease.units
    return Answer(
        pool=ledger.pools[pool_id],
        now=now,
        request=ledger.requests[pool_id, request.id],
        cancelled_units=waited,
        released_units=released,
    )
