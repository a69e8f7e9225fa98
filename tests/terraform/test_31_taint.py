"""Check 31: an interrupted run taints its processes: they serve their other leases, take no new ones, and end."""

import asyncio
from pathlib import Path

import pytest

from tests.support.plugins import plugin, plugins_in, shared, soon, until


async def test_cancelled_run(sockets: Path) -> None:
    async with shared(sockets) as scheduler:
        running = asyncio.Event()

        async def run() -> None:
            async with await scheduler.acquire([plugin()], owner="one", deadline=soon()) as lease, lease.invocation():
                running.set()
                await asyncio.Event().wait()

        other = await scheduler.acquire([plugin()], owner="two", deadline=soon())
        task = asyncio.create_task(run())
        await running.wait()
        (tainted,) = plugins_in(sockets)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [(each.state, each.reason) for each in scheduler.processes()] == [("draining", "tainted")]
        async with other.invocation():
            assert plugins_in(sockets) == [tainted]
        async with await scheduler.acquire([plugin()], owner="three", deadline=soon()) as newcomer:
            assert newcomer.env != other.env
            other.release()
            await until(lambda: tainted not in plugins_in(sockets))


async def test_explicit_taint(sockets: Path) -> None:
    async with shared(sockets) as scheduler:
        async with await scheduler.acquire([plugin()], owner="one", deadline=soon()) as lease:
            pids = plugins_in(sockets)
            lease.taint("SIGINT sent to the CLI")
            lease.taint("twice")
            async with lease.invocation():  # such as a look at what is left
                assert plugins_in(sockets) == pids
        lease.taint("after its end")
        await until(lambda: plugins_in(sockets) == [])


async def test_failed_runs_taint_nothing(sockets: Path) -> None:
    async with shared(sockets) as scheduler:
        async with await scheduler.acquire([plugin()], owner="one", deadline=soon()) as lease:
            with pytest.raises(ValueError, match="no such image"):
                async with lease.invocation():
                    raise ValueError("no such image")
        assert [each.reason for each in scheduler.processes()] == [None]
