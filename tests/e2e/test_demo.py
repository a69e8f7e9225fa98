"""`make demo` as a person runs it: it can be interrupted at any time and leaves nothing."""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

import psutil

from slipway_common.clock import monotonic_seconds

ROOT = Path(__file__).parents[2]


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def sockets(folder: Path) -> set[Path]:
    """Sockets of servers, at the depths where they may stand."""
    return {path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth) if path.is_socket()}


async def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while servers start, and in the middle of the run: no process, socket or data folder is left."""
    for moment in ("starting", "running"):
        await interrupt(moment, tmp_path)


async def interrupt(moment: str, tmp_path: Path) -> None:
    before = sockets(Path(tempfile.gettempdir()))
    env = os.environ | {"DURATION": "0", "SEED": "3", "TMPDIR": str(tmp_path)}
    demo = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "slipway_local.demo", cwd=ROOT, env=env, start_new_session=True,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert demo.stdout is not None
    try:
        async with asyncio.timeout(60):
            async for line in demo.stdout:
                if moment == "starting" and b"starting" in line:
                    break
                if moment == "running" and b" waiting " in line:
                    break
        deadline = monotonic_seconds() + 10
        while not (started := descendants(demo.pid)) and monotonic_seconds() < deadline:
            await asyncio.sleep(0.01)
        demo.send_signal(signal.SIGINT)
        rest = await asyncio.wait_for(demo.stdout.read(), 30)
        assert await asyncio.wait_for(demo.wait(), 5) == 130, rest.decode()
    finally:
        if demo.returncode is None:
            os.killpg(demo.pid, signal.SIGKILL)
    deadline = monotonic_seconds() + 10
    while (left := [p for p in started if p.is_running()]) and monotonic_seconds() < deadline:
        await asyncio.sleep(0.1)
    assert left == []
    assert sockets(tmp_path) == set()
    assert sockets(Path(tempfile.gettempdir())) <= before
    assert [path.name for path in tmp_path.glob("slipway-*")] == []
