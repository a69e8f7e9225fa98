"""How services listen: over TLS by files that are replaced, behind proxies, and under their own names; and how the
package's clients reach them."""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.websockets import auto as websockets

from slipway_client.transport.exchange import TLS, NoAnswer, get
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api
from slipway_common.base.clock import utc_now
from slipway_common.base.tls import client_context
from slipway_common.web import beside, connections
from slipway_common.web.certificates import find_problems
from slipway_common.web.connections import PIPELINED_MAX, TimedProtocol
from slipway_common.web.listening import ForHost, ListenerSettings, divided, server_options
from slipway_local.servers.ports import free_ports
from tests.support.authority import Authority
from tests.support.harness import until

LARGE_BYTES: Final = 32_000_000
"""More than the system buffers for a connection."""


async def whoami(request: Request) -> JSONResponse:
    assert request.client is not None
    return JSONResponse({"client": request.client.host, "scheme": request.url.scheme})


async def received(request: Request) -> JSONResponse:
    try:
        return JSONResponse({"bytes": len(await request.body())})
    except ClientDisconnect:
        return JSONResponse({})


async def large(_: Request) -> Response:
    return Response(bytes(LARGE_BYTES))


@contextlib.asynccontextmanager
async def serving(**given: Any) -> AsyncIterator[int]:
    """Serve as services do; yields the port."""
    (port,) = free_ports(1)
    settings = ListenerSettings(port=port, **given)
    routes = [*(Route(path, whoami) for path in ("/whoami", "/readyz")), Route("/body", received, methods=["POST"])]
    routes.append(Route("/large", large))
    app = Starlette(routes=routes)
    if settings.allowed_hosts:
        app.add_middleware(ForHost, allowed=divided(settings.allowed_hosts))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, **server_options(settings)))
    listening = socket.create_server(("127.0.0.1", port))
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield port
    finally:
        server.should_exit = True
        await task


def client(authority: Authority, certificate: Path | None = None) -> httpx2.AsyncClient:
    context = client_context(ca_file=authority.ca_file, certificate_file=certificate)
    return httpx2.AsyncClient(verify=context, trust_env=False)


def presented(response: httpx2.Response) -> str:
    """Serial number of the certificate of the connection that answered."""
    certificate = response.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
    return str(certificate["serialNumber"])


async def test_certificate_is_replaced_under_load(tmp_path: Path) -> None:
    """A connection that is open stays open, and the next one gets the new certificate."""
    authority = Authority(tmp_path)
    async with serving(tls_certificate_file=authority.issue("service")) as port, client(authority) as first:
        url = f"https://localhost:{port}/whoami"
        before = await first.get(url)
        authority.issue("service")
        again = await first.get(url)
        async with client(authority) as second:
            after = await second.get(url)
        assert before.is_success
        assert again.is_success
        assert presented(before) == presented(again) != presented(after)
        assert after.headers["strict-transport-security"]
        assert after.headers["x-content-type-options"] == "nosniff"
        assert "server" not in after.headers


async def test_handshakes_in_the_event_loop_of_services(tmp_path: Path) -> None:
    """It reads the first bytes of a connection that are there at once, before a handshake can have begun."""
    authority, entered, released = Authority(tmp_path), threading.Event(), threading.Event()

    async def held(_: Request) -> Response:
        entered.set()
        released.wait()  # no connection is accepted meanwhile
        return Response()

    settings = ListenerSettings(tls_certificate_file=authority.issue("service"))
    app = Starlette(routes=[Route("/whoami", whoami), Route("/held", held)])
    config = uvicorn.Config(app, log_config=None, lifespan="off", loop="uvloop", **server_options(settings))
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        running = asyncio.create_task(asyncio.to_thread(server.run, [listening]))
        try:
            async with client(authority) as http, asyncio.timeout(30):
                holding = asyncio.create_task(http.get(f"https://localhost:{port}/held"))
                assert await asyncio.to_thread(entered.wait, 20)
                answer = await asyncio.to_thread(exchanged, port, authority, released)
                assert answer.startswith(b"HTTP/1.1 200 OK")
                assert (await holding).is_success
        finally:
            released.set()
            server.should_exit = True
            await running


