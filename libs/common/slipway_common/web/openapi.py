"""OpenAPI document of a service: what FastAPI derives from the routes, with the service's own errors and bodies.

Summaries are what docstrings begin with, up to the first comma, semicolon, colon or stop. Refusals are problems
(RFC 9457) and not FastAPI's validation errors.

The types of all routes make one set of schemas, by one call: of types of one name in calls of their own, one would
replace the other. A field is described by the text that follows it in its type.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, Final, get_args, get_origin

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec.inspect import DictType, ListType, Metadata, StructType, Type, UnionType, VarTupleType, multi_type_info
from pydantic import TypeAdapter

from slipway_api.problems import Problem
from slipway_common.web.access import declared
from slipway_common.web.problem import MEDIA_TYPE
from slipway_common.web.router import TypedRoute, typed_routes

REFERENCE: Final = "#/components/schemas/"
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
DESCRIPTIONS: Final = {200: "Successful Response", 202: "The request is accepted.", 204: "There is nothing to answer."}
NOT_MODIFIED: Final = {"description": "The answer is the one that `If-None-Match` names."}
IF_NONE_MATCH: Final = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "Tag of an answer that the caller has: `ETag` of an answer before.",
    "schema": {"type": "string"},
}
ETAG: Final = {"description": "Tag of the declaration, for `If-Match`.", "schema": {"type": "string"}}
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
    routes = {(route.method.lower(), route.path): route for route in typed_routes(app) if route.shown}
    types, components = schemas_of([*(type_ for route in routes.values() for type_ in route.types), Problem])
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            operation["security"] = list(security[method, path])
            operation["summary"] = summary(operation.get("description", ""))
            route = routes[method, path]
            _document_types(operation, route, types)
            _document_answers(operation)
            answer = operation["responses"].get("200", {})
            if route.tagged:
                answer["headers"] = {"ETag": ETAG}
            elif method == "get" and MEDIA_TYPES["json"] in answer.get("content", {}):
                operation["responses"]["304"] = NOT_MODIFIED
                operation.setdefault("parameters", []).append(IF_NONE_MATCH)
            for content in operation.get("requestBody", {}).get("content", {}).values():
                schemas |= content["schema"].pop("$defs", {})
    for name in OF_FASTAPI:
        schemas.pop(name, None)
    schemas |= components
    _drop_false_items(schemas)
    found["components"]["schemas"] = dict(sorted(schemas.items()))
    return found


def _drop_false_items(schema: Any) -> None:
    """Take the schema `false` from tuples, whose length their limits state: generators of clients cannot read it."""
    if isinstance(schema, dict):
        if schema.get("items") is False:
            del schema["items"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            _drop_false_items(part)


def _document_answers(operation: dict[str, Any]) -> None:
    statuses = {"4XX", "503"}
    if operation["security"]:
        statuses |= {"401", "403"}
    if "parameters" in operation:
        statuses.add("404")
    if "parameters" in operation or "requestBody" in operation:
        statuses.add("422")
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{REFERENCE}Problem"}}}
    refusals = {status: {"description": REFUSALS[status], "content": content} for status in sorted(statuses)}
    answers = {status: answer for status, answer in operation["responses"].items() if status < "4"}
    for status, answer in answers.items():
        if status != "204":
            answer.setdefault("content", {"application/json": {"schema": {}}})
    operation["responses"] = answers | refusals


def _document_types(operation: dict[str, Any], route: TypedRoute, schema_of: Mapping[Any, dict[str, Any]]) -> None:
    """Add the types of a route to its operation."""
    if route.body is not None:
        content = {MEDIA_TYPES["json"]: {"schema": schema_of[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    if isinstance(route.answers, dict):
        documented = operation["responses"]
        for status, type_ in route.answers.items():
            description = documented.get(str(status), {}).get("description") or DESCRIPTIONS[status]
            documented[str(status)] = {"description": description}
            if type_ is not None:
                documented[str(status)]["content"] = {MEDIA_TYPES["json"]: {"schema": schema_of[type_]}}


def schemas_of(types: Iterable[Any]) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """Schema of each type, and the parts that they refer to."""
    distinct = list(dict.fromkeys(types))
    found, parts = msgspec.json.schema_components(distinct, ref_template=f"{REFERENCE}{{name}}")
    for struct in _structs(multi_type_info(distinct)):
        class_ = get_origin(struct.cls) or struct.cls
        # That of a generic type is Page_Worker_.
        name = class_.__name__ + "".join(f"_{part.__name__}_" for part in get_args(struct.cls))
        schema = parts[name]
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
        for field in struct.fields:
            if text := _field_texts(class_).get(field.name):
                schema["properties"][field.encode_name].setdefault("description", text)
    return dict(zip(distinct, found, strict=True)), parts


def _structs(types: Iterable[Type]) -> Iterator[StructType]:
    """The Structs of some types and of all parts of them, each once."""
    waiting, seen = list(types), set[int]()
    while waiting:
        match kind := waiting.pop():
            case StructType() if id(kind) not in seen:
                seen.add(id(kind))
                waiting += [field.type for field in kind.fields]
                yield kind
            case UnionType():
                waiting += kind.types
            case ListType() | VarTupleType():
                waiting.append(kind.item_type)
            case DictType():
                waiting.append(kind.value_type)
            case Metadata():
                waiting.append(kind.type)


@cache
def _field_texts(struct: type[Any]) -> dict[str, str]:
    """Texts that follow the fields of a type and of its bases."""
    found: dict[str, str] = {}
    for class_ in reversed(struct.__mro__):
        if issubclass(class_, msgspec.Struct) and class_ is not msgspec.Struct:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(class_))).body
            assert isinstance(definition, ast.ClassDef)
            for field, text in pairwise(definition.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                        found[name] = " ".join(said.split())
    return found
