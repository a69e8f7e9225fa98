"""Refusals of lease commands: a kind for programs and a sentence for people. Pure; HTTP gives each kind its status."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from slipway_api.events.lease import LeaseRequested
from slipway_common.base.text import listed
from slipway_lease_broker.domain.holders import takeover_at
from slipway_lease_broker.domain.ledger import Lease, LeasePool
from slipway_lease_broker.domain.ownership import Denial
from slipway_lease_broker.domain.rules import Verdict
from slipway_lease_broker.domain.text import quantity

# Reasons why a lease ends without a release by its holder.
INVOLUNTARY = frozenset({"hold", "no-progress", "replaced"})
WAITING_RETRY_SECONDS: Final = 30  # the requests that wait are for leases, which take minutes


class Kind(StrEnum):
    UNKNOWN_LEASE_POOL = "unknown-lease-pool"
    UNKNOWN_LEASE = "unknown-lease"
    UNKNOWN_REQUEST = "unknown-request"
    REQUEST_CONFLICT = "request-conflict"
    TOO_MANY_UNITS = "too-many-units"
    TOO_MANY_TENANTS = "too-many-tenants"
    TOO_MANY_WAITING = "too-many-waiting"
    LEASE_ENDED = "lease-ended"
    WRONG_OWNER = "wrong-owner"
    REQUEST_IN_USE = "request-in-use"  # by another process
    HOLDER_UNKNOWN = "holder-unknown"  # of several, which one releases the lease
    FENCED = "stale-token"  # of an earlier or a later lease


class Refusal(msgspec.Struct, frozen=True):
    """Reason why a command changes nothing; `facts` are for programs."""

    kind: Kind
    detail: str
    facts: Mapping[str, Any] = {}


def unknown_lease_pool(lease_pool_id: str) -> Refusal:
    detail = f"lease pool {lease_pool_id[:100]!r} is not declared; list the declared ones with `slipway lease pools`"
    return Refusal(Kind.UNKNOWN_LEASE_POOL, detail)


def unknown_lease(lease_id: str) -> Refusal:
    return Refusal(Kind.UNKNOWN_LEASE, f"lease {lease_id[:100]!r} was never granted")


def unknown_request(lease_pool_id: str, request_id: str) -> Refusal:
    return Refusal(Kind.UNKNOWN_REQUEST, f"lease pool {lease_pool_id} has no request {request_id[:100]!r}")


def too_many_units(command: LeaseRequested, never: Verdict) -> Refusal:
    detail = f"lease pool {command.lease_pool_id}: {never.reason}; "
    if never.units_max:  # otherwise fewer units do not help
        detail += f"request at most {quantity(never.units_max, 'unit')} of operation {command.operation}, or "
    return Refusal(Kind.TOO_MANY_UNITS, f"{detail}change the terms of the pool", {"units_max": never.units_max})


def too_many_tenants(caller: str) -> Refusal:
    detail = f"{caller} already requests leases for as many tenants as one token may; wait until those of some end"
    return Refusal(Kind.TOO_MANY_TENANTS, detail)


def too_many_waiting(lease_pool_id: str, caller: str, waiting_max: int) -> Refusal:
    detail = (
        f"{quantity(waiting_max, 'request')} of {caller} already wait in lease pool {lease_pool_id}, and no more may; "
        f"nothing was stored: ask again in {WAITING_RETRY_SECONDS} s, or cancel requests that nobody waits for"
    )
    return Refusal(Kind.TOO_MANY_WAITING, detail, {"retry_after_seconds": WAITING_RETRY_SECONDS})


def request_conflict(detail: str, **facts: Any) -> Refusal:
    return Refusal(Kind.REQUEST_CONFLICT, detail, facts)


def lease_ended(what: str, reason: str) -> Refusal:
    return Refusal(Kind.LEASE_ENDED, f"{what}: {reason}", {"reason": reason})


def wrong_owner(what: str) -> Refusal:
    return Refusal(Kind.WRONG_OWNER, f"{what} was acquired with another token; use that token")


def request_in_use(request_id: str, holder: str, since: datetime, takeover_at: datetime | None = None) -> Refusal:
    """Refusal of a process that uses the request id of another one; None: the other waits, and holds nothing yet."""
    detail = (
        f"request {request_id} is in use by {holder} since {since.isoformat(timespec='seconds')}; while that process "
        "runs, give another operation a request id of its own, or join it (--join)"
    )
    if takeover_at is not None:
        after = takeover_at.isoformat(timespec="seconds")
        detail += f"; if it has ended, ask again after {after}, when its lease is taken over unless it was renewed"
    return Refusal(Kind.REQUEST_IN_USE, detail, {"holder": holder, "since": since.isoformat()})


def in_use(lease: Lease, pool: LeasePool) -> Refusal:
    """Refusal of a process that may not act on the lease of another one, which has given its name."""
    return request_in_use(lease.request_id, lease.holder, lease.holders[lease.holder].since, takeover_at(lease, pool))


def holder_unknown(lease: Lease, holders: Sequence[str]) -> Refusal:
    detail = f"lease {lease.id} is held by {listed(holders)} together; name the one that releases it as its holder"
    return Refusal(Kind.HOLDER_UNKNOWN, detail, {"holders": [*holders]})


def stale_token(lease_id: str, token: int) -> Refusal:
    detail = f"lease {lease_id} does not have fencing token {token}; the token belongs to an earlier or a later lease"
    return Refusal(Kind.FENCED, detail)


def of_denial(denial: Denial | None, lease_id: str, token: int) -> Refusal | None:
    """The refusal of a caller that may not act on a lease."""
    match denial:
        case Denial.UNKNOWN_LEASE:
            return unknown_lease(lease_id)
        case Denial.WRONG_OWNER:
            return wrong_owner(f"lease {lease_id}")
        case Denial.FENCED:
            return stale_token(lease_id, token)
    return None


def end_of(lease: Lease) -> str:
    """The end reason of a lease that is not live: its state, or a more precise word."""
    if lease.reason in INVOLUNTARY:
        return lease.reason
    return lease.state.value
