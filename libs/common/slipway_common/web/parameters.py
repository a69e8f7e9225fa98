"""Query parameters of requests. One that its route lacks is refused, since a request without it means something else,
as a removal without its `dryrun=true`. So is one that is given twice: proxies and libraries differ in which they read.
"""

from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slipway_common.base.sanitize import printable
from slipway_common.web.problem import Problem, invalid_part

NAME_SHOWN: Final = 50
"""Characters of an unknown name that its refusal repeats."""


class QueryParameters:
    """Query parameters of one route."""

    def __init__(self) -> None:
        self._known: dict[str, bool] | None = None
        """By name, true for lists; those of the route once it has had a request."""

    def check(self, request: Request) -> None:
        """Raise Problem 422 for the first parameter of a request that the route lacks, or that is given twice."""
        if not request.scope["query_string"]:
            return
        if self._known is None:
            self._known = dict(_declared(request.scope["route"].dependant))
        for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
            if name not in self._known:
                raise _unknown(name, list(self._known))
            if times > 1 and not self._known[name]:
                raise invalid_part(f"query/{name}", f"is given {times} times; give it once")


def _declared(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Names of the query parameters of a route and of all that it depends on; true for those that are lists."""
    for field in dependant.query_params:
        annotation = field.field_info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from ((inner.alias or name, _is_list(inner)) for name, inner in annotation.model_fields.items())
        else:
            yield field.alias, _is_list(field.field_info)
    for part in dependant.dependencies:
        yield from _declared(part)


def _is_list(field: FieldInfo) -> bool:
    return any(get_origin(part) is list for part in (field.annotation, *get_args(field.annotation)))


def _unknown(name: str, known: list[str]) -> Problem:
    shown = printable(name if len(name) <= NAME_SHOWN else f"{name[:NAME_SHOWN]}…")
    close = get_close_matches(shown, known, 1)
    remedy = f"did you mean {close[0]}?" if close else "leave it out;"
    others = f"known: {', '.join(known)}" if known else "this route has none"
    return invalid_part(f"query/{shown}", f"unknown parameter; {remedy} {others}")
