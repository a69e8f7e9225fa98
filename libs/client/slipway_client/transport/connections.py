"""Requests to services over connections that are kept: h11 on sockets.

The library for HTTP of `slipway top` and `slipway-alerts` takes longer to import than most commands run.
"""

import select
import socket
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlencode, urlsplit

import h11

from slipway_client.transport.failed import Failed

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
        where = urlsplit(url)
        framing = ("Content-Length", str(len(body))) if isinstance(body, bytes) else ("Transfer-Encoding", "chunked")
        head = h11.Request(
            method=method,
            target=(where.path or "/") + (f"?{query}" if query else ""),
            headers=[
                ("Host", where.netloc.rpartition("@")[2]),
                ("Accept-Encoding", "gzip"),
                *self._headers.items(),
                *(headers or {}).items(),
                *([framing] if body or method != "GET" else []),
            ],
        )
        connection = self._kept() or _Connection(where, self._timeout_seconds)
        try:
            status, reason, received, content = connection.exchange(head, [body] if isinstance(body, bytes) else body)
        except h11.ProtocolError as error:
            connection.close()
            raise ConnectionError(str(error)) from error
        except BaseException:
            connection.close()
            raise
        if connection.is_reusable():
            self._idle.append(connection)
        else:
            connection.close()
        return Response(status, reason, received, content, url)

    def _kept(self) -> "_Connection | None":
        """A connection that the service has not closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open():
                return connection
            connection.close()
        return None


class _Connection:
    def __init__(self, where: SplitResult, timeout_seconds: float) -> None:
        if where.scheme not in PORTS or not where.hostname:
            raise ValueError(f"{where.geturl()} is not an address such as http://127.0.0.1:7301")
        host = where.hostname
        self._socket = socket.create_connection((host, where.port or PORTS[where.scheme]), timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._http = h11.Connection(h11.CLIENT)
        if where.scheme == "https":
            self._socket = _encrypted(self._socket, host)

    def exchange(self, head: h11.Request, body: Iterable[bytes]) -> tuple[int, str, dict[str, str], bytes]:
        """Status, reason, headers and body of the answer to a request."""
        try:
            self._send(head)
            for part in body:
                self._send(h11.Data(part))
            self._send(h11.EndOfMessage())
        except (BrokenPipeError, ConnectionResetError):
            self._http.send_failed()  # a service refuses a body before its end: its answer is there
        status, reason, headers, content = 0, "", dict[str, str](), bytearray()
        while True:
            match self._http.next_event():
                case h11.NEED_DATA:
                    if not (read := self._socket.recv(READ_BYTES)) and not status:
                        raise ConnectionError("the connection ended without an answer")
                    self._http.receive_data(read)
                case h11.Response() as answer:
                    status, reason = answer.status_code, answer.reason.decode("latin-1")
                    headers = {name.decode(): value.decode("latin-1") for name, value in answer.headers}
                case h11.Data() as data:
                    content += data.data
                case h11.EndOfMessage():
                    return status, reason, headers, _plain(bytes(content), headers)
                case _:
                    pass  # informational

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


def _encrypted(connected: socket.socket, host: str) -> socket.socket:
    from slipway_client.transport import trust
    from slipway_common.base.tls import UnusableFile

    try:
        return trust.context().wrap_socket(connected, server_hostname=host)
    except UnusableFile as error:
        connected.close()
        raise Failed(f"TLS cannot be used: {error}\nCheck --ca, --certificate and --key.") from error
    except BaseException:
        connected.close()
        raise


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
