"""Connections of the command to its services."""

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.middleware.gzip import GZipMiddleware

from slipway_client.transport.connections import Connections
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api
from tests.support.recorded import serving

LONG: Final = [f"worker-{number}" for number in range(2_000)]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A service that answers what it was asked, and a path that is long."""
    app = FastAPI()
    app.add_middleware(GZipMiddleware, minimum_size=4096)

    @app.get("/long")
    async def long() -> list[str]:
        return LONG

    @app.api_route("/{path:path}", methods=["GET", "PUT", "POST", "DELETE"])
    async def echo(request: Request) -> Any:
        assert request.client is not None
        port, headers = request.client.port, dict(request.headers)
        body = (await request.body()).decode()
        closing = {"Connection": "close"} if "last" in request.query_params else {}
        answer = {"target": str(request.url), "port": port, "headers": headers, "body": body}
        return Response(json.dumps(answer), headers=closing, status_code=201)

    with serving(app) as found:
        yield found


def asked(connections: Connections, *arguments: Any, **given: Any) -> Any:
    answer = connections.request(*arguments, **given)
    assert (answer.status, answer.reason) == (201, "Created")
    return json.loads(answer.content)


def test_a_request_has_what_it_was_given(url: str) -> None:
    """Parameters of lists are repeated, and those without a value are left out."""
    connections = Connections(f"{url}/prefix", {"Authorization": "Bearer t"}, 5.0)
    parameters = {"pool": "a/b c", "all": True, "state": ["x", "y"], "none": None, "limit": 3}
    answer = asked(connections, "GET", "/pools", parameters)
    assert answer["target"] == f"{url}/prefix/pools?pool=a%2Fb+c&all=true&state=x&state=y&limit=3"
    assert answer["headers"]["authorization"] == "Bearer t"
    assert "content-length" not in answer["headers"]
    answer = asked(connections, "PUT", "/pools", {}, b"body", {"If-Match": "tag"})
    assert (answer["body"], answer["headers"]["if-match"]) == ("body", "tag")
    answer = asked(connections, "PUT", "/pools", {}, (part for part in (b"in ", b"parts")))
    assert (answer["body"], answer["headers"]["transfer-encoding"]) == ("in parts", "chunked")
    assert asked(connections, "DELETE", "/pools", {})["headers"]["content-length"] == "0"


def test_a_connection_is_kept_until_the_service_closes_it(url: str) -> None:
    connections = Connections(url, {}, 5.0)
    ports = [asked(connections, "GET", "/", {"last": 1} if last else {})["port"] for last in (False, True, False)]
    assert ports[0] == ports[1] != ports[2]


def test_a_long_answer_is_compressed_on_its_way(url: str) -> None:
    answer = Connections(url, {}, 5.0).request("GET", "/long", {})
    assert answer.headers["content-encoding"] == "gzip"
    assert json.loads(answer.content) == LONG


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """The URL of a service that sends an answer to whatever it gets and closes the connection, once for each."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def test_a_kept_connection_that_was_closed_meanwhile_is_not_used() -> None:
    empty = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with answering(empty, empty) as url:
        connections = Connections(url, {}, 5.0)
        for _ in range(2):
            assert connections.request("GET", "/", {}).status == 200
            connections._idle[0]._socket.recv(1, socket.MSG_PEEK)  # waits until it is closed


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "the connection ended without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "illegal status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal", "closed connection without sending complete message body"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nhalf",
            "the body is not in the format gzip",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 20\r\n\r\n"
            + gzip.compress(b"half " * 9)[:20],
            "the body is not in the format gzip",
        ),
    ],
)
def test_what_is_no_answer_is_an_error(answer: bytes, problem: str) -> None:
    with answering(answer) as url, pytest.raises(OSError, match=problem):
        Connections(url, {}, 5.0).request("GET", "/", {})


@pytest.mark.parametrize("body", [b'{"title": "verweigert f\xfcr alle"}', b'{"a":' * 3_000 + b"1" + b"}" * 3_000])
@pytest.mark.parametrize(
    ("status", "problem"), [("200 OK", "did not answer with JSON"), ("403 Forbidden", "answered 403")]
)
def test_a_body_that_cannot_be_read_is_not_that_of_a_service(status: str, problem: str, body: bytes) -> None:
    """As from a proxy."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
    with answering(head.encode() + body) as url, pytest.raises(Failed, match=f"{problem}.*is it a Slipway service"):
        Api({"provisioner": url}).get(dict[str, object], "provisioner", "/pools")


@pytest.mark.parametrize("url", ["127.0.0.1:7301", "ftp://127.0.0.1", "http://"])
def test_an_address_needs_a_scheme_and_a_host(url: str) -> None:
    with pytest.raises(ValueError, match="is not an address such as"):
        Connections(url, {}, 5.0).request("GET", "/", {})
