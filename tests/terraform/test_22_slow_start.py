"""Check 22: a slow start of one provider delays no other."""

import random

from slipway_terraform.domain.errors import QueueTimeout
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import Times, World, spec


def test_another_starts_and_ends_meanwhile() -> None:
    async def work() -> None:
        import asyncio

        world = World(random.Random(1), Times(start_seconds=0.1, stop_seconds=0.1))
        world.slow["a"] = 50.0
        scheduler = SharedScheduler(world)
        slow = asyncio.create_task(scheduler.acquire([spec("a")], owner="slow", deadline=60.0))
        await asyncio.sleep(1.0)
        for _ in range(5):
            now = virtual_time.now()
            lease = await scheduler.acquire([spec("b")], owner="quick", deadline=now + 1.0)
            async with lease, lease.invocation():
                pass
            lease.taint("so that the next one starts")
        assert not slow.done()
        assert virtual_time.now() < 10.0
        late = asyncio.create_task(scheduler.acquire([spec("a")], owner="late", deadline=20.0))
        (ended,) = await asyncio.gather(late, return_exceptions=True)
        assert isinstance(ended, QueueTimeout)
        assert "is starting; raise the deadline" in str(ended)
        assert "max_processes" not in str(ended)
        assert virtual_time.now() == 20.0
        (await slow).release()
        assert virtual_time.now() == 50.0
        await scheduler.aclose(0)
        assert world.broken == []

    virtual_time.run(work())
