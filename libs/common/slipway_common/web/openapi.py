"""OpenAPI document of a service: what FastAPI derives from the routes, with the service's own errors and bodies.

Summaries are what docstrings begin with, up to the first comma, semicolon, colon or stop. Refusals are problems
(RFC 9457) and not FastAPI's validation errors.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from slipway_common.web.access import declared

REFERENCE: Final = "#/components/schemas/"
PROBLEM: Final = {
    "type": "object",
    "title": "Problem",
    "description": "An error (RFC 9457). `type` is stable; other fields depend on it.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}
REFUSALS: Final = {
    "401": "The token is missing or unknown.",
    "403": "The token lacks a scope.",
    "404": "There is no such object.",
    "422": "The request is not valid.",
    "4XX": "The request is refused and has changed nothing.",
    "503": "The database or the broker is unavailable; nothing was changed.",
}
MEDIA_TYPES: Final = {
    "json": "application/json",
    "lines": "application/x-ndjson",
    "cloudevent": "application/cloudevents+json",
}
NOT_MODIFIED: Final = {"description": "The answer is the one that `If-None-Match` names."}
IF_NONE_MATCH: Final = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "Tag of an answer that the caller has: `ETag` of an answer before.",
    "schema": {"type": "string"},
}
OF_FASTAPI: Final = ("HTTPValidationError", "ValidationError")


def summary(description: str) -> str:
    """Beginning of a description in one line."""
    return re.split(r"[.,:;](?=\s|$)", description)[0].replace("\n", " ")


def model_schema(model: Any) -> dict[str, Any]:
    """Schema of a pydantic model, for a body that its route reads by itself."""
    return TypeAdapter(model).json_schema(ref_template=f"{REFERENCE}{{model}}")


def struct_schema(struct: type[Any]) -> dict[str, Any]:
    """Schema of a msgspec Struct, for a body that its route reads by itself."""
    (schema,), parts = msgspec.json.schema_components((struct,), ref_template=f"{REFERENCE}{{name}}")
    return schema | {"$defs": parts}


def body(description: str, **schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Documentation of a body that its route reads by itself: a schema for each of MEDIA_TYPES that it accepts."""
    content = {MEDIA_TYPES[name]: {"schema": dict(schema)} for name, schema in schemas.items()}
    return {"requestBody": {"required": True, "description": description, "content": content}}


def header(name: str, description: str) -> dict[str, Any]:
    """Documentation of a header that its route reads by itself."""
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": "string"}}


def document(app: FastAPI) -> dict[str, Any]:
    """OpenAPI document of the app's routes."""
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas: dict[str, Any] = found.setdefault("components", {}).setdefault("schemas", {})
    security = {(method.lower(), path): access.security for method, path, access in declared(app)}
    for _, _, access in declared(app):
        if access.schemes:
            found["components"].setdefault("securitySchemes", {}).update(access.schemes)
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            operation["security"] = list(security[method, path])
            operation["summary"] = summary(operation.get("description", ""))
            _document_answers(operation)
            if method == "get" and MEDIA_TYPES["json"] in operation["responses"].get("200", {}).get("content", {}):
                operation["responses"]["304"] = NOT_MODIFIED
                operation.setdefault("parameters", []).append(IF_NONE_MATCH)
            for content in operation.get("requestBody", {}).get("content", {}).values():
                schemas |= content["schema"].pop("$defs", {})
    for name in OF_FASTAPI:
        schemas.pop(name, None)
    schemas["Problem"] = PROBLEM
    found["components"]["schemas"] = dict(sorted(schemas.items()))
    return found


def _document_answers(operation: dict[str, Any]) -> None:
    statuses = {"4XX", "503"}
    if operation["security"]:
        statuses |= {"401", "403"}
    if "parameters" in operation:
        statuses.add("404")
    if "parameters" in operation or "requestBody" in operation:
        statuses.add("422")
    content = {"application/problem+json": {"schema": {"$ref": f"{REFERENCE}Problem"}}}
    refusals = {status: {"description": REFUSALS[status], "content": content} for status in sorted(statuses)}
    answers = {status: answer for status, answer in operation["responses"].items() if status < "4"}
    for status, answer in answers.items():
        if status != "204":
            answer.setdefault("content", {"application/json": {"schema": {}}})
    operation["responses"] = answers | refusals
