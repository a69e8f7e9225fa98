"""OpenAPI document of the Boskos API, made from its routes.

Refusals are text. Boskos' clients take every status but 200 as a failure, and those of the lease proxy expect a 500.
"""

from collections.abc import Mapping
from inspect import getdoc
from typing import Any, Final

from slipway_api.limits import NAME
from slipway_common.service import VERSION
from slipway_common.web.openapi import schemas_of, summary
from slipway_lease_broker.boskos.app import ROUTES, Route

TITLE: Final = "Slipway lease-broker, Boskos API"
PATTERNS: Final = {"expire": r"^[+-]?([0-9]+(ns|us|ms|s|m|h))+$", "count": r"^[0-9]{1,7}$"}
REFUSALS: Final = {
    "400": "A parameter or the body is not valid.",
    "401": "The caller is unknown, or does not own the slot.",
    "403": "The token lacks the scope leases:write:TYPE.",
    "404": "There is no such type or slot, or none is available.",
    "409": "The slot is in another state.",
    "500": "The lease-broker or its database is unavailable, or the lease proxy refuses the call.",
}


def document() -> dict[str, Any]:
    """OpenAPI document of all routes but the last one: every other path is answered with 200 and nothing."""
    routes = ROUTES.values()
    schema_of, components = schemas_of(type_ for route in routes for type_ in (route.answer, route.body) if type_)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": VERSION},
        "paths": {path: {route.method.lower(): _operation(path, route, schema_of)} for path, route in ROUTES.items()},
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "basic", "description": "Name and secret of a token"}
            },
        },
    }


def _operation(path: str, route: Route, schema_of: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    described = getdoc(route.handler) or ""
    operation: dict[str, Any] = {
        "summary": summary(described),
        "description": described,
        "operationId": route.handler.__name__.removeprefix("_"),
        "security": [{"token": []}],
        "parameters": [_parameter(name, name in route.required) for name in (*route.required, *route.optional)],
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": path != "/update",
            "content": {"application/json": {"schema": schema_of[route.body]}},
        }
    answer: dict[str, Any] = {"description": "Done."}
    if route.answer is not None:
        answer["content"] = {"application/json": {"schema": schema_of[route.answer]}}
    text = {"text/plain": {"schema": {"type": "string"}}}
    refusals = {status: {"description": words, "content": text} for status, words in REFUSALS.items()}
    return operation | {"responses": {"204" if path == "/lease/release" else "200": answer} | refusals}


def _parameter(name: str, required: bool) -> dict[str, Any]:
    pattern = {"pattern": PATTERNS[name]} if name in PATTERNS else {}
    schema = {"type": "string", "minLength": 1, "maxLength": NAME.characters} | pattern
    return {"name": name, "in": "query", "required": required, "schema": schema}
