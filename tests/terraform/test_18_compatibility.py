"""Check 18: the compatibility mode decides as upjet's shared scheduler does: 110 pass, 111 is refused."""

import asyncio
import contextlib
import random
import re

import pytest

from slipway_terraform.domain.errors import ProviderStartError, ReuseBudgetExceeded
from slipway_terraform.domain.policy import Policy
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import World, spec


async def invocations_until_refused(ttl: int, *, most: int) -> tuple[int, str]:
    """Runs that a process in use serves before a caller is refused, and the refusal."""
    world = World(random.Random(1))
    scheduler = SharedScheduler(world, Policy(ttl_invocations=ttl, compatible=True))
    count = 0
    async with contextlib.AsyncExitStack() as stack:
        holder = await stack.enter_async_context(await scheduler.acquire([spec("a")], owner="holder", deadline=100.0))
        await stack.enter_async_context(holder.invocation())
        refusal = ""
        for _ in range(most):
            count += 1
            try:
                lease = await scheduler.acquire([spec("a")], owner="other", deadline=100.0)
            except ReuseBudgetExceeded as error:
                refusal = str(error)
                break
            async with lease, lease.invocation():
                pass
    starts = len(world.starts)
    await scheduler.aclose(0)
    assert starts == 1
    assert world.broken == []
    return count, refusal


@pytest.mark.parametrize(("ttl", "served"), [(100, 111), (10, 12), (9, 10), (1, 2)])
def test_refused_beyond_the_margin(ttl: int, served: int) -> None:
    """A caller is refused once the count is above int(ttl * 1.1): at 111 for 100. Below 10 there is no margin."""
    count, refusal = virtual_time.run(invocations_until_refused(ttl, most=200))
    assert count == served
    assert refusal == f"native provider reuse budget has been exceeded: invocationCount: {served}, ttl: {ttl}"


def test_expired_and_idle_is_replaced() -> None:
    async def starts() -> int:
        world = World(random.Random(1))
        scheduler = SharedScheduler(world, Policy(ttl_invocations=3, compatible=True))
        for _ in range(9):
            lease = await scheduler.acquire([spec("a")], owner="one", deadline=1000.0)
            async with lease, lease.invocation():
                pass
        await scheduler.aclose(0)
        assert world.broken == []
        return len(world.starts)

    assert virtual_time.run(starts()) == 3


def test_texts_of_a_failed_start() -> None:
    async def work() -> str:
        world = World(random.Random(1))
        world.failing.add("a")
        scheduler = SharedScheduler(world, Policy(compatible=True))
        (error,) = await asyncio.gather(
            scheduler.acquire([spec("a")], owner="one", deadline=100.0), return_exceptions=True
        )
        await scheduler.aclose(0)
        assert isinstance(error, ProviderStartError)
        return str(error)

    text = virtual_time.run(work())
    assert re.fullmatch("cannot start the shared provider runner for handle: [0-9a-f]{12}: a cannot start", text)


def test_the_default_refuses_nobody() -> None:
    async def served() -> int:
        scheduler = SharedScheduler(World(random.Random(1)), Policy(ttl_invocations=10))
        async with await scheduler.acquire([spec("a")], owner="holder", deadline=100.0) as holder, holder.invocation():
            for _ in range(200):
                lease = await scheduler.acquire([spec("a")], owner="other", deadline=10_000.0)
                async with lease, lease.invocation():
                    pass
        await scheduler.aclose(0)
        return 200

    assert virtual_time.run(served()) == 200
