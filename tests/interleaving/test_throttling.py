"""Throttled calls of replicas and their notices: two sessions for every locking statement."""

import asyncio
from typing import Final

import slipway_provisioner
from slipway_api.events.alert import AlertRaised
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import throttling
from slipway_provisioner.store import throttling as store
from tests.support.provisioner import Provisioner, in_transaction, stopped_at
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
AFTER_SECONDS: Final = 60.0


async def record(db: Connection) -> None:
    await store.record(db, "sim-a", within_seconds=AFTER_SECONDS)


@locking("store.throttling.RECORD")
async def test_two_throttled_calls_are_counted_as_two(provisioner: Provisioner) -> None:
    await provisioner.admitted(1)
    await in_transaction(provisioner, record)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await record(db)
            second = provisioner.start(in_transaction(provisioner, record))
            await provisioner.until_waiting(second)
        await second
    assert await provisioner.database.fetchval("SELECT throttled_calls FROM account") == 3


@locking("store.throttling.SET")
async def test_two_replicas_raise_one_notice(provisioner: Provisioner) -> None:
    """Both have found an account that throttles calls."""
    await provisioner.admitted(1)
    for at in (0, 40, 70):
        await provisioner.set_clock(at)
        await in_transaction(provisioner, record)

    async def settle() -> bool:
        async with provisioner.database.acquire() as db:
            return await throttling.settle(db, after_seconds=AFTER_SECONDS)

    async with stopped_at(provisioner, "outbox", settle()) as one:
        two = provisioner.start(settle())
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    assert len(await provisioner.published(AlertRaised)) == 1
