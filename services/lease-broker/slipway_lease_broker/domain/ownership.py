"""Ownership and fencing: rules for callers that act on a request, a lease, a gang or a slot. Pure.

These are the only rules about owners and fencing tokens. Each API turns a denial into its own response.
"""

from enum import StrEnum

from slipway_lease_broker.domain.ledger import Lease


class Denial(StrEnum):
    """Reason why a caller may not act on a lease; the values are labels of a metric."""

    UNKNOWN_LEASE = "unknown lease"
    WRONG_OWNER = "wrong owner"
    FENCED = "stale token"  # of an earlier or a later lease


def may_act(owner: str, caller: str, *, admin: bool = False) -> bool:
    """True if a caller may act on what `owner` acquired; an `admin` may act for every owner."""
    return admin or caller == owner


def denied(lease: Lease | None, fencing_token: int, caller: str, *, admin: bool = False) -> Denial | None:
    """Reason why a caller with this token may not act on a lease; None if it may."""
    if lease is None:
        return Denial.UNKNOWN_LEASE
    if not may_act(lease.owner, caller, admin=admin):
        return Denial.WRONG_OWNER
    return Denial.FENCED if lease.fencing_token != fencing_token else None
