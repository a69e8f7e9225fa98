"""Check 19: by default 500 acquisitions at a TTL of 10 meet no error, and are served in the order of arrival."""

import asyncio
import random
from pathlib import Path

from slipway_terraform.domain.policy import Policy
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import World, spec
from tests.support.plugins import plugin, plugins_in, shared, soon


def test_500_acquisitions_in_order() -> None:
    async def work() -> tuple[list[int], int]:
        world = World(random.Random(7))
        scheduler = SharedScheduler(world, Policy(ttl_invocations=10, max_processes=2), rng=random.Random(7))
        order: list[int] = []

        async def client(number: int) -> None:
            async with await scheduler.acquire([spec("a")], owner=f"{number}", deadline=10_000.0) as lease:
                order.append(number)
                async with lease.invocation():
                    await asyncio.sleep(1.0)

        await asyncio.gather(*(client(number) for number in range(500)))
        await scheduler.aclose(0)
        assert world.broken == []
        return order, len(world.starts)

    order, starts = virtual_time.run(work())
    assert order == list(range(500))
    assert 45 <= starts <= 50


async def test_on_processes(sockets: Path) -> None:
    """Fewer acquisitions, of real processes: none has an error, and never more processes than the cap."""
    most = 0
    async with shared(sockets, Policy(ttl_invocations=10, max_processes=2)) as scheduler:

        async def client(number: int) -> None:
            nonlocal most
            lease = await scheduler.acquire([plugin()], owner=f"{number}", deadline=soon(50))
            async with lease, lease.invocation():
                most = max(most, len(plugins_in(sockets)))

        await asyncio.gather(*(client(number) for number in range(60)))
    assert 1 <= most <= 2
