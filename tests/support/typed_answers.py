"""Check of every answer that a test gets from a service's routes: it decodes as the type that its route declares, has
no fields beyond it, and a refusal is a Problem."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import msgspec
from fastapi import FastAPI

from slipway_api.problems import Problem
from slipway_common.web.problem import MEDIA_TYPE
from slipway_common.web.router import typed_routes


def checking(app: FastAPI) -> Callable[[httpx2.Response], Awaitable[None]]:
    """Hook of an HTTP client that raises AssertionError for an answer of another type."""
    routes = [
        (route.method, re.compile(re.sub(r"\{[^}]*\}", "[^/]+", route.path)), route.answers)
        for route in typed_routes(app)
        if isinstance(route.answers, dict)
    ]

    async def check(response: httpx2.Response) -> None:
        await response.aread()
        path = response.request.url.raw_path.decode().partition("?")[0]
        if response.headers.get("content-type", "").startswith(MEDIA_TYPE):
            assert_typed(response.content, Problem, path)
        for method, pattern, answers in routes:
            if method == response.request.method and pattern.fullmatch(path):
                if response.content and (type_ := answers.get(response.status_code)) is not None:
                    assert_typed(response.content, type_, path)
                return

    return check


def assert_typed(content: bytes, type_: Any, about: str) -> None:
    """Raise AssertionError unless JSON data are of the type, and lose nothing if they are decoded as it."""
    try:
        decoded = msgspec.json.decode(content, type=type_)
    except msgspec.ValidationError as error:
        raise AssertionError(f"{about}: not of {type_}: {error}") from error
    extra = sorted(fields(msgspec.json.decode(content)) - fields(msgspec.json.decode(msgspec.json.encode(decoded))))
    assert not extra, f"{about}: {type_} has no {', '.join(extra)}"


def fields(value: Any, path: str = "") -> set[str]:
    """Paths of the fields in JSON data; all items of a list have one path."""
    found = set[str]()
    match value:
        case dict():
            for name, part in value.items():
                found |= {f"{path}/{name}"} | fields(part, f"{path}/{name}")
        case list():
            for part in value:
                found |= fields(part, f"{path}[]")
    return found
