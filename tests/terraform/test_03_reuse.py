"""Check 3: a second start gives the same process."""

import asyncio
from pathlib import Path

from tests.support.plugins import plugin, plugins_in, shared, soon


async def test_callers_share_one_process(sockets: Path) -> None:
    async with shared(sockets) as scheduler:
        async with await scheduler.acquire([plugin()], owner="one", deadline=soon()) as first:
            pids = plugins_in(sockets)
            async with await scheduler.acquire([plugin()], owner="two", deadline=soon()) as second:
                assert second.env == first.env
                assert plugins_in(sockets) == pids
        async with await scheduler.acquire([plugin()], owner="three", deadline=soon()) as third:
            assert third.env == first.env
        assert len(pids) == 1


async def test_starters_share_one_start(sockets: Path) -> None:
    async with shared(sockets) as scheduler:
        spec = plugin("late=0.3")
        leases = await asyncio.gather(
            *(scheduler.acquire([spec], owner=f"{number}", deadline=soon()) for number in range(4))
        )
        assert len({lease.env["TF_REATTACH_PROVIDERS"] for lease in leases}) == 1
        assert len(plugins_in(sockets)) == 1
        for lease in leases:
            lease.release()
