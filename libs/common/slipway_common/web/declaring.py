"""Refusals of declarations as HTTP Problems, alike in every service."""

from slipway_common.declaration.changes import ConfirmationRequired, OwnedByAnother
from slipway_common.web.problem import Problem


def owned_by_another(error: OwnedByAnother) -> Problem:
    return Problem(
        409,
        "owned-by-another",
        "Another owner has declared it",
        f"{error}; remove it from one of them, or adopt it",
        kind=error.kind,
        id=error.id,
        owner=error.owner,
        declared_by=error.declared_by,
    )


def confirmation_required(error: ConfirmationRequired) -> Problem:
    return Problem(
        409,
        "confirmation-required",
        "The changes need a confirmation",
        f"{error}; repeat the request with confirm={error.digest} to make them",
        digest=error.digest,
        dangers=error.dangers,
    )


def changed_meanwhile() -> Problem:
    detail = "others have changed them at the same time; nothing was changed, repeat the request"
    return Problem(409, "changed-meanwhile", "The declared objects have changed", detail)
