"""Check 16: a workspace's process stops after its last user, and is shared with no other workspace."""

from pathlib import Path

from slipway_terraform.scheduler.shared import WorkspaceScheduler
from tests.support.plugins import plugin, plugins_in, shared, soon, until


async def test_last_user(sockets: Path) -> None:
    async with shared(sockets, kind=WorkspaceScheduler) as scheduler:
        first = await scheduler.acquire([plugin()], owner="one", deadline=soon())
        second = await scheduler.acquire([plugin()], owner="one", deadline=soon())
        (pid,) = plugins_in(sockets)
        other = await scheduler.acquire([plugin()], owner="two", deadline=soon())
        nobody = await scheduler.acquire([plugin()], owner="", deadline=soon())
        assert first.env == second.env
        assert len({lease.env["TF_REATTACH_PROVIDERS"] for lease in (first, other, nobody)}) == 3
        for lease in (first, other, nobody):
            lease.release()
        await until(lambda: plugins_in(sockets) == [pid])
        async with second.invocation():
            assert plugins_in(sockets) == [pid]
        second.release()
        await until(lambda: plugins_in(sockets) == [])
