"""Check 15: the reservation is made with the lease, before the task that uses it begins."""

import asyncio
import random
from pathlib import Path

from slipway_terraform.domain.policy import Policy
from slipway_terraform.scheduler.lease import SharedLease
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import World, spec
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


def test_a_cancelled_caller_keeps_no_slot() -> None:
    """Cancelled while it waits, or between the grant and its next turn: the slot goes to the next caller."""

    async def work() -> None:
        world = World(random.Random(1))
        scheduler = SharedScheduler(world, Policy(max_concurrency=1, idle_seconds=1e6))
        first = await scheduler.acquire([spec("a")], owner="one", deadline=100.0)
        waiting = [
            asyncio.create_task(scheduler.acquire([spec("a")], owner=f"{number}", deadline=100.0))
            for number in range(3)
        ]
        await asyncio.sleep(1)
        waiting[0].cancel()
        first.release()  # grants the second one
        waiting[1].cancel()
        (lease,) = await asyncio.gather(waiting[2], return_exceptions=True)
        assert isinstance(lease, SharedLease)
        assert [task.cancelled() for task in waiting] == [True, True, False]
        assert [each.in_use for each in scheduler.processes()] == [1]
        lease.release()
        lease.release()
        assert [each.in_use for each in scheduler.processes()] == [0]
        await scheduler.aclose(0)
        assert world.broken == []

    virtual_time.run(work())
