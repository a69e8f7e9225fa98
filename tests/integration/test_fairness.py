"""Pools that share a window: those that have waited longest take what becomes free, whatever they are called."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.scopes import image_key
from slipway_api.events.weight import SharedWindow
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain import planning
from slipway_provisioner.domain.workers import stopping
from slipway_provisioner.loops import plan
from slipway_provisioner.store import pools, workers
from tests.support.provisioner import Provisioner, declared, provisioner_on, report, weight

IMAGE: Final = image_key("simulated/linux-1")
POOLS: Final = [f"pool-{number}" for number in range(6)]
BOOT: Final = """
UPDATE worker SET state = 'starting', instance_id = 'i-1', launched_at = slipway_clock()
WHERE id = (SELECT min(id::text)::uuid FROM worker WHERE pool_id = $1 AND state = 'requested') RETURNING id::text"""
DIRTY: Final = "SELECT pool_id, reason FROM dirty_pool WHERE due_at <= slipway_clock() ORDER BY due_at, id"
WAITING: Final = "SELECT pool_id FROM waiting_pool WHERE stage = 'boot' ORDER BY waiting_since, pool_id"


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    """Pools of one image, whose boot window is full with two starts of the first pool."""
    async with provisioner_on(postgres) as provisioner:
        body = declared("zone-a")
        (pool,) = body["worker_pools"]
        (config,) = pool["launch_configs"]
        body["worker_pools"] = [pool | {"id": name, "launch_configs": [config | {"name": name}]} for name in POOLS]
        await provisioner.declare(body)
        await provisioner.trust()
        await grow(provisioner, 2, version=1)
        await provisioner.plan()
        # In the reverse order of their names, so that their order says by what they are chosen.
        for second, name in enumerate([POOLS[0], *reversed(POOLS[1:])]):
            await provisioner.jump_clock(second)
            await demanded(provisioner, name)
        yield provisioner


async def grow(provisioner: Provisioner, window: int, version: int, **changes: Any) -> None:
    """Publish a boot window of the image in the record of the first pool."""
    shared = SharedWindow(kind=IMAGE.kind, id=IMAGE.id, stage="boot", version=version, window=window, **changes)
    rows = await provisioner.database.fetch("SELECT id, pool_id FROM launch_config WHERE pool_id = $1", POOLS[0])
    record = weight(rows[0]["id"], pool_id=POOLS[0], shared=(shared,))
    await provisioner.weights(record, revision=version)


async def demanded(provisioner: Provisioner, *names: str, pending: int = 4, at: float = 0) -> None:
    for name in names:
        await provisioner.demand(report(pending, pool_id=name, at=at))
        await provisioner.plan()


async def starts(provisioner: Provisioner) -> Counter[str]:
    rows = await provisioner.database.fetch("SELECT pool_id FROM worker WHERE state = 'requested'")
    return Counter(row["pool_id"] for row in rows)


async def dirty(provisioner: Provisioner, reason: str = "headroom") -> list[str]:
    return [row["pool_id"] for row in await provisioner.database.fetch(DIRTY) if row["reason"] == reason]


async def waiting(provisioner: Provisioner) -> list[str]:
    return [row["pool_id"] for row in await provisioner.database.fetch(WAITING)]


async def end_one(provisioner: Provisioner, outcome: Outcome | None = None) -> None:
    """End a boot of the first pool."""
    async with provisioner.database.acquire() as db, db.transaction():
        worker_id = await db.fetchval(BOOT, POOLS[0])
        locked = await workers.lock(db, [worker_id])
        await workers.save(db, [stopping(worker, "test", await pools.now(db), outcome) for worker in locked])


async def test_pools_that_a_window_has_cut_wait_in_the_order_of_their_plans(provisioner: Provisioner) -> None:
    assert await starts(provisioner) == {POOLS[0]: 2}
    assert await waiting(provisioner) == [POOLS[0], *reversed(POOLS[1:])]
    await demanded(provisioner, POOLS[5], pending=0, at=1)
    assert await waiting(provisioner) == [POOLS[0], *reversed(POOLS[1:5])]


async def test_two_pools_are_woken_for_a_freed_unit(provisioner: Provisioner) -> None:
    await provisioner.set_clock(10)
    await end_one(provisioner)
    assert await dirty(provisioner) == [POOLS[0], POOLS[5]]
    await provisioner.plan()
    assert await starts(provisioner) == {POOLS[0]: 2}  # as it has waited since its first plan was cut
    assert await waiting(provisioner) == [*reversed(POOLS[1:]), POOLS[0]]


async def test_a_grown_window_goes_round(provisioner: Provisioner) -> None:
    """Each takes one unit before anyone takes the next, and has its next turn at the end."""
    for window in range(3, 15):
        await provisioner.set_clock(10 + window)
        await grow(provisioner, window, version=window)
        await provisioner.plan()
    assert await starts(provisioner) == Counter(dict.fromkeys(POOLS, 2) | {POOLS[0]: 4})


async def test_headroom_is_parted_evenly_and_used_up(provisioner: Provisioner) -> None:
    """Twelve new units go to the six pools in the decisions that follow one record. Parts are rounded up, so that those
    with an earlier turn may have two more."""
    await provisioner.set_clock(10)
    await grow(provisioner, 14, version=2)
    await provisioner.plan()
    found = await starts(provisioner)
    assert found.total() == 14
    assert max(found[name] for name in POOLS[1:]) - min(found[name] for name in POOLS[1:]) <= 2


async def test_pools_that_are_dirty_have_their_parts(provisioner: Provisioner) -> None:
    """The first of six pools that are dirty takes one of six units, though none waits yet."""
    await provisioner.set_clock(10)
    await provisioner.database.execute("DELETE FROM waiting_pool")
    await provisioner.database.execute("UPDATE shared_window SET size = 8 WHERE stage = 'boot'")
    await provisioner.demand(*(report(8, pool_id=name, at=1) for name in POOLS))
    await provisioner.plan_step()
    assert await starts(provisioner) == {POOLS[0]: 3}
    await provisioner.jump_clock(11)
    await provisioner.plan()
    assert await starts(provisioner) == dict.fromkeys(POOLS, 1) | {POOLS[0]: 3}


async def test_a_report_does_not_pass_those_that_wait(provisioner: Provisioner) -> None:
    """One unit is free; a pool that is planned for another reason leaves it to those that were woken for it."""
    await provisioner.set_clock(10)
    await provisioner.database.execute("UPDATE shared_window SET size = 3 WHERE stage = 'boot'")
    await demanded(provisioner, POOLS[1], pending=5, at=1)
    assert (await starts(provisioner))[POOLS[1]] == 0
    assert (await starts(provisioner)).total() == 3  # that plan has woken them


async def test_pools_that_were_not_woken_are_woken_later(provisioner: Provisioner) -> None:
    """By a loop, for headroom that nothing has announced; not while it is full, nor by an untrusted size."""
    assert not await plan.wake_waiting(provisioner.database, calculator_unavailable_seconds=lambda: 0.0)
    await provisioner.database.execute("UPDATE shared_window SET size = 6 WHERE stage = 'boot'")
    assert await plan.wake_waiting(provisioner.database, calculator_unavailable_seconds=lambda: 60.0)
    assert await dirty(provisioner) == [POOLS[0], *reversed(POOLS[3:])][:4]
    await provisioner.database.execute("DELETE FROM dirty_pool")
    assert await plan.wake_waiting(provisioner.database, calculator_unavailable_seconds=lambda: 0.0)
    assert await dirty(provisioner) == [POOLS[0], *reversed(POOLS[1:])]
    assert not await plan.wake_waiting(provisioner.database, calculator_unavailable_seconds=lambda: 0.0)


async def test_a_failure_frees_its_unit_once_it_is_folded(provisioner: Provisioner) -> None:
    await provisioner.set_clock(10)
    await end_one(provisioner, Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, "linux-1", "boot_timeout"))
    await provisioner.plan()
    assert await starts(provisioner) == {POOLS[0]: 1}
    (config,) = await provisioner.database.fetch("SELECT id FROM launch_config WHERE pool_id = $1", POOLS[0])
    record = weight(config["id"], pool_id=POOLS[0])
    folded = msgspec.structs.replace(record.stages["boot"], failures_folded=1)
    await provisioner.weights(msgspec.structs.replace(record, stages=record.stages | {"boot": folded}), revision=9)
    assert set(await dirty(provisioner)) == {POOLS[0], POOLS[5]}
    await provisioner.plan()
    assert (await starts(provisioner)).total() == 2


async def test_a_pool_that_cannot_be_planned_keeps_no_place(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be woken before the others for ever."""

    def fail(*_: object, **__: object) -> Sequence[str]:
        return ["a bug"]

    monkeypatch.setattr(planning, "check_plan", fail)
    await demanded(provisioner, POOLS[0], pending=5, at=1)
    assert POOLS[0] not in await waiting(provisioner)
