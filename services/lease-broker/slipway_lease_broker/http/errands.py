"""What a caller may say about a lease pool, and why it is refused. Pure, but for Problems being HTTP's."""

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
from slipway_common.problem import Problem
from slipway_lease_broker.domain.facts import UNITS_MAX, Ledger, tells_late
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Request, State
from slipway_lease_broker.domain.limits import most_ever

OfLease = LeaseConfirmRequested | LeaseRenewRequested | LeaseReleaseRequested
Said = LeaseRequested | LeaseCancelRequested | OfLease
# Ends of a released lease that its holder did not ask for.
TAKEN = frozenset({"hold", "no-progress", "replaced"})


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """One fact, and who says it. With `confirm` the grant is confirmed as it is told; with `wait` its caller stays.
    With `remaining` a release gives back all but so many units."""

    fact: Said
    caller: str
    admin: bool = False
    confirm: bool = False
    wait: bool = False
    remaining: int | None = None
    traceparent: str = ""

    @property
    def request_id(self) -> str | None:
        return self.fact.request_id if isinstance(self.fact, LeaseRequested | LeaseCancelRequested) else None

    @property
    def lease_id(self) -> str | None:
        if isinstance(self.fact, LeaseRequested):
            return self.fact.replaces.lease_id if self.fact.replaces else None
        return None if isinstance(self.fact, LeaseCancelRequested) else self.fact.lease_id


class Answer(msgspec.Struct, kw_only=True):
    """What became of an errand, as of `now`, in the database's time."""

    pool: LeasePool
    now: datetime
    lease: Lease | None = None
    request: Request | None = None
    released_units: int = 0
    cancelled_units: int = 0
    woken: Any = None  # of an errand that waits: a future of the lease, or of None where that is to be asked for again
    confirm: bool = False  # whether its caller confirms by hearing of it

    @property
    def waits(self) -> bool:
        return self.request is not None and self.request.waiting_units > 0


def unknown_lease_pool(lease_pool_id: str) -> Problem:
    detail = f"no lease pool {lease_pool_id[:100]!r} is declared; see `slipway lease pools`"
    return Problem(404, "unknown-lease-pool", "There is no such lease pool", detail)


def unknown_lease(lease_id: str) -> Problem:
    return Problem(404, "unknown-lease", "There is no such lease", f"{lease_id[:100]!r} was never granted here")


def unknown_request(lease_pool_id: str, request_id: str) -> Problem:
    detail = f"{request_id[:100]!r} was never asked of {lease_pool_id}"
    return Problem(404, "unknown-request", "There is no such request", detail)


def too_many_units(fact: LeaseRequested, most: int) -> Problem:
    detail = (
        f"{fact.units} units for {fact.operation}: under its limit {fact.lease_pool_id} grants at most {most} at once; "
        "ask for fewer, or have the limit raised"
    )
    return Problem(422, "too-many-units", "It asks for more than is ever granted at once", detail, units_max=most)


def lease_ended(what: str, reason: str) -> Problem:
    return Problem(410, "lease-ended", "The lease has ended", f"{what}: {reason}", reason=reason)


def wrong_owner(what: str) -> Problem:
    detail = f"{what} was acquired with another token; ask with that one"
    return Problem(403, "wrong-owner", "It belongs to somebody else", detail)


def end_of(lease: Lease) -> str:
    """Why a lease that is not live has ended, in one of a few words."""
    if lease.reason in TAKEN:
        return lease.reason
    return lease.state.value


def refusal(errand: Errand, ledger: Ledger) -> Problem | None:
    """Why this errand may not change anything; None when it may."""
    fact = errand.fact
    if isinstance(fact, LeaseRequested):
        asked = ledger.requests.get((fact.lease_pool_id, fact.request_id))
        return _not_new(errand, fact, ledger) if asked is None else _not_again(errand, fact, asked, ledger)
    if isinstance(fact, LeaseCancelRequested):
        asked = ledger.requests.get((fact.lease_pool_id, fact.request_id))
        if asked is None:
            return unknown_request(fact.lease_pool_id, fact.request_id)
        return None if errand.admin or asked.owner == errand.caller else wrong_owner(f"request {asked.id}")
    lease = ledger.leases.get((fact.lease_pool_id, fact.lease_id))
    refused = _not_its(errand, lease, fact.lease_id, fact.fencing_token)
    if refused is not None or lease is None or lease.live:
        return refused
    given_back = lease.state is State.RELEASED and isinstance(fact, LeaseReleaseRequested)
    return None if given_back else lease_ended(f"lease {lease.id}", end_of(lease))


def _not_its(errand: Errand, lease: Lease | None, lease_id: str, token: int) -> Problem | None:
    if lease is None:
        return unknown_lease(lease_id)
    if not errand.admin and lease.owner != errand.caller:
        return wrong_owner(f"lease {lease.id}")
    if lease.fencing_token != token:
        return Problem(
            409,
            "stale-token",
            "The fencing token is not this lease's",
            f"lease {lease.id} has another one than {token}: it belongs to a later or an earlier lease",
        )
    return None


