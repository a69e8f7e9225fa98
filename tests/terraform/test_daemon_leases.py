"""Leases of the daemon on running plugins: what ends them, and what is left."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from typer.testing import CliRunner, Result

from slipway_client.cli.main import app
from slipway_common.base.ids import hash_secret
from slipway_local.terraform.ledger import SOURCE, VERSION
from slipway_terraform.daemon.client import DaemonScheduler, DaemonUnavailable
from slipway_terraform.domain.errors import OutcomeUnknown, ProviderCrashed, QueueTimeout
from tests.support.folders import temporary_folder
from tests.support.harness import until
from tests.support.terraform import installed
from tests.support.terraform_daemon import DaemonProcess, Plugin, connected, has_ended, plugin_pid, running
from tests.terraform import daemon as played

ONE: Final = {"max_processes": 1, "max_concurrency": 1}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for sockets."""
    installed()
    with temporary_folder("slipway-daemon-") as found:
        yield found


@pytest.fixture
def plugin(folder: Path) -> Plugin:
    return Plugin(folder)


@pytest.fixture
async def daemon(folder: Path, plugin: Plugin) -> AsyncIterator[DaemonProcess]:
    async with serve(folder, plugin, **ONE) as process:
        yield process


def serve(folder: Path, plugin: Plugin, **policy: float) -> DaemonProcess:
    home = folder / "daemon"
    return DaemonProcess(home, plugin.settings(home / "run" / "daemon.sock", "shared", **policy))


def acquisition(plugin: Plugin, region: str = "east", wait_seconds: float = 15.0) -> dict[str, Any]:
    spec = plugin.spec(region)
    provider = {"source": spec.source, "version": spec.version, "configuration": spec.configuration}
    return {"providers": [provider], "owner": region, "wait_seconds": wait_seconds}


async def test_processes_share_and_survive_killed_clients(folder: Path, plugin: Plugin) -> None:
    """The scenario of `make terraform-daemon`, without the example for upjet."""
    async with serve(folder, plugin, **played.POLICY) as process:
        claims = await played.share(process, plugin, folder)
    assert [claim for claim, holds in claims.items() if not holds] == []


async def test_a_place_goes_to_the_first_caller_that_still_waits(daemon: DaemonProcess, plugin: Plugin) -> None:
    """A caller that goes away has no place in the queue; one whose time is over gets an error."""
    async with connected(daemon.socket) as holder, connected(daemon.socket) as gone:
        assert "result" in await holder.call("v1.acquire", acquisition(plugin))
        impatient = await gone.call("v1.acquire", acquisition(plugin, wait_seconds=0.05))
        assert impatient["error"]["data"] == {"name": QueueTimeout.__name__, "retryable": True, "reason": ""}
        gone.write("v1.acquire", acquisition(plugin))
        gone.writer.close()
        async with connected(daemon.socket) as next_one:
            next_one.write("v1.acquire", acquisition(plugin, "west"))
            holder.writer.close()
            assert "result" in await next_one.line()


async def test_a_crash_is_the_clients_error(daemon: DaemonProcess, plugin: Plugin) -> None:
    """In a run that failed its outcome is unknown; before a run nothing has happened."""
    scheduler = DaemonScheduler(daemon.socket)
    deadline = asyncio.get_running_loop().time() + 60
    async with await scheduler.acquire([plugin.spec()], owner="one", deadline=deadline) as lease:

        async def run_that_fails() -> None:
            async with lease.invocation():
                os.kill(plugin_pid(lease.env), signal.SIGKILL)
                await until(lambda: has_ended(plugin_pid(lease.env)), "the plugin is gone")
                raise RuntimeError("the CLI has failed")

        with pytest.raises(OutcomeUnknown):
            await run_that_fails()
        with pytest.raises(ProviderCrashed) as crashed:
            async with lease.invocation():
                pass
    assert crashed.value.retryable
    async with await scheduler.acquire([plugin.spec()], owner="one", deadline=deadline) as lease, lease.invocation():
        assert plugin_pid(lease.env) in running(plugin.binary)


async def test_a_cancelled_run_stays_cancelled(daemon: DaemonProcess, plugin: Plugin) -> None:
    """Also if its plugin has crashed."""
    scheduler = DaemonScheduler(daemon.socket)
    deadline = asyncio.get_running_loop().time() + 60
    async with await scheduler.acquire([plugin.spec()], owner="one", deadline=deadline) as lease:

        async def run_that_is_cancelled() -> None:
            async with lease.invocation():
                os.kill(plugin_pid(lease.env), signal.SIGKILL)
                await until(lambda: has_ended(plugin_pid(lease.env)), "the plugin is gone")
                raise asyncio.CancelledError

        (error,) = await asyncio.gather(run_that_is_cancelled(), return_exceptions=True)
        assert isinstance(error, asyncio.CancelledError)


async def test_a_cancelled_wait_leaves_the_queue(daemon: DaemonProcess, plugin: Plugin) -> None:
    scheduler = DaemonScheduler(daemon.socket)
    deadline = asyncio.get_running_loop().time() + 60
    async with await scheduler.acquire([plugin.spec()], owner="one", deadline=deadline):
        waiting = asyncio.create_task(scheduler.acquire([plugin.spec()], owner="two", deadline=deadline))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await waiting
    async with await scheduler.acquire([plugin.spec()], owner="three", deadline=deadline) as lease:
        assert plugin_pid(lease.env) in running(plugin.binary)


