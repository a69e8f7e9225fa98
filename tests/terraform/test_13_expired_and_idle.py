"""Check 13: a process that is expired and idle is replaced."""

from pathlib import Path

from slipway_terraform.domain.policy import Policy
from tests.support.plugins import plugin, plugins_in, shared, soon, until


async def test_replacement(sockets: Path) -> None:
    async with shared(sockets, Policy(ttl_invocations=2)) as scheduler:
        seen = []
        for _ in range(4):
            async with await scheduler.acquire([plugin()], owner="one", deadline=soon()) as lease, lease.invocation():
                seen.append(lease.env["TF_REATTACH_PROVIDERS"])
        assert seen[0] == seen[1] != seen[2] == seen[3]
        await until(lambda: plugins_in(sockets) == [])
