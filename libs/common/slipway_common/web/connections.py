"""Connections of the HTTP server: time limits for headers and bodies, and a maximum number, which uvicorn lacks.

A client that sends half a request would hold its connection for ever. Above the maximum the connection is closed that
has waited longest for a request, so that those who send none keep nobody out.
"""

import asyncio
import resource
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slipway_common.base.clock import monotonic_seconds

HEADER_SECONDS: Final = 10.0
"""Time from the beginning of a connection or a request to the end of its header."""
BODY_SECONDS: Final = 10.0
"""Time from a header to the end of its body, and one more second for each BODY_BYTES that have come."""
BODY_BYTES: Final = 10_000
UNREAD_BYTES_MAX: Final = 2_000_000
"""Bytes of a body that are read after the answer, so that the client sees it; then the connection is aborted."""
OWN_FILES: Final = 256
"""Files of a process that are no connections of clients."""


class TimedProtocol(HttpToolsProtocol):
    """Protocol of one connection. `connections_max` is that of the process, on all of its ports."""

    connections_max: ClassVar[int] = 4_096
    opened: ClassVar[set["TimedProtocol"]] = set()
    waiting: ClassVar[dict["TimedProtocol", None]] = {}
    """Connections without a complete header, in the order in which their wait began."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._in_header, self._in_body = True, False
        self._began, self._body_bytes = monotonic_seconds(), 0
        self._timer: asyncio.TimerHandle | None = None
        self.opened.add(self)
        self.waiting[self] = None
        self._watch()
        if len(self.opened) > self.connections_max:
            next(iter(self.waiting)).close()

    def close(self) -> None:
        """Close the connection, which counts no longer: others that come before its end each close another one."""
        self._forget()
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_header or self._in_body:
            self._watch()
        else:
            self._unwatch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_header, self._began = True, monotonic_seconds()

    def on_headers_complete(self) -> None:
        self._unwatch()
        self.waiting.pop(self, None)
        self._in_header, self._in_body = False, True
        self._began, self._body_bytes = monotonic_seconds(), 0
        super().on_headers_complete()

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
            self.transport.close()


def timed_protocol(connections_max: int) -> dict[str, Any]:
    """Arguments of uvicorn's configuration for at most so many connections, with as many files for this process. The
    maximum is lower if the system allows fewer files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OWN_FILES
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = min(connections_max, max(1, soft - OWN_FILES))
    return {"http": type("TimedProtocol", (TimedProtocol,), {"connections_max": most})}
