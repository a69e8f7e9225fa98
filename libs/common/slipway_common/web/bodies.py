"""Bodies of requests. A route declares its body as a parameter `Body[T]` or `Report[T]`, where `T` is a type of
slipway_api. It is decoded after the access of the caller was checked, just before the route is called.

The fields of a body are all known, since an ignored one would change what a request means. A report tells what has
happened: unknown fields of a newer reporter are ignored and counted.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from enum import Enum
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import msgspec
from fastapi import Request
from msgspec.inspect import (
    DictType,
    EnumType,
    ListType,
    LiteralType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from slipway_api.events.decoding import EventDecoder
from slipway_common.observability.metrics import counter
from slipway_common.web.parameters import QueryParameters
from slipway_common.web.problem import Problem, invalid_part, too_large

T = TypeVar("T")
UNKNOWN: Final = counter("slipway_unknown_fields_total")
AT: Final = re.compile(r"(?P<reason>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)
PART: Final = re.compile(r"[^.\[\]]+")
MISSING: Final = re.compile(r"Object missing required field `(.*)`")
UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `(.*)`")
NOT_ONE: Final = re.compile(r"Invalid enum value (.*)", re.DOTALL)
EXPECTED: Final = re.compile(r"Expected (.*?)(?:, got (.*))?", re.DOTALL)
LENGTH: Final = re.compile(r"`str` of length (<=|>=) (\d+)")
BOUNDS: Final = {"<=": "at most", ">=": "at least"}
NO_TIME: Final = "Invalid RFC3339 encoded datetime"
TIMESTAMP: Final = 'a timestamp such as "2026-01-05T09:59:58Z"'
SHOWN_MAX: Final = 20
REPORT_BYTES_MAX: Final = 65_536
"""Size of a report, of which the largest text has 12 kB. A machine that registers has no token before it is decoded."""
REQUEST: Final = "request"
NO_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class UnknownFields(Enum):
    """Treatment of fields that the type of a body lacks."""

    REFUSED = "refused"
    COUNTED = "counted"


Body = Annotated[T, UnknownFields.REFUSED]
Report = Annotated[T, UnknownFields.COUNTED]


class DeclaredBody:
    """The body of a route as it is declared. Raises TypeError for a Body whose type ignores unknown fields."""

    def __init__(self, name: str, type_: type[Any], unknown_fields: UnknownFields) -> None:
        if unknown_fields is UnknownFields.REFUSED and not _is_closed(type_):
            raise TypeError(f"{type_} ignores unknown fields: forbid them, or declare a Report")
        self.name = name
        """Name of the parameter."""
        self.type = type_
        self._counts = unknown_fields is UnknownFields.COUNTED
        self._decode = BodyDecoder(type_).decode
        self._type = type_info(type_)

    async def read(self, request: Request) -> Any:
        """The decoded body of a request. Raises Problem 400 for what is no JSON, 413 for a report that is too large,
        and 422 with the place of the first part that is not valid, and its remedy."""
        body = await request.body()
        if self._counts and len(body) > REPORT_BYTES_MAX:
            raise too_large(REPORT_BYTES_MAX)
        decoded = self._decode(body)
        if self._counts and (number := sum(1 for _ in _unknown(_any_json(body), self._type))):
            UNKNOWN.labels(self.type.__name__).inc(number)
        return decoded


class BodyDecoder:
    """Decoder of one type of bodies."""

    def __init__(self, type_: type[Any]) -> None:
        self._type = type_
        self._decode = EventDecoder(type_, times=True).decode

    def decode(self, body: bytes) -> Any:
        """Decode a body. Raises Problem 400 or 422."""
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise invalid(str(error), self._type) from error
        except NO_JSON as error:
            raise _not_json(error) from error


def _any_json(body: bytes) -> Any:
    """Value of a body of any type. Raises Problem 400: names of fields are not decoded where the type lacks them."""
    try:
        return msgspec.json.decode(body)
    except NO_JSON as error:
        raise _not_json(error) from error


def _not_json(error: Exception) -> Problem:
    return Problem(400, "not-json", "The body is not JSON", str(error))


def invalid(error: str, type_: type[Any]) -> Problem:
    """Refusal of a body for the first part of it that its type does not allow, as msgspec describes it."""
    found = AT.fullmatch(error)
    assert found is not None
    path, reason = PART.findall(found["path"] or ""), found["reason"]
    type_there = _type_at(type_info(type_), path)
    if missing := MISSING.fullmatch(reason):
        path, reason = [*path, missing[1]], "is required"
    elif unknown := UNKNOWN_FIELD.fullmatch(reason):
        path, reason = [*path, unknown[1]], f"unknown field; {_known(unknown[1], _fields(type_there))}"
    elif value := NOT_ONE.fullmatch(reason):
        reason = f"{value[1]} is none of {', '.join(_values(type_there))}"
    elif expected := EXPECTED.fullmatch(reason):
        reason = f"must be {expected[1]}" + (f", not {expected[2]}" if expected[2] else "")
    reason = LENGTH.sub(lambda found: f"a text of {BOUNDS[found[1]]} {found[2]} characters", reason)
    reason = reason.replace(NO_TIME, "must be `datetime`").replace("`datetime`", TIMESTAMP)
    return invalid_part("/".join(("body", *path)), reason.replace("`", ""))


def with_request(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint of a route, which is called with its decoded body after all that it depends on, and with the query
    parameters that it declares alone. Raises TypeError for a second body."""
    signature = inspect.signature(endpoint, eval_str=True)
    body, own_request, others = None, None, []
    for name, parameter in signature.parameters.items():
        unknown_fields = _unknown_fields(parameter.annotation)
        if unknown_fields is None:
            others.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            own_request = name if parameter.annotation is Request else own_request
        elif body is not None:
            raise TypeError(f"{endpoint.__qualname__} declares the bodies {body.name} and {name}: a request has one")
        else:
            body = DeclaredBody(name, get_args(parameter.annotation)[0], unknown_fields)
    request_name, parameters = own_request or REQUEST, QueryParameters()
    if own_request is None:
        others.append(inspect.Parameter(REQUEST, inspect.Parameter.KEYWORD_ONLY, annotation=Request))

    @functools.wraps(endpoint)
    async def called(**arguments: Any) -> Any:
        request = arguments[request_name] if own_request else arguments.pop(request_name)
        parameters.check(request)
        if body is not None:
            arguments[body.name] = await body.read(request)
        return await endpoint(**arguments)

    called.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    called.declared_body = body  # type: ignore[attr-defined]
    return called


