"""Routes with typed answers and bodies."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute, iter_route_contexts

from slipway_common.web.answers import Untyped, declared_answers, is_tagged
from slipway_common.web.bodies import declared_body, with_request


class Router(APIRouter):
    """Routes that declare their answers by what they return, and their body as `Body` or `Report`."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        answers = declared_answers(endpoint)
        if answers is not None:
            options["response_model"] = None
        if isinstance(answers, dict):
            options["status_code"] = min(answers)
        super().add_api_route(path, with_request(endpoint), **options)


class TypedRoute(NamedTuple):
    """Declared types of a route: its answers as `declared_answers` gives them, and the type of its body."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    answers: dict[int, Any] | Untyped | None
    tagged: bool
    """True if its answer 200 has a tag of its own."""
    body: type[Any] | None
    shown: bool
    """False for a route that the OpenAPI document leaves out."""

    @property
    def typed(self) -> bool:
        """True if the answers of the route have types, or a reason to have none."""
        return self.answers is not None

    @property
    def types(self) -> list[Any]:
        """Types of its answers and its body."""
        answers = self.answers.values() if isinstance(self.answers, dict) else ()
        return [type_ for type_ in (self.body, *answers) if type_ is not None]


def typed_routes(app: FastAPI) -> Iterator[TypedRoute]:
    """Every route of an app, once a method."""
    for route in iter_route_contexts(app.routes):
        original = route.original_route
        if isinstance(original, APIRoute):
            body = declared_body(original.endpoint)
            answers = declared_answers(original.endpoint)
            for method in sorted(route.methods or ()):
                yield TypedRoute(
                    method,
                    str(route.path_format),
                    original.endpoint,
                    answers,
                    is_tagged(original.endpoint),
                    body.type if body is not None else None,
                    original.include_in_schema,
                )
