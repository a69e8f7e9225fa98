"""Check 14: a process that is expired and in use stays alive until its last lease ends."""

from pathlib import Path

import psutil

from slipway_terraform.domain.policy import Policy
from tests.support.plugins import plugin, plugins_in, shared, soon, until


async def test_a_lease_keeps_its_process(sockets: Path) -> None:
    async with shared(sockets, Policy(ttl_invocations=1)) as scheduler:
        async with await scheduler.acquire([plugin()], owner="one", deadline=soon()) as lease, lease.invocation():
            (old,) = plugins_in(sockets)
            async with await scheduler.acquire([plugin()], owner="two", deadline=soon()) as other, other.invocation():
                assert other.env != lease.env
                assert psutil.Process(old).is_running()
            await until(lambda: plugins_in(sockets) == [old])
        await until(lambda: plugins_in(sockets) == [])
