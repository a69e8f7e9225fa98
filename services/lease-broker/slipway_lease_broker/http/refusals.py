"""Refusals of lease commands as HTTP Problems."""

from typing import Final

from slipway_common.declaration.changes import ConfirmationRequired
from slipway_common.web.problem import Problem
from slipway_lease_broker.domain.declaration import OwnedByAnother
from slipway_lease_broker.domain.ownership import Denial
from slipway_lease_broker.domain.refusals import Kind, Refusal
from slipway_lease_broker.metrics import REFUSED_COMMANDS

ANSWERS: Final = {
    Kind.UNKNOWN_LEASE_POOL: (404, "Lease pool not found"),
    Kind.UNKNOWN_LEASE: (404, "Lease not found"),
    Kind.UNKNOWN_REQUEST: (404, "Lease request not found"),
    Kind.REQUEST_CONFLICT: (409, "Request id already used"),
    Kind.TOO_MANY_UNITS: (422, "More units requested than can ever be granted"),
    Kind.LEASE_ENDED: (410, "The lease has ended"),
    Kind.WRONG_OWNER: (403, "Owned by another token"),
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


def owned_by_another(error: OwnedByAnother) -> Problem:
    return Problem(
        409,
        "owned-by-another",
        "Lease pool belongs to another owner",
        f"{error}; remove it from one of them, or repeat with --adopt to take it over",
        id=error.pool.id,
        owners=[error.pool.owner, error.owner],
    )


def confirmation_required(error: ConfirmationRequired) -> Problem:
    return Problem(
        409,
        "confirmation-required",
        "Dangerous changes need a confirmation",
        f"{error}; repeat with --confirm {error.digest} to make them",
        digest=error.digest,
        dangers=error.dangers,
    )


def changed_meanwhile() -> Problem:
    return Problem(
        409, "changed-meanwhile", "Lease pools were changed meanwhile", "nothing was changed; repeat the request"
    )
