"""Check 12: a process is reused below its TTL."""

from pathlib import Path

from slipway_terraform.domain.policy import Policy
from tests.support.plugins import plugin, shared, soon


async def test_reuse_below_the_ttl(sockets: Path) -> None:
    async with shared(sockets, Policy(ttl_invocations=3)) as scheduler:
        seen = []
        for _ in range(3):
            async with await scheduler.acquire([plugin()], owner="one", deadline=soon()) as lease, lease.invocation():
                seen.append(lease.env["TF_REATTACH_PROVIDERS"])
        assert len(set(seen)) == 1
