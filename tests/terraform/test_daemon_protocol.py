"""The daemon's protocol: bounds, refusals and permissions, on a scheduler that starts no process."""

import asyncio
import contextlib
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from slipway_terraform.daemon import endpoint, protocol, server
from slipway_terraform.daemon.client import DaemonRefused, DaemonScheduler, DaemonUnavailable
from slipway_terraform.daemon.endpoint import EndpointUnavailable, listening
from slipway_terraform.daemon.server import Daemon
from slipway_terraform.daemon.settings import Executable, Settings
from slipway_terraform.domain.errors import DigestMismatch, OutcomeUnknown, SchedulerClosed
from slipway_terraform.domain.specs import ProviderSpec
from slipway_terraform.scheduler.noop import NoOpScheduler
from tests.support.terraform_daemon import connected, serving, settings_for

AWS: Final = Executable(
    source="registry.example/hashicorp/aws",
    version="3.39.0",
    binary=Path("/opt/aws"),
    digest="a" * 64,
    environment={"HOME": "/nonexistent"},
    client_environment=("AWS_REGION",),
)
SECRET: Final = "hunter2-is-the-secret"
WANTED: Final = {"source": AWS.source, "version": AWS.version, "configuration": {"secret_key": SECRET}}
ACQUIRE: Final = {"providers": [WANTED], "owner": "one", "wait_seconds": 1}


def daemon_for(settings: Settings) -> Daemon:
    return Daemon(NoOpScheduler(), list, settings)


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path, provider=(AWS,), requests_max=4, connections_max=8)


@pytest.fixture
async def daemon(settings: Settings) -> AsyncIterator[Path]:
    async with serving(daemon_for(settings), settings) as path:
        yield path


def spec(**changes: Any) -> ProviderSpec:
    values: dict[str, Any] = {
        "source": AWS.source,
        "version": AWS.version,
        "binary": "/elsewhere",
        "digest": AWS.digest,
        "configuration": {},
    }
    return ProviderSpec(**values | changes)


def name(reply: dict[str, Any]) -> str:
    """Name of the error of a refused request."""
    assert "error" in reply
    return str(reply["error"]["data"]["name"])


async def test_one_lease_per_connection_and_one_invocation_per_run(daemon: Path) -> None:
    """The order of calls is kept, and a refused one changes nothing."""
    async with connected(daemon) as raw:
        for early in ("v1.begin_invocation", "v1.end_invocation", "v1.release"):
            assert name(await raw.call(early)) == "NoLease"
        assert await raw.call("v1.acquire", ACQUIRE) == {"jsonrpc": "2.0", "id": 1, "result": {"env": {}}}
        assert name(await raw.call("v1.acquire", ACQUIRE)) == "LeaseHeld"
        assert name(await raw.call("v1.end_invocation")) == "NoInvocation"
        assert await raw.call("v1.begin_invocation", {}, "a") == {"jsonrpc": "2.0", "id": "a", "result": {}}
        assert name(await raw.call("v1.release")) == "InvocationOpen"
        assert "result" in await raw.call("v1.end_invocation")
        assert "result" in await raw.call("v1.taint", {"reason": "interrupted"})
        assert "result" in await raw.call("v1.release")
        assert name(await raw.call("v1.release")) == "NoLease"
        assert "result" in await raw.call("v1.acquire", ACQUIRE)
        assert (await raw.call("v1.ls"))["result"] == {"processes": []}


