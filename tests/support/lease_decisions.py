"""Steps of the lease-broker that several interleavings take."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from slipway_lease_broker.apply import Act, Action
from slipway_lease_broker.domain.declaration import Declaration, Declared
from tests.support.lease_broker import Broker

WAITING: Final = "SELECT count(*) FROM requests WHERE waiting_units > 0"
APPLIED: Final = Act(action=Action.APPLY, by="ops", reason="test")


async def during_decision(broker: Broker, work: Coroutine[Any, Any, Any], *, table: str = "leases") -> None:
    """Start the work while a decision has read and cannot write yet, since this table is locked; then let both end."""
    async with broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute(f"LOCK TABLE {table} IN SHARE MODE")
            decision = broker.start(broker.loop.step(broker.pool))
            await broker.until_waiting(decision)
            working = broker.start(work)
            await broker.until_waiting(decision, working)
        await asyncio.gather(decision, working)


def of_owner(owner: str, *declared: Declared) -> Declaration:
    wanted = [msgspec.structs.replace(pool, owner=owner) for pool in declared]
    return Declaration(owners=frozenset({owner}), pools=wanted)
