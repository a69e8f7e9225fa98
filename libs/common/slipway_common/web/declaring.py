"""Refusals of declarations as HTTP Problems, alike in every service."""

import contextlib
from collections.abc import Iterator

import msgspec

from slipway_api.problems import InvalidPart
from slipway_common.declaration.changes import CHANGES_MAX, ConfirmationRequired, OwnedByAnother
from slipway_common.declaration.strict_yaml import Invalid
from slipway_common.web.problem import Problem


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Raise Problem for a declaration that is refused."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "not-json", "The body is not JSON", str(error)) from error
    except Invalid as error:
        raise invalid_declaration(error) from error
    except OwnedByAnother as error:
        raise owned_by_another(error) from error
    except ConfirmationRequired as error:
        raise confirmation_required(error) from error


def invalid_declaration(error: Invalid) -> Problem:
    """Refusal with all problems in `errors`: the document by its owner, the path in it, and the reason with the value;
    the first one in words."""
    more = len(error.problems) - 1 + error.more
    detail = f"{error.problems[0]}" + (f"; and {more:,} more" if more else "")
    errors = [
        InvalidPart(document=problem.document, path=problem.path, reason=problem.reason) for problem in error.problems
    ]
    return Problem(422, "invalid-declaration", "The declaration is not valid", detail, errors=errors)


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
        dangers=list(error.dangers),
        items=list(error.changes[:CHANGES_MAX]),
        more=len(error.changes[CHANGES_MAX:]),
    )


def changed_meanwhile() -> Problem:
    detail = "others have changed them at the same time; nothing was changed, repeat the request"
    return Problem(409, "changed-meanwhile", "The declared objects have changed", detail)
