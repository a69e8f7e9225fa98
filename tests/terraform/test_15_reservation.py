"""Check 15: the reservation is made with the lease, before the task that uses it begins."""

import asyncio
from pathlib import Path

from slipway_terraform.domain.policy import Policy
from slipway_terraform.scheduler.lease import SharedLease
from tests.support.plugins import plugin, plugins_in, shared, soon


async def test_a_task_gets_a_live_process(sockets: Path) -> None:
    """Between lease and task the process is due for replacement in every way, and stays."""
    policy = Policy(ttl_invocations=1, idle_seconds=0, max_processes=1)
    async with shared(sockets, policy) as scheduler:
        lease = await scheduler.acquire([plugin()], owner="one", deadline=soon())
        pids = plugins_in(sockets)
        begin = asyncio.Event()

        async def work(lease: SharedLease) -> list[int]:
            async with lease:
                await begin.wait()
                async with lease.invocation():
                    return plugins_in(sockets)

        task = asyncio.create_task(work(lease))
        lease.taint("test")
        another = asyncio.create_task(scheduler.acquire([plugin("protocol=6")], owner="two", deadline=soon()))
        await asyncio.sleep(0.2)  # time in which a process could be taken away
        assert not another.done()
        begin.set()
        assert await task == pids
        (await another).release()
