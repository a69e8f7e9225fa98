"""Answers to GET that need not be sent: entity tags and 304 for what the caller has, and no body for HEAD."""

from hashlib import blake2b
from typing import Any, Final

JSON: Final = b"application/json"
TAG_BYTES: Final = 16


class Conditional:
    """Middleware that answers HEAD as GET, whose body the server leaves out, and tags JSON answers to GET. A caller
    whose If-None-Match names the tag gets 304 without a body. Answers that have a tag of their own (`Tagged`) are
    always sent."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        known = dict(scope["headers"]).get(b"if-none-match", b"")
        begun: Any = None

        async def tagged(message: Any) -> None:
            nonlocal begun
            if message["type"] == "http.response.start" and message["status"] == 200:
                begun = message  # sent with the first part of the body, from which the tag is
                return
            if begun is not None:
                start, begun = begun, None
                headers = dict(start["headers"])
                whole = not message.get("more_body", False)
                if whole and b"etag" not in headers and headers.get(b"content-type", b"").startswith(JSON):
                    tag = _tag(message.get("body", b""))
                    start = start | {"headers": [*start["headers"], (b"etag", tag)]}
                    if _names(known, tag):
                        kept = [(name, value) for name, value in start["headers"] if not name.startswith(b"content-")]
                        start, message = start | {"status": 304, "headers": kept}, message | {"body": b""}
                await send(start)
            await send(message)

        await self.app(scope | {"method": "GET"}, receive, tagged)


def _tag(body: bytes) -> bytes:
    """Weak: the same object may be written in another way."""
    return b'W/"' + blake2b(body, digest_size=TAG_BYTES).hexdigest().encode() + b'"'


def _names(known: bytes, tag: bytes) -> bool:
    """True if the header If-None-Match names the tag, by weak comparison (RFC 9110 §13.1.2)."""
    tags = {given.strip().removeprefix(b"W/") for given in known.split(b",")}
    return known.strip() == b"*" or tag.removeprefix(b"W/") in tags
