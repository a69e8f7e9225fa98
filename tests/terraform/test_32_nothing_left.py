"""Check 32: no process, zombie, socket or secret is left: after a close, by force, and after a kill of ours."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from slipway_provisioner.main import _terraform
from slipway_provisioner.settings import Settings
from slipway_terraform.domain.errors import (
    HandshakeTimeout,
    ProviderCrashed,
    ProviderStartError,
    QueueTimeout,
    SchedulerClosed,
)
from slipway_terraform.domain.policy import Policy
from slipway_terraform.plugins.folders import NAME, sweep
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.plugins import assert_nothing_left, plugin, plugins_in, shared, soon, until
from tests.support.provisioner import KEY

OWNER = """
import asyncio, json, sys
from pathlib import Path
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.plugins import plugin, soon
from tests.support.provisioner import KEY

async def main():
    scheduler = SharedScheduler(PluginRunner(Path(sys.argv[1])))
    for faults in json.loads(sys.argv[2]):
        await scheduler.acquire([plugin(*faults)], owner="one", deadline=soon())
    print("ready", flush=True)
    await scheduler.acquire([plugin("silent")], owner="one", deadline=soon(60))

asyncio.run(main())
"""


@pytest.mark.parametrize("drain_seconds", [0, 0.2])
async def test_close_by_force(sockets: Path, drain_seconds: float) -> None:
    """A lease that does not end in time loses its process, also one that ignores everything."""
    scheduler = SharedScheduler(PluginRunner(sockets))
    lease = await scheduler.acquire([plugin("child")], owner="one", deadline=soon())
    await scheduler.aclose(drain_seconds)
    assert_nothing_left(sockets)
    with pytest.raises(ProviderCrashed):
        async with lease.invocation():
            pass
    lease.release()
    with pytest.raises(SchedulerClosed):
        await scheduler.acquire([plugin()], owner="one", deadline=soon())


@pytest.mark.parametrize("turns", range(4))
async def test_close_at_once(sockets: Path, turns: int) -> None:
    """Also before the task of a start has begun, and in the middle of it."""
    scheduler = SharedScheduler(PluginRunner(sockets))
    caller = asyncio.create_task(scheduler.acquire([plugin("late=5")], owner="one", deadline=soon()))
    for _ in range(turns):
        await asyncio.sleep(0)
    closing = asyncio.create_task(scheduler.aclose(0))
    await asyncio.wait({closing}, timeout=20)
    assert closing.done()
    with pytest.raises(SchedulerClosed):
        await caller
    assert_nothing_left(sockets)


async def test_removed_folder(sockets: Path) -> None:
    """The folder of the sockets was removed, as cleaners of temporary files do: the next start makes another."""
    scheduler = SharedScheduler(PluginRunner(sockets))
    (await scheduler.acquire([plugin()], owner="one", deadline=soon())).release()
    for folder in sockets.iterdir():
        shutil.rmtree(folder)
    (await scheduler.acquire([plugin("protocol=6")], owner="one", deadline=soon())).release()
    assert len(plugins_in(sockets)) == 2
    await scheduler.aclose(0)
    assert_nothing_left(sockets)


async def test_no_guard(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started where the guard cannot be."""
    wanted = plugin()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    scheduler = SharedScheduler(PluginRunner(sockets))
    with pytest.raises(ProviderStartError, match="No such file or directory; free some space, or set another folder"):
        await scheduler.acquire([wanted], owner="one", deadline=soon())
    await scheduler.aclose(0)
    assert_nothing_left(sockets)


