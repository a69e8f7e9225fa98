"""Lists in pages. A cursor is the place of an item in the order of its list, a key that never changes: items that are
added, changed or deleted meanwhile move no other, so that each is listed once.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar, overload

import msgspec
from fastapi import Query

from slipway_api.http.pages import Page
from slipway_common.web.answers import Answer
from slipway_common.web.problem import Problem

LIMIT_MAX: Final = 1_000
YEARS: Final = range(1970, 9999)
T = TypeVar("T")
Shown = TypeVar("Shown")
P = TypeVar("P", bound=tuple[Any, ...])

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Maximum number of items of a page.")]
Cursor = Annotated[
    str | None,
    Query(max_length=2_000, description="`next` of the page before [default: the first page]. Not for interpretation."),
]


def after(cursor: str | None, start: P) -> P:
    """The place that a cursor names, of the type of `start`, which is the place before the first item. Raises Problem
    for a text that is no cursor of this list."""
    if cursor is None:
        return start
    try:
        place: P = msgspec.json.decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=type(start))
    except (binascii.Error, ValueError) as error:
        raise _invalid() from error
    if any(isinstance(part, datetime) and (part.tzinfo is None or part.year not in YEARS) for part in place):
        raise _invalid()
    return place


def _invalid() -> Problem:
    detail = "cursor: not one of this list; pass `next` of the page before unchanged, or leave it out to begin"
    return Problem(422, "invalid-cursor", "The cursor is invalid", detail)


@overload
def page(rows: Sequence[T], limit: int, place: Callable[[T], tuple[Any, ...]]) -> Answer[Page[T]]: ...
@overload
def page(
    rows: Sequence[T], limit: int, place: Callable[[T], tuple[Any, ...]], shown: Callable[[T], Shown]
) -> Answer[Page[Shown]]: ...
def page(
    rows: Sequence[Any],
    limit: int,
    place: Callable[[Any], tuple[Any, ...]],
    shown: Callable[[Any], Any] = lambda row: row,
) -> Answer[Any]:
    """Answer of a list: at most `limit` items, and the cursor of the page that follows. `rows` are read with `limit` +
    1, so that the last page is known as such."""
    items = rows[:limit]
    next_ = msgspec.json.encode(place(items[-1])) if len(rows) > limit else None
    cursor = None if next_ is None else urlsafe_b64encode(next_).rstrip(b"=").decode()
    return Answer(Page(items=[shown(row) for row in items], next=cursor))
