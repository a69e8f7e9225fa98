"""Check 33: modules of several providers never wait for each other."""

import asyncio
import random

import pytest

from slipway_terraform.domain.errors import Unschedulable
from slipway_terraform.domain.policy import Policy
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import World, spec


@pytest.mark.parametrize("seed", range(5))
def test_all_are_served(seed: int) -> None:
    """Pairs in every order on processes for two of five, one lease each: somebody always goes on."""

    async def work() -> World:
        rng = random.Random(seed)
        world = World(rng)
        scheduler = SharedScheduler(world, Policy(max_processes=2, max_concurrency=1), rng=rng, key=b"k")

        async def client(number: int) -> None:
            names = rng.sample("abcde", 2)
            specs = [spec(name) for name in names]
            async with await scheduler.acquire(specs, owner=f"{number}", deadline=100_000.0) as lease:
                assert [each.name for each in world.plugin_of(lease.env)] == sorted(names)
                async with lease.invocation():
                    await asyncio.sleep(rng.uniform(0, 3))

        ends = await asyncio.gather(*(client(number) for number in range(60)), return_exceptions=True)
        assert ends == [None] * 60
        await scheduler.aclose(0)
        return world

    world = virtual_time.run(work())
    assert world.broken == []
    assert world.most_processes == 2


def test_requests_that_never_fit() -> None:
    async def work() -> None:
        scheduler = SharedScheduler(World(random.Random(1)), Policy(max_processes=2))
        with pytest.raises(Unschedulable, match="3 providers are requested at once and max_processes is 2; raise it"):
            await scheduler.acquire([spec(name) for name in "abc"], owner="one", deadline=9.0)
        twice = [spec("a", source="registry.example/x/y"), spec("b", source="registry.example/x/y")]
        with pytest.raises(Unschedulable, match=r"registry.example/x/y is requested in two configurations"):
            await scheduler.acquire(twice, owner="one", deadline=9.0)
        await scheduler.aclose(0)

    virtual_time.run(work())
