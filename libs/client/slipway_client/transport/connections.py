"""Requests to services over connections that are kept: h11 on sockets.

The library for HTTP of `slipway top` and `slipway-alerts` takes longer to import than most commands run.
"""

import select
import socket
from collections.abc import Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import SplitResult, urlencode, urlsplit

import h11

from slipway_client.transport.failed import Failed

if TYPE_CHECKING:
    import ssl

READ_BYTES: Final = 65_536
PORTS: Final = {"http": 80, "https": 443}


class Response(NamedTuple):
    """An answer, and the URL that was asked. `headers` have names in lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes
    url: str


class Connections:
    """Connections to one service. Several threads may use them, each its own connection."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_seconds: float) -> None:
        """`headers` go with every request. Each step of a request may take `timeout_seconds`."""
        self._url = url
        self._headers = headers
        self._timeout_seconds = timeout_seconds
        self._idle: list[_Connection] = []

    def request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, object],
        body: bytes | Iterable[bytes] = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """The answer to a request; a body of parts is sent as such. Raises Failed for files of TLS that cannot be used,
        OSError, and ValueError for a URL that is none."""
        query = _query(parameters)
        url = f"{self._url}{path}{'?' if query else ''}{query}"
        where = address(url)
        framing = ("Content-Length", str(len(body))) if isinstance(body, bytes) else ("Transfer-Encoding", "chunked")
        given = {"Accept-Encoding": "gzip", **self._headers, **(headers or {})}
        head = request_head(method, where, [*given.items(), *([framing] if body or method != "GET" else [])])
        connection = self._kept() or _Connection(where, self._timeout_seconds)
        try:
            read = connection.exchange(head, [body] if isinstance(body, bytes) else body)
        except h11.ProtocolError as error:
            raise ConnectionError(str(error)) from error
        finally:
            if connection.is_reusable():
                self._idle.append(connection)
            else:
                connection.close()
        return Response(read.status, read.reason, read.headers, _plain(bytes(read.content), read.headers), url)

    def _kept(self) -> "_Connection | None":
        """A connection that the service has not closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open():
                return connection
            connection.close()
        return None


class Reading:
    """The answer to a request that was sent on a connection, as it arrives."""

    def __init__(self, http: h11.Connection, bytes_max: float = inf) -> None:
        self.status = 0
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.content = bytearray()
        self._http = http
        self._bytes_max = bytes_max

    def receive(self, data: bytes) -> bool:
        """Read what has arrived; True once that is all of the answer. Raises ValueError if it is too long."""
        if not data and not self.status:
            raise ConnectionError("the connection ended without an answer")
        self._http.receive_data(data)
        while (event := self._http.next_event()) is not h11.NEED_DATA:
            match event:
                case h11.Response():
                    self.status, self.reason = event.status_code, event.reason.decode("latin-1")
                    self.headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
                case h11.Data():
                    self.content += event.data
                    if len(self.content) > self._bytes_max:
                        raise ValueError(f"answered more than {self._bytes_max} bytes")
                case h11.EndOfMessage():
                    return True
        return False


class _Connection:
    def __init__(self, where: SplitResult, timeout_seconds: float) -> None:
        context = _context() if where.scheme == "https" else None
        host = where.hostname or ""
        self._socket = socket.create_connection((host, where.port or PORTS[where.scheme]), timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._http = h11.Connection(h11.CLIENT)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)

    def exchange(self, head: h11.Request, body: Iterable[bytes]) -> Reading:
        """The answer to a request."""
        try:
            self._send(head)
            for part in body:
                self._send(h11.Data(part))
            self._send(h11.EndOfMessage())
        except (BrokenPipeError, ConnectionResetError):
            self._http.send_failed()  # a service refuses a body before its end: its answer is there
        reading = Reading(self._http)
        while not reading.receive(self._socket.recv(READ_BYTES)):
            pass
        return reading

    def _send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        self._socket.sendall(self._http.send(event) or b"")

    def is_reusable(self) -> bool:
        """True if another request may be sent; prepares for it."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def is_open(self) -> bool:
        """True if the service has sent nothing since the last answer, also no end of the connection."""
        return not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        self._socket.close()


def address(url: str) -> SplitResult:
    """Parts of a URL. Raises ValueError if it is none."""
    url.encode()  # bytes of the environment may be no text
    where = urlsplit(url)
    if where.scheme not in PORTS or not where.hostname or where.port == 0:
        raise ValueError(f"{url} is not an address such as http://127.0.0.1:7301")
    return where


def request_head(method: str, where: SplitResult, headers: Iterable[tuple[str, str]]) -> h11.Request:
    """The head of a request."""
    target = (where.path or "/") + (f"?{where.query}" if where.query else "")
    return h11.Request(method=method, target=target, headers=[("Host", where.netloc.rpartition("@")[2]), *headers])


def _context() -> "ssl.SSLContext":
    from slipway_client.transport import trust
    from slipway_common.base.tls import UnusableFile

    try:
        return trust.context()
    except UnusableFile as error:
        raise Failed(f"TLS cannot be used: {error}\nCheck --ca, --certificate and --key.") from error


def _query(parameters: Mapping[str, object]) -> str:
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in parameters.items()
        if value is not None
    }
    return urlencode(given, doseq=True)


def _plain(content: bytes, headers: Mapping[str, str]) -> bytes:
    if headers.get("content-encoding") != "gzip":
        return content
    import zlib

    try:
        return zlib.decompress(content, wbits=31)
    except zlib.error as error:
        raise ConnectionError(f"the body is not in the format gzip: {error}") from error
