"""Roll-outs beside each other, plans, pauses, sweeps, weight records and declarations: two sessions for every locking
statement."""

import asyncio
import contextlib
from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_api.events.alert import AlertRaised
from slipway_api.events.launch_config import LaunchConfigArchived, LaunchConfigDraining, LaunchConfigUpdated
from slipway_api.events.scopes import REVISION_KEPT_SECONDS, image_key
from slipway_api.events.weight import SharedWindow, StageHealth
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import roll_out
from slipway_provisioner.domain.roll_out import Drain
from slipway_provisioner.loops.roll_out import roll_out_next
from slipway_provisioner.store import configs, roll_outs
from slipway_provisioner.store.declarations import ChangedMeanwhile
from slipway_provisioner.store.roll_outs import Name
from tests.support.provisioner import (
    Provisioner,
    declared,
    in_transaction,
    report,
    revision_id,
    stopped_at,
    weight,
)
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
ZONE_A: Final = Name("linux", "zone-a")
OLD: Final = revision_id()
NEW: Final = revision_id(image="linux-2")
LOCKS: Final = ("store.roll_outs.LOCK_POOL", "store.roll_outs.LOCK_NAME", "store.roll_outs.LOCK_CONFIGS")


def with_image(image: str, *names: str) -> dict[str, Any]:
    body = declared(*names)
    for config in body["worker_pools"][0]["launch_configs"]:
        config["image"] = image
    return body


async def state_of(provisioner: Provisioner, config_id: str) -> str | None:
    state: str | None = await provisioner.database.fetchval("SELECT state FROM launch_config WHERE id = $1", config_id)
    return state


async def proves(provisioner: Provisioner) -> None:
    """Receive enough successful starts of the new revision."""
    stage = StageHealth(probability=0.9, successes=0, failures=0, window=64, failures_folded=0, succeeded=9)
    await provisioner.weights(weight(NEW, stages=dict.fromkeys(("launch", "boot", "claim"), stage)))


async def drain_old(db: Connection) -> list[str]:
    await roll_outs.lock(db, ZONE_A)
    return await roll_outs.drain(db, [Drain(id=OLD, state_reason="drill", state_by="op", drain_seconds=100.0)])


@locking(*LOCKS, "store.roll_outs.PROVE", "store.roll_outs.DRAIN", "store.roll_outs.ARCHIVE")
async def test_replicas_take_each_step_once(provisioner: Provisioner) -> None:
    """A fallback drains once and is archived once, however many replicas see that it is due."""
    await provisioner.declare()
    await provisioner.declare(with_image("linux-2"))
    await proves(provisioner)
    for _ in range(2):
        await asyncio.gather(*(in_transaction(provisioner, lambda db: roll_out.step(db, ZONE_A)) for _ in range(4)))
    kinds = [type(event) for event in await provisioner.events()]
    assert (kinds.count(LaunchConfigDraining), kinds.count(LaunchConfigArchived)) == (1, 1)
    assert await state_of(provisioner, OLD) == "archived"


async def goes_bad(provisioner: Provisioner) -> None:
    """Drain the old revision, and trip the new one by its image."""
    await provisioner.starting(2)
    await provisioner.declare(with_image("linux-2"))
    await proves(provisioner)
    await provisioner.roll_out()
    assert await state_of(provisioner, OLD) == "draining"
    bad = weight(NEW, state="tripped", tripped_by="image", tripped_stage="boot", reason="tripped: 5 boots failed")
    await provisioner.weights(bad, revision=9)
    await provisioner.events()


@locking(*LOCKS, "store.roll_outs.DISPROVE", "store.roll_outs.REINSTATE")
async def test_replicas_reinstate_a_revision_once(provisioner: Provisioner) -> None:
    """The second one sees that it is the fallback already."""
    await goes_bad(provisioner)
    await asyncio.gather(*(in_transaction(provisioner, lambda db: roll_out.step(db, ZONE_A)) for _ in range(4)))
    assert len(await provisioner.published(LaunchConfigUpdated)) == 1
    assert await state_of(provisioner, OLD) == "active"


