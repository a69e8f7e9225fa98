"""Check 20: holders that take hours delay no newcomers, though they keep an expired process alive."""

import asyncio
import contextlib
import random

import pytest

from slipway_terraform.domain.policy import Policy
from slipway_terraform.scheduler.lease import SharedLease
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import World, spec


@pytest.mark.parametrize(("holders", "margin"), [(1, 0.1), (4, 0.1), (4, 1.0)])
def test_newcomers_get_a_successor(holders: int, margin: float) -> None:
    """Also where the holders have every slot of the expired process."""

    async def work() -> None:
        world = World(random.Random(1))
        scheduler = SharedScheduler(world, Policy(ttl_invocations=4, margin=margin, max_processes=2))
        async with contextlib.AsyncExitStack() as stack:
            for number in range(4):
                lease = await scheduler.acquire([spec("a")], owner=f"{number}", deadline=5.0)
                if number < holders:
                    await stack.enter_async_context(lease)
                    await stack.enter_async_context(lease.invocation())
                else:
                    async with lease, lease.invocation():
                        pass
            (old,) = world.plugins
            for _ in range(20):
                now = virtual_time.now()
                wanted = scheduler.acquire([spec("a")], owner="new", deadline=now + 5.0)
                (newcomer,) = await asyncio.gather(wanted, return_exceptions=True)
                assert isinstance(newcomer, SharedLease)
                async with newcomer, newcomer.invocation():
                    pass
            assert old in world.plugins
            assert world.most_processes == 2
        await scheduler.aclose(0)
        assert world.broken == []

    virtual_time.run(work())


def test_successor_starts_while_the_old_one_serves() -> None:
    """Within the margin nobody waits for the start; once the successor is ready, the old one only drains."""

    async def work() -> None:
        world = World(random.Random(1))
        scheduler = SharedScheduler(world, Policy(ttl_invocations=10, margin=0.5))
        holder = await scheduler.acquire([spec("a")], owner="holder", deadline=5.0)
        async with holder, holder.invocation():
            for _ in range(9):
                lease = await scheduler.acquire([spec("a")], owner="other", deadline=100.0)
                async with lease, lease.invocation():
                    pass
            assert len(world.starts) == 1
            world.slow["a"] = 3.0
            began = virtual_time.now()
            lease = await scheduler.acquire([spec("a")], owner="other", deadline=100.0)
            async with lease, lease.invocation():
                assert virtual_time.now() == began
                assert lease.env == holder.env
            await asyncio.sleep(1.0)
            assert len(world.starts) == 2
            await asyncio.sleep(2.5)
            lease = await scheduler.acquire([spec("a")], owner="other", deadline=100.0)
            async with lease:
                assert lease.env != holder.env
            assert [each.state for each in scheduler.processes()] == ["draining", "ready"]
        await scheduler.aclose(0)
        assert world.broken == []

    virtual_time.run(work())
