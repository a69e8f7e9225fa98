"""OpenAPI document of the Boskos API, made from its routes.

Refusals are text. Boskos' clients take every status but 200 as a failure, and those of the lease proxy expect a 500.
"""

from inspect import getdoc
from typing import Any, Final

from slipway_api.limits import NAME
from slipway_common.service import VERSION
from slipway_common.web.openapi import summary
from slipway_lease_broker.boskos.app import ROUTES, Route

TITLE: Final = "Slipway lease-broker, Boskos API"
STRINGS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
COUNTS: Final = {"type": "object", "additionalProperties": {"type": "integer"}}
NAMES: Final = {
    "type": "object",
    "required": ["names"],
    "properties": {"names": {"type": "array", "items": {"type": "string", "maxLength": NAME.characters}}},
}
RESOURCE: Final = {
    "type": "object",
    "title": "Resource",
    "description": "A slot.",
    "properties": {name: {"type": "string"} for name in ("type", "name", "state", "owner")}
    | {"lastupdate": {"type": "string", "format": "date-time"}, "userdata": STRINGS},
}
REFERENCE: Final = {"$ref": "#/components/schemas/Resource"}
METRIC: Final = {"type": "object", "properties": {"type": {"type": "string"}, "current": COUNTS, "owner": COUNTS}}
BODIES: Final = {"/update": STRINGS, "/lease/release": NAMES}
ANSWERS: Final[dict[str, Any]] = {
    "/acquire": REFERENCE,
    "/acquirebystate": {"type": "array", "items": REFERENCE},
    "/reset": STRINGS,
    "/metric": METRIC,
    "/lease/acquire": NAMES,
}
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
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": VERSION},
        "paths": {path: {route.method.lower(): _operation(path, route)} for path, route in ROUTES.items()},
        "components": {
            "schemas": {"Resource": RESOURCE},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "basic", "description": "Name and secret of a token"}
            },
        },
    }


def _operation(path: str, route: Route) -> dict[str, Any]:
    described = getdoc(route.handler) or ""
    operation: dict[str, Any] = {
        "summary": summary(described),
        "description": described,
        "operationId": route.handler.__name__.removeprefix("_"),
        "security": [{"token": []}],
        "parameters": [_parameter(name, name in route.required) for name in (*route.required, *route.optional)],
    }
    if path in BODIES:
        operation["requestBody"] = {
            "required": path != "/update",
            "content": {"application/json": {"schema": BODIES[path]}},
        }
    answer: dict[str, Any] = {"description": "Done."}
    if path in ANSWERS:
        answer["content"] = {"application/json": {"schema": ANSWERS[path]}}
    text = {"text/plain": {"schema": {"type": "string"}}}
    refusals = {status: {"description": words, "content": text} for status, words in REFUSALS.items()}
    return operation | {"responses": {"204" if path == "/lease/release" else "200": answer} | refusals}


def _parameter(name: str, required: bool) -> dict[str, Any]:
    pattern = {"pattern": PATTERNS[name]} if name in PATTERNS else {}
    schema = {"type": "string", "minLength": 1, "maxLength": NAME.characters} | pattern
    return {"name": name, "in": "query", "required": required, "schema": schema}
