"""Check 21: twenty configurations on three processes: never more, and everybody is served."""

import asyncio
import gc
import logging
import random
import tracemalloc
from pathlib import Path

import pytest

from slipway_terraform.domain.errors import QueueFull, QueueTimeout
from slipway_terraform.domain.policy import Policy
from slipway_terraform.scheduler.lease import SharedLease
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import Times, World, spec
from tests.support.plugins import plugin, plugins_in, shared, soon


async def test_cap(sockets: Path) -> None:
    most, served = 0, 0
    async with shared(sockets, Policy(max_processes=3)) as scheduler:
        done = asyncio.Event()

        async def count() -> None:
            nonlocal most
            while not done.is_set():
                most = max(most, len(plugins_in(sockets)))
                await asyncio.sleep(0.02)

        async def client(number: int) -> None:
            nonlocal served
            spec = plugin(configuration={"region": number % 20})
            lease = await scheduler.acquire([spec], owner=f"{number}", deadline=soon(50))
            async with lease, lease.invocation():
                served += 1

        counter = asyncio.create_task(count())
        await asyncio.gather(*(client(number) for number in range(30)))
        done.set()
        await counter
    assert served == 30
    assert most == 3


@pytest.mark.parametrize("overtakes", [0, 8])
def test_callers_without_end_starve_nobody(overtakes: int) -> None:
    """At the cap, a process that is never unused makes room after some overtakes; spared so long, it serves them."""

    async def work() -> None:
        world = World(random.Random(1))
        scheduler = SharedScheduler(world, Policy(max_processes=1, max_concurrency=2, max_overtakes=overtakes))
        served = 0

        async def endless() -> None:
            nonlocal served
            while True:
                lease = await scheduler.acquire([spec("a")], owner="a", deadline=virtual_time.now() + 1000)
                async with lease, lease.invocation():
                    await asyncio.sleep(1.0)
                served += 1

        tasks = [asyncio.create_task(endless()) for _ in range(5)]
        await asyncio.sleep(10.5)
        before = served
        async with await scheduler.acquire([spec("b")], owner="b", deadline=virtual_time.now() + 60):
            assert overtakes < served - before <= overtakes + 5  # with those in use, and those before
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await scheduler.aclose(0)
        assert world.broken == []

    virtual_time.run(work())


def test_queue_has_an_end() -> None:
    async def work() -> None:
        world = World(random.Random(1))
        scheduler = SharedScheduler(world, Policy(max_concurrency=1, max_waiters=2))
        holder = await scheduler.acquire([spec("a")], owner="a", deadline=5.0)
        waiting = [asyncio.create_task(scheduler.acquire([spec("a")], owner="a", deadline=50.0)) for _ in range(2)]
        await asyncio.sleep(1)
        with pytest.raises(QueueFull, match="2 callers wait for plugins already; retry later, or raise max_waiters"):
            await scheduler.acquire([spec("a")], owner="a", deadline=50.0)
        with pytest.raises(QueueTimeout, match=r"no plugin of registry.example/x/a was free within 49\.. s: 1 of 8 "):
            await asyncio.gather(*waiting)
        holder.release()
        await asyncio.wait(waiting)
        await scheduler.aclose(0)

    virtual_time.run(work())


def test_a_year_of_configurations_fills_no_memory() -> None:
    """Thousands of handles, some of which fail to start: what is kept about them has a bound."""

    async def work() -> list[int]:
        world = World(random.Random(1), Times(start_seconds=0.0, stop_seconds=0.0))
        scheduler = SharedScheduler(world, Policy(max_processes=2, idle_seconds=5.0))
        sizes = []
        for number in range(500):
            name = f"n{number}"
            if number % 3 == 0:
                world.failing = {name}
            wanted = scheduler.acquire([spec(name, source="registry.example/x/y")], owner=name, deadline=1e9)
            (lease,) = await asyncio.gather(wanted, return_exceptions=True)
            if isinstance(lease, SharedLease):
                lease.release()
            await asyncio.sleep(3600.0)
            if number in (150, 499):
                world.starts.clear()
                world.starting.clear()
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
        assert scheduler.processes() == []
        await scheduler.aclose(0)
        return sizes

    logging.disable()  # pytest keeps every record
    tracemalloc.start()
    try:
        before, after = virtual_time.run(work())
    finally:
        tracemalloc.stop()
        logging.disable(logging.NOTSET)
    assert after - before < 30_000