def exchanged(port: int, authority: Authority, released: threading.Event) -> bytes:
    """Answer to a request over a connection whose first bytes were sent before the server was released, and the request
    with the last ones of the handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = client_context(ca_file=authority.ca_file)
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:

        def exchange(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    released.set()
                    incoming.write(connection.recv(65_536))

        exchange(tls.do_handshake)
        tls.write(b"GET /whoami HTTP/1.1\r\nHost: a\r\n\r\n")
        return bytes(exchange(lambda: tls.read(1_000)))


async def test_client_certificates(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    files = {"tls_certificate_file": authority.issue("service"), "tls_client_ca_file": authority.ca_file}
    async with serving(**files) as port:
        url = f"https://localhost:{port}/whoami"
        async with client(authority, authority.issue("machine")) as known:
            assert (await known.get(url)).is_success
        for certificate in (None, other.issue("machine", file="foreign")):
            async with client(authority, certificate) as unknown:
                with pytest.raises(httpx2.TransportError):
                    await unknown.get(url)


async def test_forwarded_headers(tmp_path: Path) -> None:
    """They are believed from named addresses alone."""
    forwarded = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
    for trusted, expected in (
        ("", {"client": "127.0.0.1", "scheme": "http"}),
        ("10.0.0.0/8", {"client": "127.0.0.1", "scheme": "http"}),
        ("10.0.0.0/8, 127.0.0.1", {"client": "203.0.113.7", "scheme": "https"}),
    ):
        async with serving(trusted_proxies=trusted) as port, httpx2.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"http://127.0.0.1:{port}/whoami", headers=forwarded)
            assert answer.json() == expected


async def test_names_of_the_service() -> None:
    async with (
        serving(allowed_hosts="slipway.example, *.fleet.example") as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):
        for host, status in (
            ("slipway.example", 200),
            ("Slipway.Example:7301", 200),
            ("a.fleet.example", 200),
            ("fleet.example", 421),
            ("127.0.0.1", 421),
            ("evil.example", 421),
        ):
            assert (await http.get("/whoami", headers={"Host": host})).status_code == status, host
        assert (await http.get("/readyz", headers={"Host": "10.0.0.3:7301"})).status_code == 200


@pytest.mark.parametrize("variable", ["SLIPWAY_CA_FILE", "SSL_CERT_FILE"])
async def test_private_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """The command and the clients of leases and workers trust a private authority once it is named, and no other."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with serving(tls_certificate_file=authority.issue("service")) as port:
        url = f"https://localhost:{port}"
        for file, trusted in ((None, False), (other.ca_file, False), (authority.ca_file, True)):
            if file is not None:
                monkeypatch.setenv(variable, str(file))
            if trusted:
                assert await asyncio.to_thread(Api({"provisioner": url}).get, dict[str, str], "provisioner", "/whoami")
                assert (await get(f"{url}/whoami")).body["scheme"] == "https"
                continue
            with pytest.raises(Failed, match="certificate verify failed"):
                await asyncio.to_thread(Api({"provisioner": url}).get, object, "provisioner", "/whoami")
            with pytest.raises(NoAnswer) as refused:
                await get(f"{url}/whoami")
            assert refused.value.problem == TLS


async def test_health_check_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("service")
    async with serving(tls_certificate_file=certificate, tls_client_ca_file=authority.ca_file) as port:
        environment = os.environ | {"SLIPWAY_PORT": str(port), "SLIPWAY_TLS_CERTIFICATE_FILE": str(certificate)}
        command = [sys.executable, "-m", "slipway_common.web.healthcheck"]
        done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_what_is_refused_at_start(tmp_path: Path) -> None:
    for given, reason in (
        ({"tls_key_file": tmp_path / "key.pem"}, "SLIPWAY_TLS_CERTIFICATE_FILE is not set"),
        ({"tls_certificate_file": tmp_path / "absent.pem"}, "absent.pem: No such file"),
        ({"trusted_proxies": "proxy.example"}, "proxy.example"),
    ):
        with pytest.raises(ValueError, match=reason):
            ListenerSettings(**given)


