"""Laws of start statements beside what forbids launching, on two sessions each."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from slipway_api.events.lease import LeaseRequested
from slipway_common.database.postgres import Connection
from tests.support.provisioner import Provisioner, in_transaction, stopped_at

Forbid = Callable[[Connection], Awaitable[Any]]


async def batch_count(provisioner: Provisioner) -> int:
    count: int = await provisioner.database.fetchval("SELECT count(*) FROM launch_batch")
    return count


async def a_waiting_start_obeys(provisioner: Provisioner, forbid: Forbid) -> None:
    """Assert that a start waits for `forbid`, which was first, and then does not commit."""
    (grant,) = await provisioner.admitted()
    async with provisioner.database.acquire() as db, provisioner.database.acquire() as other:
        async with db.transaction():
            await forbid(db)
            start = provisioner.start(provisioner.launcher._start(other, [grant.lease_id]))
            await provisioner.until_waiting(start)
        assert not await start
    await provisioner.launch()
    assert await batch_count(provisioner) == 0


async def a_first_start_is_the_last(provisioner: Provisioner, forbid: Forbid) -> None:
    """Assert that `forbid` waits for a start that was first, and that no other start commits after it."""
    await provisioner.admitted()
    async with stopped_at(provisioner, "launch_batch", provisioner.launch()) as start:
        command = provisioner.start(in_transaction(provisioner, forbid))
        await provisioner.until_waiting(start, command)
    await asyncio.gather(start, command)
    assert await batch_count(provisioner) == 1
    request = LeaseRequested(lease_pool_id="sim-a", request_id="again", units=1, tenant="linux")
    await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    assert await batch_count(provisioner) == 1
