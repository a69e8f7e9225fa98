"""Answers of routes. A route declares what it answers by the type that it returns: `Answer[T]`, where `T` is a type of
slipway_api, or a union of such types if its status depends on what it found.

The value is encoded once, by msgspec, and not validated: the type checker has compared it with the declaration.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar, Union, cast, get_args, get_origin

import msgspec
from starlette.responses import Response

T = TypeVar("T", covariant=True)
Value = TypeVar("Value")
ENCODE: Final = msgspec.json.Encoder().encode


class Answer(Response, Generic[T]):
    """Answer 200 of a route with a value."""

    status: ClassVar[int] = 200
    media_type = "application/json"

    def __init__(self, value: T, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(ENCODE(value), self.status, headers)


class Tagged(Answer[T]):
    """Answer 200 with the tag of what was declared, for `If-Match`. It is sent in full whatever tag the caller has,
    since the value has parts that change under the same tag."""

    def __init__(self, value: T, tag: str) -> None:
        super().__init__(value, {"ETag": f'"{tag}"'})


class Accepted(Answer[T]):
    """Answer 202: the value tells what will happen."""

    status = 202


class Unavailable(Answer[T]):
    """Answer 503 of a probe: the value tells why."""

    status = 503


class NoContent(Response):
    """Answer 204, without a value."""

    status: ClassVar[int] = 204

    def __init__(self) -> None:
        super().__init__(status_code=self.status)


class Untyped:
    """Mark of a route whose answer is no value of a type, for a reason: `-> Annotated[Response, Untyped("…")]`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def stored(rows: Sequence[bytes], _: type[Value]) -> list[Value]:
    """Values of a type that are stored as their JSON, for an answer: they are passed on without being decoded."""
    return cast(list[Value], list(map(msgspec.Raw, rows)))


def declared_answers(endpoint: Callable[..., Any]) -> dict[int, Any] | Untyped | None:
    """Answers of a route: the type of each status, None for one without a body; the mark of a route without types; None
    if it declares nothing."""
    annotation = inspect.signature(endpoint, eval_str=True).return_annotation
    if get_origin(annotation) is Annotated:
        return next((mark for mark in get_args(annotation) if isinstance(mark, Untyped)), None)
    found: dict[int, Any] = {}
    for kind, type_ in _answers(annotation):
        if not isinstance(kind, type) or not issubclass(kind, Answer | NoContent):
            return None
        found[kind.status] = type_
    return found


def is_tagged(endpoint: Callable[..., Any]) -> bool:
    """True if a route declares an answer that has a tag of its own."""
    annotation = inspect.signature(endpoint, eval_str=True).return_annotation
    return any(kind is Tagged for kind, _ in _answers(annotation))


def _answers(annotation: Any) -> Iterator[tuple[Any, Any]]:
    """Class and type of each answer of what a route returns."""
    for part in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,):
        yield get_origin(part) or part, next(iter(get_args(part)), None)
