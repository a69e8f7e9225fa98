"""Console outputs that several replicas request, fetch and settle: two sessions for every locking statement."""

import asyncio
from collections.abc import Sequence
from typing import Final

import slipway_provisioner
from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import consoles as apply
from slipway_provisioner.domain.consoles import ConsoleOutput
from slipway_provisioner.store import consoles as store
from tests.support.provisioner import Provisioner, in_transaction, stopped_at
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
IMAGES: Final = ("ami-1", "ami-2")


def console(image: str) -> ConsoleOutput:
    return ConsoleOutput(
        image_revision=image,
        account_id="sim-a",
        pool_id="linux",
        launch_config_id="zone-a@1",
        batch_id=new_id(),
        worker_id=new_id(),
        instance_id=f"i-{image}",
        reason="did not register in time",
    )


async def request(db: Connection, images: Sequence[str]) -> None:
    await store.request(db, [console(image) for image in images])


async def take(db: Connection) -> list[ConsoleOutput]:
    return await store.take(db, taken_seconds=120, longest_seconds=3600)


async def requested(provisioner: Provisioner, *images: str) -> None:
    await provisioner.declare()
    await in_transaction(provisioner, lambda db: request(db, images))
    await provisioner.events()


@locking("store.consoles.REQUEST")
async def test_two_replicas_request_the_same_images(provisioner: Provisioner) -> None:
    """In any order: each image is requested once, and neither waits for the other for ever."""
    async with provisioner.database.acquire() as db, db.transaction():
        await request(db, IMAGES)
        other = provisioner.start(in_transaction(provisioner, lambda db: request(db, IMAGES[::-1])))
        await provisioner.until_waiting(other)
    await other
    assert await provisioner.database.fetchval("SELECT count(*) FROM console_output") == 2


@locking("store.consoles.TAKE")
async def test_an_image_is_taken_by_one_replica(provisioner: Provisioner) -> None:
    """Also while its transaction is open, and until the next attempt would be due."""
    await requested(provisioner, *IMAGES)
    async with provisioner.database.acquire() as db, db.transaction():
        assert len(await take(db)) == 2
        assert await in_transaction(provisioner, take) == []
    assert await in_transaction(provisioner, take) == []
    await provisioner.set_clock(121)
    assert {taken.attempts for taken in await in_transaction(provisioner, take)} == {2}


@locking("store.consoles.TAKE", "store.consoles.SETTLE", "store.consoles.LATER")
async def test_an_attempt_that_was_overtaken(provisioner: Provisioner) -> None:
    """A replica that was stopped for long settles and delays nothing: another has the image by now."""
    await requested(provisioner, "ami-1")
    (old,) = await in_transaction(provisioner, take)
    await provisioner.set_clock(121)
    (new,) = await in_transaction(provisioner, take)
    await in_transaction(provisioner, lambda db: apply.settle(db, old, ["old"], ""))
    await in_transaction(provisioner, lambda db: store.later(db, old, 1000))
    async with stopped_at(
        provisioner, "outbox", in_transaction(provisioner, lambda db: apply.settle(db, new, ["new"], ""))
    ) as one:
        two = provisioner.start(in_transaction(provisioner, lambda db: apply.settle(db, new, ["again"], "")))
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    assert [alert.console for alert in await provisioner.published(AlertRaised)] == [("new",)]


@locking("store.consoles.RESOLVE")
async def test_an_alert_is_resolved_once(provisioner: Provisioner) -> None:
    await requested(provisioner, "ami-1")
    (taken,) = await in_transaction(provisioner, take)
    await in_transaction(provisioner, lambda db: apply.settle(db, taken, ["text"], ""))
    await provisioner.set_clock(8 * 86_400)

    async def resolve(db: Connection) -> list[str]:
        return await store.resolve(db)

    async with provisioner.database.acquire() as db, db.transaction():
        assert await resolve(db) == ["ami-1"]
        assert await in_transaction(provisioner, resolve) == []
    assert await in_transaction(provisioner, resolve) == []
    assert await provisioner.published(AlertResolved) == []
