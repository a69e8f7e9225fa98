"""Check 23: a start that takes too long, or is cancelled, leaves no process, no descendant, no folder."""

import asyncio
from pathlib import Path

import pytest

from slipway_terraform.domain.errors import HandshakeTimeout
from slipway_terraform.plugins.runner import PluginRunner
from tests.support.plugins import assert_nothing_left, plugin, plugins_in, runs, soon, until
from tests.support.plugins import shared as shared_scheduler


async def test_time_out(sockets: Path) -> None:
    async with shared_scheduler(sockets, start_seconds=2) as scheduler:
        with pytest.raises(HandshakeTimeout) as caught:
            await scheduler.acquire([plugin("deaf", "child", "silent")], owner="one", deadline=soon())
        assert not runs(int(caught.value.stderr))
        (folder,) = sockets.iterdir()
        assert_nothing_left(folder)


async def test_cancellation_at_every_step(sockets: Path) -> None:
    """Whenever it is cancelled: before, during and after the spawn, or twice."""
    runner = PluginRunner(sockets)
    for seconds in (0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.3):
        start = asyncio.create_task(runner.start(plugin("deaf", "child", "silent")))
        await asyncio.sleep(seconds)
        start.cancel()
        await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert plugins_in(sockets) == []
    await runner.aclose()
    assert_nothing_left(sockets)


async def test_cancelled_callers_leave_the_start_to_others(sockets: Path) -> None:
    """A start goes on for callers who come later; its process ends when it stays unused."""
    async with shared_scheduler(sockets) as scheduler:
        first = asyncio.create_task(scheduler.acquire([plugin("late=0.3")], owner="one", deadline=soon()))
        await until(lambda: plugins_in(sockets) != [])
        first.cancel()
        second = await scheduler.acquire([plugin("late=0.3")], owner="two", deadline=soon())
        assert first.cancelled()
        assert len(plugins_in(sockets)) == 1
        assert [each.in_use for each in scheduler.processes()] == [1]
        second.release()
