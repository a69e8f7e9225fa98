"""Routes whose answers or bodies have no type of slipway_api, as a line in `make check`.

Prints each route that states a reason for having no type, and each that has neither; their number last. Exits with 1 if
that is not 0, or if more than REASONS_MAX routes state a reason.
"""

import sys
from collections.abc import Iterator
from typing import Final

from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts

from generate.openapi import apps
from slipway_common.web.answers import Untyped
from slipway_common.web.router import typed_routes

REASONS_MAX: Final = 12


def with_pydantic(app: FastAPI) -> Iterator[str]:
    """Endpoints with a body that FastAPI validates."""
    for route in iter_route_contexts(app.routes):
        if isinstance(route.original_route, APIRoute) and route.dependant.body_params:
            yield route.original_route.endpoint.__qualname__


def main() -> int:
    untyped, reasons = {}, {}
    for app in apps().values():
        others = set(with_pydantic(app))
        for route in typed_routes(app):
            place = f"{route.endpoint.__module__}.{route.endpoint.__qualname__}"
            if not route.typed or route.endpoint.__qualname__ in others:
                untyped[place] = f"{route.method} {route.path}"
            if isinstance(route.answers, Untyped):
                reasons[place] = f"{route.method} {route.path}: {route.answers.reason}"
    print(*(f"{place} has no type: {route}" for place, route in sorted(untyped.items())), sep="\n")
    print(*(f"{place} has no type, with a reason: {route}" for place, route in sorted(reasons.items())), sep="\n")
    print(f"routes without a type: {len(untyped)}")
    return 1 if untyped or len(reasons) > REASONS_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
