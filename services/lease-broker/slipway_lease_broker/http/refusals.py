"""Refusals of lease commands as HTTP Problems."""

from typing import Final

from slipway_common.web.problem import Problem
from slipway_lease_broker.domain.ownership import Denial
from slipway_lease_broker.domain.refusals import Kind, Refusal
from slipway_lease_broker.metrics import REFUSED_COMMANDS

ANSWERS: Final = {
    Kind.UNKNOWN_LEASE_POOL: (404, "Lease pool not found"),
    Kind.UNKNOWN_LEASE: (404, "Lease not found"),
    Kind.UNKNOWN_REQUEST: (404, "Lease request not found"),
    Kind.REQUEST_CONFLICT: (409, "Request id already used"),
    Kind.TOO_MANY_UNITS: (422, "More units requested than can ever be granted"),
    Kind.TOO_MANY_TENANTS: (403, "Too many tenants of one token"),
    Kind.TOO_MANY_WAITING: (429, "Too many waiting requests of one token"),
    Kind.LEASE_ENDED: (410, "The lease has ended"),
    Kind.WRONG_OWNER: (403, "Owned by another token"),
    Kind.REQUEST_IN_USE: (409, "Request id in use by another process"),
    Kind.HOLDER_UNKNOWN: (409, "Lease held by several processes"),
    Kind.FENCED: (409, "Stale fencing token"),
}


def problem(refusal: Refusal) -> Problem:
    """Problem of a refusal."""
    status, title = ANSWERS[refusal.kind]
    return Problem(status, refusal.kind.value, title, refusal.detail, **refusal.facts)


def refused(refusal: Refusal) -> Problem:
    """Problem of a refused command. Counts stale fencing tokens like those of the request topic."""
    if refusal.kind is Kind.FENCED:
        REFUSED_COMMANDS.labels(Denial.FENCED).inc()
    return problem(refusal)