async def test_plugin_that_ignores_signals(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shutdown, then SIGTERM, then SIGKILL."""
    monkeypatch.setattr("slipway_terraform.plugins.runner.TERMINATE_SECONDS", 0.5)
    scheduler = SharedScheduler(PluginRunner(sockets))
    async with await scheduler.acquire([plugin("deaf", "child")], owner="one", deadline=soon()):
        pass
    await scheduler.aclose(5)
    assert_nothing_left(sockets)


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that ends no process of a plugin, as if each were in uninterruptible sleep; the guard's ends them."""
    kill_group = os.killpg

    def killpg(group: int, signum: int) -> None:
        if signum != signal.SIGKILL:
            kill_group(group, signum)

    monkeypatch.setattr("os.killpg", killpg)
    for name in ("SHUTDOWN_SECONDS", "TERMINATE_SECONDS"):
        monkeypatch.setattr(f"slipway_terraform.plugins.runner.{name}", 0.2)
    monkeypatch.setattr("slipway_common.base.process.programs.KILL_SECONDS", 0.2)


@pytest.mark.usefixtures("unkillable")
async def test_a_process_that_the_kernel_does_not_end(sockets: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It keeps its place, and a close reports it and does not wait for it."""
    scheduler = SharedScheduler(PluginRunner(sockets), Policy(max_processes=1))
    async with await scheduler.acquire([plugin("deaf")], owner="one", deadline=soon()) as lease:
        (pid,) = plugins_in(sockets)
        lease.taint("hangs")
    with pytest.raises(QueueTimeout, match="1 of 1 processes exist"):
        await scheduler.acquire([plugin()], owner="one", deadline=soon(3))
    assert plugins_in(sockets) == [pid]
    assert f"process {pid} of " in caplog.text
    assert "did not end after SIGKILL; check its state" in caplog.text
    closing = asyncio.create_task(scheduler.aclose(0))
    await asyncio.wait({closing}, timeout=10)
    assert closing.done()
    await closing
    await until(lambda: plugins_in(sockets) == [])


@pytest.mark.usefixtures("unkillable")
async def test_a_start_that_the_kernel_does_not_end(sockets: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The caller is refused, and nobody waits for ever."""
    scheduler = SharedScheduler(PluginRunner(sockets, start_seconds=2))
    caller = asyncio.create_task(scheduler.acquire([plugin("silent", "deaf")], owner="one", deadline=soon()))
    await asyncio.wait({caller}, timeout=10)
    assert caller.done()
    assert isinstance(caller.exception(), HandshakeTimeout)
    assert "did not end after SIGKILL" in caplog.text
    await scheduler.aclose(0)
    await until(lambda: plugins_in(sockets) == [])


def owner(sockets: Path, *faults: Sequence[str]) -> subprocess.Popen[str]:
    """A process with a scheduler and a plugin of each of these faults, and one that is starting."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    argv = [sys.executable, "-c", OWNER, str(sockets), json.dumps(faults)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


async def test_parent_killed(sockets: Path) -> None:
    """Also the plugin that is starting, the one that ignores every signal, and the descendant of another."""
    process = owner(sockets, ["child"], ["deaf", "protocol=6"])
    await until(lambda: len(plugins_in(sockets)) == 4)
    kill(process)
    await until(lambda: plugins_in(sockets) == [] and list(sockets.iterdir()) == [])


def guard_of(process: subprocess.Popen[str]) -> psutil.Process | None:
    """The guard of an owner; None while it has none."""
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if "guard.py" in " ".join(child.cmdline()):
                return child
    return None


async def test_a_killed_guard_has_a_successor(sockets: Path) -> None:
    """It knows the plugins that were started before it."""
    process = owner(sockets, ["child"])
    await until(lambda: len(plugins_in(sockets)) == 3)
    guard = guard_of(process)
    assert guard is not None
    guard.kill()
    await until(lambda: guard_of(process) not in (None, guard))
    kill(process)
    await until(lambda: plugins_in(sockets) == [] and list(sockets.iterdir()) == [])


async def test_guard_killed_as_well(sockets: Path) -> None:
    """Without the guard the parent-death signal still ends every plugin, though not its descendants or folder."""
    process = owner(sockets, ["deaf", "protocol=6"])
    await until(lambda: len(plugins_in(sockets)) == 2)
    guard = guard_of(process)
    assert guard is not None
    guard.suspend()  # a killed one would have a successor
    kill(process)
    try:
        await until(lambda: plugins_in(sockets) == [])
    finally:
        guard.kill()
        for left in plugins_in(sockets):
            os.kill(left, signal.SIGKILL)
    (orphan,) = sockets.iterdir()
    async with shared(sockets) as scheduler:  # the next owner removes what is left, and nothing of those who live
        (await scheduler.acquire([plugin()], owner="one", deadline=soon())).release()
        (own,) = sockets.iterdir()
        assert own != orphan
        async with shared(sockets, is_alone=False) as other:
            (await other.acquire([plugin()], owner="one", deadline=soon())).release()
            assert own in sockets.iterdir()
            assert len(plugins_in(sockets)) == 2


def test_a_sweep_leaves_the_runs_of_a_provisioner(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their default folder is beside the folders of sockets, and unlocked while no provisioner runs."""
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    settings = Settings(database_url="", kafka="", registration_keys=KEY)
    runs = Path(_terraform(settings).folder)
    runs.mkdir()
    stale = sockets / f"{NAME}12345678"
    stale.mkdir()
    sweep(sockets)
    assert [runs] == list(sockets.iterdir())


async def test_no_secret_in_output(sockets: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Values of the configuration are in no command line, no log and no error."""
    secret = "hunter2-and-more"
    spec = plugin("say=key hunter2-and-more is wrong", "exit=1", configuration={"nested": [{"key": secret}]})
    scheduler = SharedScheduler(PluginRunner(sockets))
    with caplog.at_level("DEBUG"), pytest.raises(Exception, match="key … is wrong") as caught:
        await scheduler.acquire([spec], owner="one", deadline=soon())
    await scheduler.aclose(0)
    assert secret not in str(caught.value) + repr(caught.value) + repr(spec)
    # The test plugin has the text in its own arguments, which are named in no log.
    assert secret not in caplog.text
