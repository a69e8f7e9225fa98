"""Check 20: holders that take hours delay no newcomers, though they keep an expired process alive."""

import contextlib
import random

import pytest

from slipway_terraform.domain.policy import Policy
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import World, spec


@pytest.mark.parametrize("holders", [1, 4])
def test_newcomers_get_a_successor(holders: int) -> None:
    """Also where the holders have every slot of the expired process."""

    async def work() -> None:
        world = World(random.Random(1))
        scheduler = SharedScheduler(world, Policy(ttl_invocations=4, max_processes=2))
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
                newcomer = await scheduler.acquire([spec("a")], owner="new", deadline=now + 5.0)
                async with newcomer, newcomer.invocation():
                    assert virtual_time.now() - now < 5.0
            assert old in world.plugins
            assert world.most_processes == 2
        await scheduler.aclose(0)
        assert world.broken == []

    virtual_time.run(work())