@locking(*LOCKS, "store.roll_outs.REINSTATE")
async def test_a_reinstatement_that_waited_for_a_replacement_at_once(provisioner: Provisioner) -> None:
    """A leaked secret does not return: what was read before the lock is out of date."""
    await goes_bad(provisioner)
    declaring = provisioner.declare(with_image("linux-3"), strategy="now", terminate=True)
    async with stopped_at(provisioner, "outbox", declaring) as replacing:
        ending = provisioner.start(roll_out_next(provisioner.database))
        await provisioner.until_waiting(replacing, ending)
    await asyncio.gather(replacing, ending)
    assert await state_of(provisioner, OLD) == "draining"


@locking("store.roll_outs.SET_ALERTED")
async def test_replicas_raise_one_alert(provisioner: Provisioner) -> None:
    """The second one sees that it was raised."""
    await provisioner.starting(2)
    await in_transaction(provisioner, drain_old)
    await provisioner.set_clock(90)
    await asyncio.gather(*(roll_out_next(provisioner.database) for _ in range(4)))
    assert len(await provisioner.published(AlertRaised)) == 1


@locking(*LOCKS, "store.roll_outs.ARCHIVE")
async def test_a_revision_is_not_archived_under_a_plan_that_launches_it(provisioner: Provisioner) -> None:
    """The archiving waits for the plan and then sees its workers."""
    await provisioner.declare()
    await provisioner.demand(report(2))

    async def end(db: Connection) -> None:
        await drain_old(db)
        await roll_out.step(db, ZONE_A)

    async with stopped_at(provisioner, "outbox", provisioner.plan_step()) as planning:
        ending = provisioner.start(in_transaction(provisioner, end))
        await provisioner.until_waiting(planning, ending)
    await asyncio.gather(planning, ending)
    assert await provisioner.states() == {"requested": 2}
    assert await state_of(provisioner, OLD) == "draining"
    await provisioner.plan()
    await provisioner.roll_out()
    assert (await provisioner.states(), await state_of(provisioner, OLD)) == ({"stopped": 2}, "archived")


@locking("store.roll_outs.LOCK_POOL", "store.roll_outs.DRAIN")
async def test_a_plan_that_waited_for_a_drain_launches_nothing_of_it(provisioner: Provisioner) -> None:
    """It reads the revisions after the lock."""
    await provisioner.declare()
    await provisioner.demand(report(2))
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await drain_old(db)
            assert not await provisioner.plan_step(), "the pool is skipped while the drain holds it"
        await provisioner.plan()
    assert await provisioner.states() == {}


@locking(*LOCKS, "store.roll_outs.DRAIN", "store.roll_outs.PROVE")
async def test_roll_outs_beside_pauses_sweeps_and_declarations(provisioner: Provisioner) -> None:
    """They lock pools, names and revisions in one order."""
    names = ("zone-a", "zone-b", "zone-c")
    await provisioner.declare(declared(*names))

    async def switch(name: str) -> None:
        async def pause(db: Connection) -> bool:
            return await configs.pause(db, name, reason="r", by="op", until=None, command=True)

        async def resume(db: Connection) -> bool:
            return await configs.resume(db, name, reason="r", by="op")

        for act in (pause, resume):
            assert await in_transaction(provisioner, act)

    async def declare(image: str) -> None:
        """Declare, and again if pauses have changed the rows too often meanwhile."""
        with contextlib.suppress(ChangedMeanwhile):
            await provisioner.declare(with_image(image, *names))
            return
        await declare(image)

    for round_ in range(1, 6):
        await provisioner.set_clock(601 * round_)
        await asyncio.gather(
            declare(f"linux-{round_ % 3}"),
            *(switch(name) for name in reversed(names)),
            *(roll_out_next(provisioner.database) for _ in range(2)),
            provisioner.sweep(),
        )
    rows = await provisioner.database.fetch(
        "SELECT n.name, c.state FROM launch_config_name n JOIN launch_config c ON c.id = n.current_id ORDER BY 1"
    )
    assert [tuple(row) for row in rows] == [(name, "active") for name in names]


EXPIRY: Final = (
    *LOCKS,
    "store.roll_outs.EXPIRED_OF",
    "store.roll_outs.DELETE",
    "store.roll_outs.DELETE_NAME",
)