def declared_body(endpoint: Callable[..., Any]) -> DeclaredBody | None:
    """The body of an endpoint that `with_request` gave."""
    return getattr(endpoint, "declared_body", None)


def _unknown_fields(annotation: Any) -> UnknownFields | None:
    marks = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, UnknownFields)), None)


def _is_closed(type_: type[Any]) -> bool:
    return issubclass(type_, msgspec.Struct) and type_.__struct_config__.forbid_unknown_fields


def _parts(kind: Type) -> Iterator[Type]:
    """The type, or those of a union."""
    yield from kind.types if isinstance(kind, UnionType) else (kind,)


def _fields(kind: Type | None) -> dict[str, Type]:
    """Fields of a type, or of those of a union, by their names on the wire."""
    parts = () if kind is None else _parts(kind)
    return {field.encode_name: field.type for part in parts if isinstance(part, StructType) for field in part.fields}


def _type_at(kind: Type, path: list[str]) -> Type | None:
    """Type of the part at a path; None where it is not known."""
    for name in path:
        inner = _fields(kind).get(name)
        for part in _parts(kind):
            if isinstance(part, ListType | VarTupleType):
                inner = part.item_type
            elif isinstance(part, DictType):
                inner = part.value_type
        if inner is None:
            return None
        kind = inner
    return kind


def _values(kind: Type | None) -> list[str]:
    """Values of an enumeration."""
    found: list[Any] = []
    for part in () if kind is None else _parts(kind):
        if isinstance(part, LiteralType):
            found += part.values
        elif isinstance(part, EnumType):
            found += [member.value for member in part.cls]
    return [str(value) for value in found]


def _known(name: str, known: dict[str, Type]) -> str:
    """Remedy for an unknown field."""
    if close := get_close_matches(name, known, 1):
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(list(known)[:SHOWN_MAX])}"


def _unknown(value: Any, kind: Type) -> Iterator[str]:
    """Fields of a report that its type lacks."""
    if isinstance(value, list):
        items = [part.item_type for part in _parts(kind) if isinstance(part, ListType | VarTupleType)]
        for item_type in items:
            for item in value:
                yield from _unknown(item, item_type)
    elif isinstance(value, dict) and (fields := _fields(kind)):
        for name, inner in value.items():
            if name in fields:
                yield from _unknown(inner, fields[name])
            else:
                yield name