async def test_a_stopped_daemon_lets_leases_end(daemon: DaemonProcess, plugin: Plugin) -> None:
    """It takes no new ones meanwhile, and leaves neither plugins nor its socket."""
    async with connected(daemon.socket) as holder, connected(daemon.socket) as other:
        assert "result" in await holder.call("v1.acquire", acquisition(plugin))
        daemon.child.signal(signal.SIGTERM)
        await until(lambda: not daemon.socket.exists(), "the daemon closes its socket")
        refused = await other.call("v1.acquire", acquisition(plugin))
        assert refused["error"]["data"]["name"] == "SchedulerClosed"
        assert "result" in await holder.call("v1.begin_invocation")
        assert running(plugin.binary)
        assert "result" in await holder.call("v1.end_invocation")
        assert "result" in await holder.call("v1.release")
        assert await daemon.child.wait() == 0
    assert running(plugin.binary) == []
    with pytest.raises(DaemonUnavailable):
        await DaemonScheduler(daemon.socket).processes()


async def test_a_killed_daemon_takes_its_plugins_with_it(daemon: DaemonProcess, plugin: Plugin) -> None:
    """The next one starts in its place."""
    async with connected(daemon.socket) as holder:
        assert "result" in await holder.call("v1.acquire", acquisition(plugin))
        await daemon.child.kill()
        assert await holder.closed()
    await until(lambda: not running(plugin.binary), "the plugin ends with the daemon")
    async with daemon, connected(daemon.socket) as again:
        assert "result" in await again.call("v1.acquire", acquisition(plugin))


async def test_a_workspace_scheduler_keeps_owners_apart(folder: Path, plugin: Plugin) -> None:
    home = folder / "daemon"
    settings = plugin.settings(home / "run" / "daemon.sock", "workspace", **played.POLICY)
    async with DaemonProcess(home, settings) as daemon, connected(daemon.socket) as a, connected(daemon.socket) as b:
        for owner, connection in (("a", a), ("b", b)):
            assert "result" in await connection.call("v1.acquire", acquisition(plugin) | {"owner": owner})
        assert len(running(plugin.binary)) == 2
        for connection in (a, b):
            assert "result" in await connection.call("v1.release")
        await until(lambda: not running(plugin.binary), "a workspace's plugin ends with its lease")


async def test_the_command_lists_processes(daemon: DaemonProcess, plugin: Plugin) -> None:
    """A table for people, everything for programs, and a word where there is nothing or no daemon."""

    def slipway(*options: str, socket: Path = daemon.socket) -> Result:
        return CliRunner().invoke(app, ["plugins", "ls", "--socket", str(socket), *options])

    assert slipway().stdout == "no plugin processes\n"
    async with connected(daemon.socket) as holder:
        assert "result" in await holder.call("v1.acquire", acquisition(plugin))
        assert "result" in await holder.call("v1.begin_invocation")
        heading, line = slipway().stdout.splitlines()
        (row,) = json.loads(slipway("-o", "json").stdout)
        (pid,) = running(plugin.binary)
    assert heading.split("  ")[0] == "handle"
    assert line.split()[:6] == [row["handle"], SOURCE, VERSION, str(pid), "ready", "1"]
    assert (row["pid"], row["in_use"], row["invocations"], row["tenant"], row["reason"]) == (pid, 1, 1, "", None)
    nobody = slipway(socket=daemon.socket.with_name("other.sock"))
    assert (nobody.exit_code, nobody.stdout) == (1, "")
    assert "no daemon at" in nobody.stderr
    assert "slipway-terraform serve" in nobody.stderr


async def test_metrics_are_served_and_logs_have_no_secret(folder: Path, plugin: Plugin) -> None:
    """Events of the scheduler are in the daemon's log, a line of JSON each."""
    home, secret = folder / "daemon", "hunter2-of-the-daemon"
    tokens = folder / "metrics_tokens"
    tokens.write_text(f"{hash_secret('first')}\n")
    served = f'metrics_port = 0\nmetrics_tokens_file = "{tokens}"\n'
    settings = served + plugin.settings(home / "run" / "daemon.sock", "shared", idle_seconds=0.0)
    async with DaemonProcess(home, settings) as daemon, connected(daemon.socket) as client:
        wanted = acquisition(plugin)
        wanted["providers"][0]["configuration"] = plugin.configuration() | {"secret": secret}
        assert "result" in await client.call("v1.acquire", wanted)
        assert "result" in await client.call("v1.begin_invocation")
        (port,) = [event["port"] for event in logged(home) if event["event"] == "terraform_metrics_served"]
        async with httpx2.AsyncClient(trust_env=False, headers={"Authorization": "Bearer first"}) as http:
            metrics = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
        assert 'slipway_terraform_processes{state="ready"} 1.0' in metrics
        assert "slipway_terraform_invocations_total 1.0" in metrics
        assert "slipway_terraform_thrash 0.0" in metrics
        assert "result" in await client.call("v1.taint", {"reason": secret})
    events = [event["event"] for event in logged(home)]
    assert [event for event in events if " retired: tainted" in event]
    assert events[-1] == "terraform_daemon_stopped"
    assert secret not in (home / "daemon.log").read_text() + metrics


async def test_an_unusable_plugin_is_logged_at_the_start(folder: Path, plugin: Plugin) -> None:
    """Before anybody asks for it; the daemon serves, since it may list others."""
    home = folder / "daemon"
    settings = plugin.settings(home / "run" / "daemon.sock", "shared").replace(plugin.spec().digest, "0" * 64)
    async with DaemonProcess(home, settings) as daemon, connected(daemon.socket) as client:
        await until(lambda: any("unusable" in event["event"] for event in logged(home)), "the problem is logged")
        (found,) = [event for event in logged(home) if event["event"] == "terraform_plugin_unusable"]
        assert f"not {'0' * 64}; install the release that was approved" in found["error"]
        assert "result" in await client.call("v1.ls")


def logged(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "daemon.log").read_text().splitlines()]