def test_certificates_that_end(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = {
        "A": authority.issue("late", ends=timedelta(days=15)),
        "B": authority.issue("soon", ends=timedelta(days=13)),
        "C": authority.issue("ended", begins=timedelta(days=-9), ends=timedelta(days=-1)),
        "D": tmp_path / "absent.pem",
    }
    soon, ended, absent = find_problems(files, utc_now())
    assert soon.startswith("the certificate of B ends at")
    assert ended.startswith("the certificate of C ended at")
    assert absent.startswith("D cannot be used")


async def left_open(port: int, text: bytes) -> bytes:
    """What a connection that has sent this gets until the service closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    got = b""
    try:
        while part := await reader.read(LARGE_BYTES):
            got += part
    except ConnectionResetError:  # it had not read all
        pass
    finally:
        writer.close()
    return got


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /who",
        b"GET /whoami HTTP/1.1\r\nHost: a\r\n",
        b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{",
    ],
)
async def test_half_a_request_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Nor is the beginning of one, before or after a whole request on the same connection."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.1)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.1)
    whole = b"GET /whoami HTTP/1.1\r\nHost: a\r\n\r\n"
    async with serving() as port:
        assert await left_open(port, sent) == b""
        assert (await left_open(port, whole + sent)).count(b"200 OK") == 1


async def test_a_header_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that is not, or does not end, no more is read: it would be kept in memory."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 600.0)
    async with serving() as port, asyncio.timeout(30):
        for begun in (b"GET /", b"GET / HTTP/1.1\r\nHost: a\r\nX: "):
            header = begun + b"a" * 1_000_000
            answer = await left_open(port, header)
            assert not answer or answer.startswith(b"HTTP/1.1 400 ")


async def test_a_connection_sends_few_requests_at_once() -> None:
    """Each would be kept in memory until those before it are answered."""
    request = b"GET /whoami HTTP/1.1\r\nHost: a\r\n\r\n"
    last = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with serving() as port:
        assert (await left_open(port, (PIPELINED_MAX - 1) * request + last)).count(b"200 OK") == PIPELINED_MAX
        assert (await left_open(port, 10 * PIPELINED_MAX * request + last)).count(b"200 OK") <= PIPELINED_MAX


async def test_half_an_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """That nobody reads the rest of it would keep the connection open, and its file, even once it is closed."""
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.5)
    async with serving() as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)  # it stops reading at once
        try:
            writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
            await until(lambda: bool(TimedProtocol.opened), "the connection is open")
            await until(lambda: not TimedProtocol.opened, "the connection is ended")
        finally:
            writer.transport.abort()


class Upgraded(asyncio.Protocol):
    """A protocol of WebSockets that closes its connections."""

    def __init__(self, **_: Any) -> None: ...

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def test_no_connection_has_another_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of WebSockets, which some package may bring along, would count and limit none of them."""
    monkeypatch.setattr(websockets, "AutoWebSocketsProtocol", Upgraded)
    async with serving() as port, httpx2.AsyncClient(trust_env=False) as http:
        headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
        assert (await http.get(f"http://127.0.0.1:{port}/whoami", headers=headers)).status_code == 200


async def test_half_a_hand_shake_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop would wait for a minute."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.1)
    async with serving(tls_certificate_file=Authority(tmp_path).issue("service")) as port, asyncio.timeout(30):
        assert await left_open(port, b"\x16\x03") == b""


async def test_a_body_that_comes_in_parts_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(connections, "BODY_BYTES", 1)
    head = b"POST /body HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\n{1"
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.read(1)
        writer.write(b"2}")
        assert b"200 OK" in await reader.read()
        writer.close()


async def test_connections_that_send_nothing_keep_nobody_out() -> None:
    """Above the maximum the one that has waited longest is closed."""
    async with serving(connections_max=3) as port:
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        async with httpx2.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"http://127.0.0.1:{port}/whoami")).is_success
        assert await waiting[0][0].read() == b""
        for _, writer in waiting:
            writer.close()


async def test_half_hand_shakes_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as connections, and take no files that the process needs for others."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 600.0)
    authority = Authority(tmp_path)
    async with serving(tls_certificate_file=authority.issue("service"), connections_max=3) as port:
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        async with client(authority) as http:
            assert (await http.get(f"https://localhost:{port}/whoami")).is_success
        assert await waiting[0][0].read() == b""
        for _, writer in waiting:
            writer.close()


async def test_connections_that_come_together_close_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one of them for all, by which the number would grow without a bound."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 600.0)
    async with serving(connections_max=5) as port:
        opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(50)))
        ended = [asyncio.create_task(reader.read()) for reader, _ in opened]
        await until(lambda: sum(task.done() for task in ended) == 45)
        for _, writer in opened:
            writer.close()
        await asyncio.gather(*ended)


async def test_connections_of_all_ports_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has so many files for all of them."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 600.0)
    app = Starlette(routes=[Route("/whoami", whoami)])
    settings = ListenerSettings(connections_max=3)
    async with serving(connections_max=3) as port, beside.served(app, settings, "127.0.0.1", 0) as other:
        opened = [await asyncio.open_connection("127.0.0.1", each) for each in (port, port, other, other)]
        assert await opened[0][0].read() == b""
        for _, writer in opened:
            writer.close()


async def test_a_server_beside_the_work_of_a_process(tmp_path: Path) -> None:
    """It has the certificate of the process, such as the Boskos API that of the lease-broker, and ends with it."""
    authority = Authority(tmp_path)
    settings = ListenerSettings(tls_certificate_file=authority.issue("service"))
    app = Starlette(routes=[Route("/whoami", whoami)])
    async with beside.served(app, settings, "127.0.0.1", 0) as port:
        context = client_context(ca_file=authority.ca_file)
        async with httpx2.AsyncClient(verify=context, trust_env=False) as http:
            assert (await http.get(f"https://127.0.0.1:{port}/whoami")).json()["scheme"] == "https"
            with pytest.raises(httpx2.TransportError):
                await http.get(f"http://127.0.0.1:{port}/whoami")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