async def expired(provisioner: Provisioner) -> None:
    """Archive zone-a, and let its time pass."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    await provisioner.trust()
    await provisioner.declare(with_image("linux-2", "zone-b"), strategy="now")
    await provisioner.roll_out()
    await provisioner.set_clock(REVISION_KEPT_SECONDS + 1)
    await provisioner.events()


@locking(*EXPIRY)
async def test_replicas_delete_a_revision_once(provisioner: Provisioner) -> None:
    """With one tombstone, and beside weight records that name its shares. What they bring back is pruned."""
    await expired(provisioner)
    shares = tuple(
        SharedWindow(kind="image", id=f"simulated/{image}", stage="boot", version=7, window=8)
        for image in ("linux-2", "linux-1")
    )
    await asyncio.gather(
        *(roll_out_next(provisioner.database) for _ in range(3)),
        provisioner.weights(weight(revision_id("zone-b", image="linux-2"), shared=shares), revision=9),
    )
    assert await state_of(provisioner, OLD) is None
    tombstones = "SELECT count(*) FROM outbox WHERE value IS NULL AND key = $1"
    assert await provisioner.database.fetchval(tombstones, OLD) == 1
    await provisioner.prune()
    keys = {row["key"] for row in await provisioner.database.fetch("SELECT key FROM shared_window")}
    assert image_key("simulated/linux-2").text in keys
    assert image_key("simulated/linux-1").text not in keys


@locking(*EXPIRY)
@pytest.mark.parametrize("first", ["declaration", "deletion"])
async def test_a_revision_that_is_declared_again_while_it_is_deleted(provisioner: Provisioner, first: str) -> None:
    """It is there afterwards, whichever was first."""
    await expired(provisioner)
    again = with_image("linux-1", "zone-a")
    again["worker_pools"][0]["launch_configs"] += with_image("linux-2", "zone-b")["worker_pools"][0]["launch_configs"]
    steps = [provisioner.declare(again), roll_out_next(provisioner.database)]
    table = "outbox"
    async with stopped_at(provisioner, table, steps.pop(0 if first == "declaration" else 1)) as one:
        two = provisioner.start(steps.pop())
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    assert await state_of(provisioner, OLD) == "active"
    names = {row["name"] for row in await provisioner.database.fetch("SELECT name FROM launch_config_name")}
    assert names == {"zone-a", "zone-b"}


async def removed(provisioner: Provisioner) -> None:
    """Remove the pool, and let its time pass until its launch configs are deleted."""
    await provisioner.declare(declared("zone-a"))
    await provisioner.declare(declared("zone-a") | {"worker_pools": []})
    await provisioner.roll_out()
    await provisioner.set_clock(REVISION_KEPT_SECONDS + 1)
    async with provisioner.database.acquire() as db, db.transaction():
        assert await roll_out.delete_expired(db, ZONE_A, REVISION_KEPT_SECONDS)
    await provisioner.events()


DELETION: Final = ("store.removed_pools.LOCK", "store.removed_pools.DELETE")
POOLS: Final = "SELECT array_agg(id || CASE WHEN deleted THEN ' removed' ELSE '' END) FROM worker_pool"


@locking(*DELETION)
async def test_replicas_delete_a_pool_once(provisioner: Provisioner) -> None:
    """With one tombstone."""
    await removed(provisioner)
    await asyncio.gather(*(roll_out_next(provisioner.database) for _ in range(3)))
    assert await provisioner.database.fetchval(POOLS) is None
    tombstones = "SELECT count(*) FROM outbox WHERE value IS NULL AND key = 'linux'"
    assert await provisioner.database.fetchval(tombstones) == 1


@locking(*DELETION)
@pytest.mark.parametrize("first", ["declaration", "deletion"])
async def test_a_pool_that_is_declared_again_while_it_is_deleted(provisioner: Provisioner, first: str) -> None:
    """It is there afterwards, whichever was first."""
    await removed(provisioner)
    steps = [provisioner.declare(declared("zone-a")), roll_out_next(provisioner.database)]
    async with stopped_at(provisioner, "outbox", steps.pop(0 if first == "declaration" else 1)) as one:
        two = provisioner.start(steps.pop())
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    assert await provisioner.database.fetchval(POOLS) == ["linux"]