def _not_new(errand: Errand, fact: LeaseRequested, ledger: Ledger) -> Problem | None:
    """Of a request that is not known yet: its pool is in use and can ever grant it, and the lease that it replaces has
    to be its caller's."""
    pool = ledger.pools[fact.lease_pool_id]
    if pool.retired:  # it would wait for ever
        return unknown_lease_pool(fact.lease_pool_id)
    most = most_ever(pool, fact.operation)
    if fact.whole and most is not None and fact.units > most:  # so would this
        return too_many_units(fact, most)
    if fact.replaces is None:
        return None
    lease = ledger.leases.get((fact.lease_pool_id, fact.replaces.lease_id))
    own = msgspec.structs.replace(errand, admin=False)  # whose age would the new request have?
    return _not_its(own, lease, fact.replaces.lease_id, fact.replaces.fencing_token)


def _not_again(errand: Errand, fact: LeaseRequested, asked: Request, ledger: Ledger) -> Problem | None:
    """Of a request that is known: it has to be the same, and what it was granted must live."""
    if not errand.admin and asked.owner != errand.caller:
        return wrong_owner(f"request {asked.id}")
    same = {
        "units": (asked.asked_units, fact.units),
        "operation": (asked.operation, fact.operation),
        "tenant": (asked.tenant, fact.tenant),
        "priority": (asked.priority, fact.priority),
        "hold_seconds": (asked.hold_seconds, fact.hold_seconds),
    }
    if other := {name: was for name, (was, wanted) in same.items() if was != wanted}:
        told = ", ".join(f"{name} {was!r}" for name, was in other.items())
        return Problem(
            409,
            "request-conflict",
            "The request id was used for something else",
            f"{asked.id} asked for {told}; a new request needs a new id",
            fields=sorted(other),
        )
    lease = of_request(ledger.leases.values(), asked.id)
    if lease is not None and not lease.live:
        return lease_ended(f"lease {lease.id} of request {asked.id}", end_of(lease))
    if lease is None and asked.waiting_units == 0:
        return lease_ended(f"request {asked.id}", "cancelled")
    return None


def overtaken(errand: Errand, then: Lease) -> Problem | None:
    """Of an errand about a lease that time ended in the transaction that recorded it: what its caller would hear if it
    had come a moment later. None for a release, which had its effect."""
    match errand.fact:
        case LeaseRequested():
            return lease_ended(f"lease {then.id} of request {then.request_id}", end_of(then))
        case LeaseConfirmRequested() | LeaseRenewRequested():
            return lease_ended(f"lease {then.id}", end_of(then))
        case _:
            return None


def of_request(leases: Iterable[Lease], request_id: str) -> Lease | None:
    """The lease of a request; the last one, should it have been granted in parts."""
    found = [lease for lease in leases if lease.request_id == request_id]
    return max(found, key=lambda lease: lease.fencing_token, default=None)


def record(errand: Errand, ledger: Ledger, now: datetime) -> Answer:
    """Fold an errand that is not refused. Raises BadEvent for what no ledger could hold."""
    fact, pool_id = errand.fact, errand.fact.lease_pool_id
    before = ledger.pools[pool_id]
    if isinstance(fact, LeaseCancelRequested):
        return _cancel(fact, ledger, now, errand.caller, admin=errand.admin)
    if isinstance(fact, LeaseRequested):
        ledger.record(fact, now, errand.traceparent, owner=errand.caller, admin=errand.admin)
        lease = of_request(ledger.leases.values(), fact.request_id)
        if lease is not None and lease.state is State.RESERVED and errand.confirm:
            ledger.record(confirms(lease), now, owner=lease.owner)
            lease = ledger.leases[pool_id, lease.id]
        return Answer(pool=before, now=now, lease=lease, request=ledger.requests[pool_id, fact.request_id])
    lease = ledger.leases[pool_id, fact.lease_id]
    units = lease.units
    if isinstance(fact, LeaseReleaseRequested) and errand.remaining is not None:
        if units <= errand.remaining and (lease.live or errand.remaining):  # it was said before
            return Answer(pool=before, now=now, lease=lease)
        fact = msgspec.structs.replace(fact, units=max(1, units - errand.remaining))
    if lease.live or (isinstance(fact, LeaseReleaseRequested) and tells_late(before, lease, fact)):
        ledger.record(fact, now, owner=errand.caller, admin=errand.admin)
        lease = ledger.leases[pool_id, fact.lease_id]
    return Answer(pool=before, now=now, lease=lease, released_units=units - lease.units)


def _cancel(fact: LeaseCancelRequested, ledger: Ledger, now: datetime, caller: str, *, admin: bool) -> Answer:
    """Give up what waits, and give back what was granted meanwhile."""
    pool_id = fact.lease_pool_id
    request = ledger.requests[pool_id, fact.request_id]
    waited, released = request.waiting_units, 0
    if waited:
        ledger.record(msgspec.structs.replace(fact, units=UNITS_MAX), now, owner=caller, admin=admin)
    for lease in list(ledger.leases.values()):
        if lease.request_id == request.id and lease.live:
            given_back = LeaseReleaseRequested(
                lease_pool_id=pool_id,
                lease_id=lease.id,
                fencing_token=lease.fencing_token,
                units=lease.units,
                result="cancelled",
            )
            ledger.record(given_back, now, owner=caller, admin=admin)
            released += lease.units
    return Answer(
        pool=ledger.pools[pool_id],
        now=now,
        request=ledger.requests[pool_id, request.id],
        cancelled_units=waited,
        released_units=released,
    )


def confirms(lease: Lease) -> LeaseConfirmRequested:
    return LeaseConfirmRequested(
        lease_pool_id=lease.lease_pool_id, lease_id=lease.id, fencing_token=lease.fencing_token
    )
