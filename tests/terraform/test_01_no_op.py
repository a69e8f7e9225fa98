"""Check 1: the scheduler without sharing gives the CLI no process."""

import asyncio

import pytest

from slipway_terraform.domain.errors import SchedulerClosed
from slipway_terraform.domain.port import ProviderScheduler
from slipway_terraform.domain.specs import ProviderSpec
from slipway_terraform.scheduler.noop import NoOpScheduler

SPEC = ProviderSpec(source="registry.example/x/y", version="1.0.0", binary="/nowhere", digest="", configuration={})


async def test_no_op_gives_an_empty_environment() -> None:
    scheduler: ProviderScheduler = NoOpScheduler()
    deadline = asyncio.get_running_loop().time() + 1
    async with await scheduler.acquire([SPEC], owner="one", deadline=deadline) as lease, lease.invocation():
        assert lease.env == {}
    await scheduler.aclose(0)
    with pytest.raises(SchedulerClosed):
        await scheduler.acquire([SPEC], owner="one", deadline=deadline)
