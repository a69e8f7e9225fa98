"""`make demo` as a user runs it: it can be interrupted at any time and leaves nothing behind."""

import asyncio
import contextlib
import glob
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import psutil

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.process.identities import INSTANCE_TAG
from tests.support.harness import PATIENCE_SECONDS, until
from tests.support.linux import needs_linux

ROOT = Path(__file__).parents[2]
START_SECONDS = 180.0  # 15 on an idle machine


def descendants(pid: int) -> list[psutil.Process]:
    """All descendants of a process; none if it is gone."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def sockets(folder: Path) -> set[Path]:
    """Server sockets in a folder, up to three levels deep. `Path.glob` raises if a folder is deleted meanwhile."""
    found = (Path(name) for depth in ("*", "*/*", "*/*/*") for name in glob.iglob(f"{folder}/{depth}"))
    return {path for path in found if path.is_socket()}


def is_orphan(path: Path) -> bool:
    """True if no process listens on a socket any more. Servers of other users may start and end meanwhile."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except FileNotFoundError:
            return False
        except ConnectionRefusedError:
            return True
    return False


async def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C during startup and during the run leaves no process, socket or data folder."""
    for moment in ("starting", "running"):
        await interrupt(moment, tmp_path)


async def interrupt(moment: str, tmp_path: Path) -> None:
    """Start a demo, interrupt it at a moment, and check that nothing is left."""
    before = sockets(Path(tempfile.gettempdir()))
    env = os.environ | {"DURATION": "0", "SEED": "3", "TMPDIR": str(tmp_path)}
    demo = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "slipway_local.demo",
        cwd=ROOT,
        env=env,
        start_new_session=True,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert demo.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            async for line in demo.stdout:
                if moment == "starting" and b"Starting" in line:
                    break
                if moment == "running" and b" pending " in line:
                    break
        deadline = monotonic_seconds() + PATIENCE_SECONDS
        while not (started := descendants(demo.pid)) and monotonic_seconds() < deadline:
            await asyncio.sleep(0.01)
        demo.send_signal(signal.SIGINT)
        rest = await asyncio.wait_for(demo.stdout.read(), PATIENCE_SECONDS)
        assert await asyncio.wait_for(demo.wait(), PATIENCE_SECONDS) == 130, rest.decode()
    finally:
        if demo.returncode is None:
            os.killpg(demo.pid, signal.SIGKILL)
    deadline = monotonic_seconds() + PATIENCE_SECONDS
    while (left := [p for p in started if p.is_running()]) and monotonic_seconds() < deadline:
        await asyncio.sleep(0.1)
    assert left == []
    assert sockets(tmp_path) == set()
    assert [path for path in sockets(Path(tempfile.gettempdir())) - before if is_orphan(path)] == []
    assert [path.name for path in tmp_path.glob("slipway-*")] == []


@needs_linux
async def test_a_killed_demo_leaves_no_agent(tmp_path: Path) -> None:
    """After SIGKILL of the demo, its agents end too, although they run in sessions of their own."""
    env = os.environ | {"DURATION": "0", "PROVIDER": "process", "PLAIN": "1", "TMPDIR": str(tmp_path)}
    log = tmp_path / "demo.log"
    with log.open("wb") as output:
        demo = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "slipway_local.demo",
            cwd=ROOT,
            env=env,
            start_new_session=True,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        await until(
            lambda: demo.returncode is not None or len(agents(tmp_path)) >= 3, "agents run", seconds=START_SECONDS
        )
        assert demo.returncode is None, log.read_text()
        assert os.getsid(demo.pid) not in [*filter(None, map(session, agents(tmp_path)))]
    finally:
        if demo.returncode is None:
            os.killpg(demo.pid, signal.SIGKILL)
        await demo.wait()
    await until(lambda: not agents(tmp_path), "no agent is left")
    await until(lambda: not [*tmp_path.glob("slipway-*")], "no folder is left")


def session(pid: int) -> int | None:
    """Session of a process; None if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid)
    return None


def agents(folder: Path) -> list[int]:
    """Process IDs of agents, and of their children, whose folder for temporary files is `folder`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if INSTANCE_TAG in environment and environment.get("TMPDIR") == str(folder):
                found.append(process.pid)
    return found
