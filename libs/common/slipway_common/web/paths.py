"""Paths, origins and traces of HTTP requests.

An id may contain slashes: `/pools/gecko-t%2Flinux` is the path of pool gecko-t/linux.

A path is matched as sent, and its parameters of type `id` are decoded then: `/pools/{pool_id:id}`.
"""

from typing import Any
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor

from slipway_common.database import audit
from slipway_common.observability.telemetry import TRACEPARENT, trace


class IdConvertor(Convertor[str]):
    """Path parameter that is percent-encoded in the path. Bytes that are no text do not name anything that exists."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("id", IdConvertor())


class PathAsSent:
    """Middleware that has requests routed by the path as sent: once decoded, a slash of an id would divide it."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = scope | {"path": scope["raw_path"].decode("latin-1")}
        await self.app(scope, receive, send)


class InTrace:
    """Middleware that has the events of a request continue the trace of its header `traceparent`."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sent = (value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"traceparent")
        given = next(sent, "")
        with trace(given if TRACEPARENT.fullmatch(given) else ""):
            await self.app(scope, receive, send)


class FromAddress:
    """Middleware that has the audit name the address of the client."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        host, _ = scope.get("client") or ("", 0)
        with audit.requested_from(host):
            await self.app(scope, receive, send)
