"""Check 11: invocations are counted per run of the CLI, not per lease."""

from pathlib import Path

import pytest

from tests.support.plugins import plugin, shared, soon


async def test_runs_are_counted(sockets: Path) -> None:
    async with shared(sockets) as scheduler:
        async with await scheduler.acquire([plugin()], owner="one", deadline=soon()) as lease:
            assert [each.invocations for each in scheduler.processes()] == [0]
            for _ in range(3):
                async with lease.invocation():
                    pass
            assert [each.invocations for each in scheduler.processes()] == [3]
        async with await scheduler.acquire([plugin()], owner="one", deadline=soon()):
            pass
        assert [each.invocations for each in scheduler.processes()] == [3]
        with pytest.raises(RuntimeError, match="the lease has ended"):
            async with lease.invocation():
                pass