@pytest.mark.parametrize(
    ("line", "code", "expected"),
    [
        (b"no json\n", protocol.PARSE_ERROR, "ParseError"),
        (b"\xff\xfe\n", protocol.PARSE_ERROR, "ParseError"),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"v1.ls","params":' + b"[" * 100_000 + b"\n",
            protocol.PARSE_ERROR,
            "ParseError",
        ),
        (b"[]\n", protocol.INVALID_REQUEST, "InvalidRequest"),
        (b'{"jsonrpc":"2.0","method":"v1.ls"}\n', protocol.INVALID_REQUEST, "InvalidRequest"),
        (b'{"jsonrpc":"1.0","id":1,"method":"v1.ls"}\n', protocol.INVALID_REQUEST, "InvalidRequest"),
        (b'{"jsonrpc":"2.0","id":1,"method":"v2.ls"}\n', protocol.METHOD_NOT_FOUND, "MethodNotFound"),
        (b'{"jsonrpc":"2.0","id":1,"method":"v1.acquire"}\n', protocol.INVALID_PARAMS, "InvalidParams"),
        (b'{"jsonrpc":"2.0","id":1,"method":"v1.taint","params":[]}\n', protocol.INVALID_PARAMS, "InvalidParams"),
        (b'{"jsonrpc":"2.0","id":1,"method":"v1.ls","params":{"x":1}}\n', protocol.INVALID_PARAMS, "InvalidParams"),
    ],
)
async def test_malformed_requests_are_answered_and_the_connection_goes_on(
    daemon: Path, line: bytes, code: int, expected: str
) -> None:
    async with connected(daemon) as raw:
        reply = await raw.send(line)
        assert (reply["error"]["code"], name(reply)) == (code, expected)
        assert "result" in await raw.call("v1.ls")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"providers": []}, "InvalidParams"),
        ({"providers": [WANTED] * 17}, "InvalidParams"),
        ({"owner": "x" * 201}, "InvalidParams"),
        ({"wait_seconds": -1}, "InvalidParams"),
        ({"wait_seconds": 1e9}, "InvalidParams"),
        ({"providers": [WANTED | {"binary": "/bin/sh"}]}, "InvalidParams"),
        ({"providers": [WANTED | {"arguments": ["-c"]}]}, "InvalidParams"),
        ({"providers": [WANTED | {"source": "registry.example/x/sh"}]}, "UnknownProvider"),
        ({"providers": [WANTED | {"version": "4.0.0"}]}, "UnknownProvider"),
        ({"providers": [WANTED | {"digest": "b" * 64}]}, "DigestMismatch"),
        ({"providers": [WANTED | {"environment": {"LD_PRELOAD": "/tmp/x.so"}}]}, "EnvironmentRefused"),
        ({"providers": [WANTED | {"environment": {"HOME": "/tmp"}}]}, "EnvironmentRefused"),
    ],
)
async def test_clients_run_what_the_settings_list_and_nothing_else(
    daemon: Path, changes: dict[str, Any], expected: str
) -> None:
    async with connected(daemon) as raw:
        assert name(await raw.call("v1.acquire", ACQUIRE | changes)) == expected
        assert "result" in await raw.call("v1.acquire", ACQUIRE)


async def test_no_secret_is_answered_or_logged(daemon: Path) -> None:
    """A configuration with every kind of mistake around it stays out of replies and logs."""
    with structlog.testing.capture_logs() as logs:
        async with connected(daemon) as raw:
            replies = [
                await raw.call("v1.acquire", ACQUIRE | {"owner": 7}),
                await raw.call("v1.acquire", ACQUIRE | {SECRET: 1}),
                await raw.call("v1.acquire", {"providers": [WANTED | {SECRET: SECRET}]}),
                await raw.call("v1.acquire", ACQUIRE | {"providers": [WANTED | {"environment": {"X": 1}}]}),
                await raw.call(SECRET, {"key": SECRET}),
                await raw.send(b'{"secret_key": "' + SECRET.encode() + b'",}\n'),
            ]
    assert all("error" in reply for reply in replies)
    assert SECRET not in json.dumps(replies) + repr(logs)


async def test_lines_have_a_bound(daemon: Path) -> None:
    """A longer line ends its connection alone."""
    async with connected(daemon) as raw, connected(daemon) as other:
        reply = await raw.send(b"x" * (protocol.MESSAGE_BYTES_MAX + 2))
        assert name(reply) == "ParseError"
        assert await raw.closed()
        assert "result" in await other.call("v1.ls")


