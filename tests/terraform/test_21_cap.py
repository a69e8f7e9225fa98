"""Check 21: twenty configurations on three processes: never more, and everybody is served."""

import asyncio
from pathlib import Path

from slipway_terraform.domain.policy import Policy
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
