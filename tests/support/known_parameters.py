"""Refusal of query parameters by stand-ins for the services, as the services refuse them."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from slipway_common.web.problem import answer, invalid_part

DOCUMENTS: Final = Path(__file__).parents[2] / "contracts/openapi"
SERVICES: Final = ("provisioner", "weight-calculator", "lease-broker")
PREFIX: Final = re.compile(f"/({'|'.join(SERVICES)})(?=/)")


class KnownParameters:
    """Middleware that refuses a query parameter which no service has at the path, below that of a service or not.
    Paths that no service has are not its concern."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path = PREFIX.sub("", scope["raw_path"].decode())
            known = [names for method, place, names in _routes() if method == scope["method"] and place.fullmatch(path)]
            given = parse_qs(scope["query_string"].decode(), keep_blank_values=True)
            for name in given if known else ():
                if not any(name in names for names in known):
                    await answer(invalid_part(f"query/{name}", "unknown parameter"))(scope, receive, send)
                    return
        await self.app(scope, receive, send)


@cache
def _routes() -> list[tuple[str, re.Pattern[str], set[str]]]:
    """Method, path and query parameters of each route of the services."""
    return [route for service in SERVICES for route in _of(json.loads((DOCUMENTS / f"{service}.json").read_text()))]


def _of(document: dict[str, Any]) -> Iterator[tuple[str, re.Pattern[str], set[str]]]:
    for path, operations in document["paths"].items():
        place = re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)))
        for method, operation in operations.items():
            parameters = operation.get("parameters", ())
            yield method.upper(), place, {each["name"] for each in parameters if each["in"] == "query"}