async def test_connections_have_a_bound(daemon: Path, settings: Settings) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(settings.connections_max):
            raw = await stack.enter_async_context(connected(daemon))
            assert "result" in await raw.call("v1.ls")
        refused = await stack.enter_async_context(connected(daemon))
        assert name(await refused.line()) == "TooManyConnections"
    with pytest.raises(DaemonUnavailable, match="daemon"):
        await DaemonScheduler(daemon.with_name("other.sock")).processes()


async def test_useless_connections_are_closed(tmp_path: Path) -> None:
    """One that does nothing is closed; one with a lease stays."""
    settings = settings_for(tmp_path, provider=(AWS,), idle_connection_seconds=0.1)
    async with serving(daemon_for(settings), settings) as path, connected(path) as idle, connected(path) as held:
        assert "result" in await held.call("v1.acquire", ACQUIRE)
        assert await idle.closed()
        assert "result" in await held.call("v1.release")


async def test_the_socket_is_private(daemon: Path) -> None:
    assert stat.S_IMODE(daemon.stat().st_mode) == 0o600
    assert stat.S_IMODE(daemon.parent.stat().st_mode) == 0o700


async def test_other_users_are_refused(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says who has connected: the same user or root."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        assert endpoint.peer_uid(mine) == os.geteuid()
    monkeypatch.setattr(server, "peer_uid", lambda connection: os.geteuid() + 1)
    async with connected(daemon) as raw:
        assert name(await raw.line()) == "PermissionDenied"


async def test_a_stale_socket_is_replaced_and_a_second_daemon_refused(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    settings.socket.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(settings.socket))  # closed without being removed, as by kill -9
    async with serving(daemon_for(settings), settings) as path, connected(path) as raw:
        with pytest.raises(EndpointUnavailable, match="another daemon serves"), listening(path):
            pass
        assert "result" in await raw.call("v1.ls")
    assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "mode", "link"])
def test_unsafe_folders_are_refused(tmp_path: Path, kind: str) -> None:
    """Nothing of others is removed or used."""
    folder = tmp_path / "daemon"
    folder.mkdir(mode=0o700)
    path = folder / "daemon.sock"
    if kind == "file":
        path.write_text("precious")
    elif kind == "mode":
        folder.chmod(0o750)
    else:
        (tmp_path / "link").symlink_to(folder)
        path = tmp_path / "link" / "daemon.sock"
    with pytest.raises(EndpointUnavailable) as refused, listening(path):
        pass
    assert "chmod" not in str(refused.value)  # /tmp would serve nobody else
    assert kind != "file" or path.read_text() == "precious"


async def test_the_client_is_a_scheduler(daemon: Path) -> None:
    scheduler = DaemonScheduler(daemon)
    deadline = asyncio.get_running_loop().time() + 5
    async with await scheduler.acquire([spec()], owner="one", deadline=deadline) as lease:
        async with lease.invocation():
            assert lease.env == {}
        lease.taint("interrupted")
    with pytest.raises(DigestMismatch, match="pin"):
        await scheduler.acquire([spec(digest="b" * 64)], owner="one", deadline=deadline)
    with pytest.raises(DaemonRefused, match="not in the daemon's settings"):
        await scheduler.acquire([spec(version="4.0.0")], owner="one", deadline=deadline)
    assert await scheduler.processes() == []
    await scheduler.aclose(0)
    with pytest.raises(SchedulerClosed):
        await scheduler.acquire([spec()], owner="one", deadline=deadline)


async def test_a_lost_daemon_leaves_the_outcome_of_a_run_unknown(settings: Settings) -> None:
    deadline = asyncio.get_running_loop().time() + 5
    async with contextlib.AsyncExitStack() as stack:
        running = contextlib.AsyncExitStack()
        path = await running.enter_async_context(serving(daemon_for(settings), settings))
        lease = await stack.enter_async_context(
            await DaemonScheduler(path).acquire([spec()], owner="one", deadline=deadline)
        )

        async def run_that_fails() -> None:
            async with lease.invocation():
                await running.aclose()
                raise RuntimeError("the CLI has failed")

        with pytest.raises(OutcomeUnknown, match="daemon"):
            await run_that_fails()
        with pytest.raises(DaemonUnavailable):
            async with lease.invocation():
                pass
