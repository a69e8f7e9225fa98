"""JSON over HTTP for a process that has to start fast: one request per connection, h11 on asyncio's streams.

The HTTP library of the other commands takes twice as long to import and reads all certificates, which alone would use
up the time that a worker may take to start.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from math import inf
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import h11
import msgspec

from slipway_client.transport import trust
from slipway_client.transport.backoff import Backoff, next_backoff, retry_after_seconds
from slipway_client.transport.connections import PORTS, READ_BYTES, Reading, address, request_head
from slipway_client.transport.decoding import UNREADABLE
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.tls import UnusableFile

REQUEST_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 1 << 20
T = TypeVar("T")
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


# Problems of an address or a certificate, which no wait mends.
TLS: Final = "tls"
UNKNOWN_HOST: Final = "unknown-host"
OTHER_SERVICE: Final = "other-service"
TOO_MANY_REQUESTS: Final = "too-many-requests"
MISDIRECTED: Final = frozenset({TLS, UNKNOWN_HOST, OTHER_SERVICE})


class NoAnswer(Exception):
    """No answer, or an answer that asks to retry later. The text gives the reason and holds no secret. `problem` is the
    slug of the problem that was answered, or of one of MISDIRECTED; empty if there was none. The service asks to retry
    after `retry_after_seconds`, if it has said so."""

    def __init__(self, text: str, problem: str = "", retry_after_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.problem = problem
        self.retry_after_seconds = retry_after_seconds

    @property
    def is_limited(self) -> bool:
        """True if the service is available, and has answered that this caller sends too many requests."""
        return self.problem == TOO_MANY_REQUESTS


class Received(NamedTuple):
    """Status and body of a response, and the seconds after which it asks to retry."""

    status: int
    content: bytes
    retry_after_seconds: float = 0.0


def limited(text: str, received: Received, detail: str = "") -> NoAnswer:
    """The answer 429, also of a proxy; `detail` is what it says."""
    text = ": ".join(filter(None, (f"{text} answered 429".strip(), detail)))
    return NoAnswer(text, TOO_MANY_REQUESTS, received.retry_after_seconds)


class Answer(msgspec.Struct, frozen=True):
    """One HTTP response. `body` is empty if it was not a JSON object."""

    status: int
    body: dict[str, Any]

    @property
    def ok(self) -> bool:
        return self.status < 300

    @property
    def problem(self) -> str:
        """Slug of the problem; empty if it is none."""
        return str(self.body.get("type") or "").rpartition(":")[2]

    @property
    def text(self) -> str:
        """Text of a refusal."""
        parts = [str(self.body[part]) for part in ("title", "detail") if self.body.get(part)]
        return f"{self.status} {': '.join(parts)}".strip()


async def post(url: str, body: object, *, token: str = "", seconds: float = REQUEST_SECONDS) -> Answer:
    """POST JSON. Raises NoAnswer."""
    return await _request("POST", url, msgspec.json.encode(body), token, seconds)


async def get(url: str, *, token: str = "", seconds: float = REQUEST_SECONDS) -> Answer:
    """GET JSON. Raises NoAnswer."""
    return await _request("GET", url, b"", token, seconds)


def authorization(token: str) -> Mapping[str, str]:
    """Header that authorizes a request; none for an empty token."""
    return {"Authorization": f"Bearer {token}"} if token else NO_HEADERS


async def retried(
    call: Callable[[], Awaitable[T]], rng: Random, until: float = inf, failed: Callable[[NoAnswer], None] | None = None
) -> T:
    """Answer to a call that is repeated until it has one, at longer and longer intervals. Raises NoAnswer where another
    attempt would be after `until`. `failed` gets the first failure."""
    backoff = Backoff()
    while True:
        try:
            return await call()
        except NoAnswer as error:
            backoff = next_backoff(backoff, monotonic_seconds(), rng.random(), error.retry_after_seconds)
            if backoff.retry_at > until:
                raise
            if failed is not None and backoff.failures == 1:
                failed(error)
            await asyncio.sleep(max(0.0, backoff.retry_at - monotonic_seconds()))


async def exchange(
    method: str, url: str, body: bytes, *, headers: Mapping[str, str] = NO_HEADERS, seconds: float
) -> Received:
    """Send one request; returns its response. Raises NoAnswer after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await _exchange(method, url, body, headers)
    except TimeoutError:
        raise NoAnswer(f"no answer within {seconds:g} s") from None
    except h11.LocalProtocolError:  # its text has the header, which may be the token
        raise NoAnswer("a header of the request is no HTTP: is the token complete, and on one line?") from None
    except (OSError, ValueError, h11.ProtocolError) as error:
        raise NoAnswer(str(error) or type(error).__name__, _problem(error)) from error


def _problem(error: Exception) -> str:
    if isinstance(error, ssl.SSLError | UnusableFile):
        return TLS
    return UNKNOWN_HOST if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME else ""


async def _request(method: str, url: str, body: bytes, token: str, seconds: float) -> Answer:
    received = await exchange(method, url, body, headers=authorization(token), seconds=seconds)
    status, content, _ = received
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        raise limited("", received)
    # 404 may come from a service that is starting, a redirect from something other than a Slipway service.
    retry = status >= 500 or status in {404, 408, 425} or 300 <= status < 400
    try:
        answer = Answer(status, msgspec.json.decode(content or b"{}", type=dict[str, Any]))
    except UNREADABLE:
        if status < 300:
            raise NoAnswer(f"answered {status} with something other than JSON") from None
        answer = Answer(status, {})
    if retry:
        raise NoAnswer(f"answered {status}", answer.problem, received.retry_after_seconds)
    return answer


async def _exchange(method: str, url: str, body: bytes, more_headers: Mapping[str, str]) -> Received:
    where = address(url)
    headers = {
        "Connection": "close",
        "Accept": "application/json",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **more_headers,
    }
    connection = h11.Connection(h11.CLIENT)
    tls = trust.context() if where.scheme == "https" else None
    reader, writer = await asyncio.open_connection(where.hostname, where.port or PORTS[where.scheme], ssl=tls)
    try:
        for event in (request_head(method, where, headers.items()), h11.Data(body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        reading = Reading(connection, ANSWER_BYTES_MAX)
        while not reading.receive(await reader.read(READ_BYTES)):
            pass
        seconds = retry_after_seconds(reading.headers.get("retry-after", ""))
        return Received(reading.status, bytes(reading.content), seconds)
    finally:
        writer.transport.abort()  # nothing is left to send, so there is no need to wait for a clean close
