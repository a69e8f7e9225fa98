"""Connections of the HTTP server: limits of time and size for headers, bodies and answers, and a maximum number, none
of which uvicorn has.

A client that sends half a request, or reads half an answer, would hold its connection for ever; one that sends a header
without end, or many requests at once, as much memory as it likes. Above the maximum the connection is closed that has
waited longest for a request, so that those who send none keep nobody out.
"""

import asyncio
import resource
import socket
import ssl
from typing import Any, ClassVar, Final, Self

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slipway_common.base.clock import monotonic_seconds

HEADER_SECONDS: Final = 10.0
"""Time from the beginning of a connection or a request to the end of its header, and of a TLS handshake."""
HEADER_BYTES_MAX: Final = 65_536
"""Size of a header, without the part of it that came first."""
PIPELINED_MAX: Final = 16
"""Requests that a connection may send beside the one that is being answered; each takes kilobytes."""
BODY_SECONDS: Final = 10.0
"""Time from a header to the end of its body, and one more second for each BODY_BYTES that have come."""
BODY_BYTES: Final = 10_000
ANSWER_SECONDS: Final = 30.0
"""Time in which a client reads something of an answer that waits to be sent."""
UNREAD_BYTES_MAX: Final = 2_000_000
"""Bytes of a body that are read after the answer, so that the client sees it; then the connection is aborted."""
OWN_FILES: Final = 256
"""Files of a process that are no connections of clients."""


class TooManyRequests(Exception):
    """A connection has sent more requests than may wait on it."""


class Begun(ssl.SSLContext):
    """Context of a handshake whose first bytes have come already."""

    def __new__(cls, *_: Any) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, tls: ssl.SSLContext, received: bytes) -> None:
        self._tls, self._received = tls, received

    def wrap_bio(self, incoming: ssl.MemoryBIO, *arguments: Any, **options: Any) -> ssl.SSLObject:
        incoming.write(self._received)
        return self._tls.wrap_bio(incoming, *arguments, **options)


class TimedProtocol(HttpToolsProtocol):
    """Protocol of one connection. `connections_max` is that of the process, on all of its ports. With `tls` it begins
    with a handshake of its own: the event loop would make it before the connection was counted, and could be closed."""

    connections_max: ClassVar[int] = 4_096
    tls: ClassVar[ssl.SSLContext | None] = None
    opened: ClassVar[set["TimedProtocol"]] = set()
    waiting: ClassVar[dict["TimedProtocol", None]] = {}
    """Connections without a complete header, in the order in which their wait began."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux alone
            # A connection that is closed would not end, nor free its file, while something waits to be sent.
            connected = transport.get_extra_info("socket")
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(ANSWER_SECONDS * 1000))
        self._timer: asyncio.TimerHandle | None = None
        self._early = bytearray()
        self._handshake: asyncio.Task[None] | None = None
        self.opened.add(self)
        self.waiting[self] = None
        if self.tls is None:
            self._begin(transport)
        else:
            self._handshake = self.loop.create_task(self._shake_hands(transport, self.tls))
        if len(self.opened) > self.connections_max:
            next(iter(self.waiting)).close()

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        if self._early:
            tls, self._early = Begun(tls, bytes(self._early)), bytearray()
        try:
            encrypted = await self.loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=HEADER_SECONDS
            )
        except (OSError, asyncio.CancelledError):  # it was closed, too late, or no handshake
            self.close()
            return
        self._handshake = None
        if encrypted is None or self not in self.opened:  # it has ended meanwhile
            self.close()
            return
        self._begin(encrypted)
        if early := bytes(self._early):
            self.data_received(early)

    def _begin(self, transport: asyncio.Transport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._in_header, self._in_body = True, False
        self._began, self._body_bytes, self._header_bytes = monotonic_seconds(), 0, 0
        self._watch()

    def close(self) -> None:
        """End the connection, which counts no longer. It does not wait for its client, as an orderly end would."""
        self._forget()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._handshake is not None:  # before its task has begun, or gone on after its end
            self._early += data
            return
        self._header_bytes += len(data)
        super().data_received(data)
        if self._in_header and self._header_bytes > HEADER_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("The header is too large.")
        if self._in_header or self._in_body:
            self._watch()
        else:
            self._unwatch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_header, self._began, self._header_bytes = True, monotonic_seconds(), 0

    def on_headers_complete(self) -> None:
        self._unwatch()
        self.waiting.pop(self, None)
        self._in_header, self._in_body = False, True
        self._began, self._body_bytes = monotonic_seconds(), 0
        super().on_headers_complete()
        if len(self.pipeline) > PIPELINED_MAX:
            raise TooManyRequests  # the parser ends, and the base class refuses the rest

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete and self._body_bytes > UNREAD_BYTES_MAX:
            self.transport.abort()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():
            self.waiting[self] = None

    def _forget(self) -> None:
        self.opened.discard(self)
        self.waiting.pop(self, None)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._left_seconds(), self._expire)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _left_seconds(self) -> float:
        allowed = HEADER_SECONDS if self._in_header else BODY_SECONDS + self._body_bytes / BODY_BYTES
        return self._began + allowed - monotonic_seconds()

    def _expire(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._in_body and self.flow.read_paused:  # the service is late, not the client
            self._began = monotonic_seconds()
        if self._left_seconds() > 0:
            self._watch()
        else:
            self.close()


def timed_protocol(connections_max: int, tls: ssl.SSLContext | None = None) -> dict[str, Any]:
    """Arguments of uvicorn's configuration for at most so many connections, with as many files for this process. The
    maximum is lower if the system allows fewer files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OWN_FILES
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = min(connections_max, max(1, soft - OWN_FILES))
    return {"http": type("TimedProtocol", (TimedProtocol,), {"connections_max": most, "tls": tls})}
