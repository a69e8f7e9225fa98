"""Pools frozen for a bad image: trigger, alert, blocked starts, and unfreezing."""

from pathlib import Path
from typing import Any

import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.pool import PoolFrozen, PoolUnfrozen
from slipway_api.events.weight import SharedWindow
from slipway_api.events.worker import WorkerStopped
from tests.support.provisioner import Provisioner, administrator, after, declared, report, weight


def freezing(*configs: str, **changes: Any) -> dict[str, Any]:
    return declared(*configs, **({"on_bad_image": "freeze", "freeze_after": 3} | changes))


async def failing(
    provisioner: Provisioner,
    unconfirmed: int,
    *,
    version: int,
    stage: str = "boot",
    image: str = "linux-1",
    tripped: bool = False,
) -> None:
    """Receive a record with this many consecutive failed starts of the image, and plan."""
    share = SharedWindow(
        kind="image",
        id=f"simulated/{image}",
        stage=stage,
        version=version,
        window=64,
        unconfirmed=unconfirmed,
        state="tripped" if tripped else "healthy",
        reason=f"{unconfirmed} image errors (boot_timeout)",
    )
    await provisioner.weights(weight(shared=(share,)), revision=version)
    await provisioner.plan()


async def unfreeze(provisioner: Provisioner, folder: Path) -> int:
    async with administrator(provisioner, folder) as client:
        answer = await client.post("/pools/linux/unfreeze", json={"reason": "image is replaced"})
    await provisioner.plan()
    return answer.status_code


async def is_frozen(provisioner: Provisioner) -> bool:
    frozen: bool = await provisioner.database.fetchval("SELECT frozen FROM worker_pool WHERE id = 'linux'")
    return frozen


@pytest.mark.parametrize("stage", ["launch", "boot", "claim"])
async def test_consecutive_failed_starts_freeze_the_pool(provisioner: Provisioner, tmp_path: Path, stage: str) -> None:
    """The decision that finds it freezes the pool at once: nothing launches, waiting and admitted intents do not start,
    and an alert names the evidence."""
    await provisioner.declare(freezing())
    await failing(provisioner, 2, version=1, stage=stage)
    await provisioner.demand(report(3))
    await provisioner.plan()
    (request,) = [e for e in await provisioner.events() if e.type.endswith("lease.requested.v1")]
    await provisioner.leases(provisioner.granted(request, units=1))
    await provisioner.launch()
    assert await provisioner.states() == {"starting": 1, "requested": 2}
    await provisioner.leases(provisioner.granted(request, units=1))
    await provisioner.events()
    await failing(provisioner, 3, version=2, stage=stage, tripped=True)
    words = f"3 consecutive starts of image simulated/linux-1 failed or timed out ({stage})"
    events = await provisioner.events()
    (frozen,) = [event for event in events if isinstance(event, PoolFrozen)]
    assert (frozen.reason, frozen.by, frozen.frozen) == (words, "provisioner", True)
    (alert,) = [event for event in events if isinstance(event, AlertRaised)]
    assert (alert.dedup_key, alert.summary) == ("provisioner/image-frozen/linux", f"pool linux is frozen: {words}")
    assert (alert.effect, alert.since, alert.severity) == ("3 tasks get no new worker", after(0), "notice")
    assert alert.cause == "3 image errors (boot_timeout)"
    worker = (await provisioner.workers())[0]
    assert alert.evidence == (f"worker {worker.id}, instance i-0001 of sim-a: still booting",)
    assert sum(isinstance(event, WorkerStopped) for event in events) == 1
    await provisioner.launch()
    assert len(provisioner.cloud.calls) == 1
    await provisioner.demand(report(9, at=1))
    await provisioner.plan()
    assert await provisioner.last_reason() == f"the pool is frozen: {words}"
    assert await provisioner.states() == {"starting": 1, "requested": 1, "stopped": 1}
    async with provisioner.client() as client:
        row = (await client.get("/pools/linux")).json()
    assert (row["frozen"], row["frozen_reason"], row["frozen_by"]) == (True, words, "provisioner")
    assert [e for e in await provisioner.events() if isinstance(e, PoolFrozen | AlertRaised)] == []


async def test_an_unfrozen_pool_launches_again(provisioner: Provisioner, tmp_path: Path) -> None:
    """Its alert is resolved. The same image freezes it again after as many more starts, with a page; a success resets
    the count."""
    await provisioner.declare(freezing())
    await provisioner.demand(report(2))
    await failing(provisioner, 4, version=1)
    assert (await provisioner.states(), await is_frozen(provisioner)) == ({}, True)
    (raised,) = await provisioner.published(AlertRaised)
    assert (raised.kind, raised.severity) == ("image-frozen", "page"), "the image has not tripped"
    assert await unfreeze(provisioner, tmp_path) == 200
    events = await provisioner.events()
    (unfrozen,) = [event for event in events if isinstance(event, PoolUnfrozen)]
    assert (unfrozen.reason, unfrozen.by, unfrozen.frozen) == ("image is replaced", "admin", False)
    resolved = [(event.kind, event.dedup_key) for event in events if isinstance(event, AlertResolved)]
    assert resolved == [("image-frozen", raised.dedup_key)]
    assert await provisioner.states() == {"requested": 2}
    assert await unfreeze(provisioner, tmp_path) == 409
    await failing(provisioner, 6, version=2)
    assert not await is_frozen(provisioner)
    await failing(provisioner, 7, version=3, tripped=True)
    assert await is_frozen(provisioner)
    (again,) = await provisioner.published(AlertRaised)
    assert again.severity == "page"
    assert (
        again.summary
        == "pool linux is frozen: 3 more consecutive starts of image simulated/linux-1 failed or timed out (boot)"
    )
    assert await unfreeze(provisioner, tmp_path) == 200
    for version, (unconfirmed, frozen) in enumerate([(0, False), (2, False), (3, True)], 4):
        await failing(provisioner, unconfirmed, version=version)
        assert await is_frozen(provisioner) == frozen


@pytest.mark.parametrize("forgiven", [2, 3, 4])
async def test_a_success_resets_forgiven_failures(provisioner: Provisioner, tmp_path: Path, forgiven: int) -> None:
    """After a success the image freezes the pool after as many starts as any other."""
    await provisioner.declare(freezing())
    await provisioner.demand(report(2))
    await failing(provisioner, 3, version=1)
    await failing(provisioner, forgiven, version=2)
    assert await unfreeze(provisioner, tmp_path) == 200
    for version, unconfirmed in enumerate([0, 1, 2], 3):
        await failing(provisioner, unconfirmed, version=version)
        assert not await is_frozen(provisioner)
    await failing(provisioner, 3, version=6)
    assert await is_frozen(provisioner)


async def test_a_frozen_pool_is_deleted(provisioner: Provisioner) -> None:
    """Its alert is resolved once; declared again, the pool is judged anew and the same failures freeze it again."""
    await provisioner.declare(freezing())
    await provisioner.demand(report(2))
    await failing(provisioner, 4, version=1)
    (raised,) = await provisioner.published(AlertRaised)
    await provisioner.declare(freezing() | {"worker_pools": []})
    (resolved,) = await provisioner.published(AlertResolved)
    assert (resolved.dedup_key, resolved.summary) == (raised.dedup_key, "pool linux is deleted")
    await provisioner.plan()
    assert (await provisioner.published(AlertResolved), await is_frozen(provisioner)) == ([], False)
    await provisioner.declare(freezing())
    await provisioner.demand(report(2, at=1))
    await failing(provisioner, 5, version=2)
    (again,) = await provisioner.published(AlertRaised)
    assert (again.dedup_key, await is_frozen(provisioner)) == (raised.dedup_key, True)


async def test_another_image_starts_fresh(provisioner: Provisioner, tmp_path: Path) -> None:
    """The failures of an old image freeze nothing once no active config uses it."""
    await provisioner.declare(freezing())
    await failing(provisioner, 5, version=1)
    body = freezing("zone-b")
    body["worker_pools"][0]["launch_configs"][0]["image"] = "linux-2"
    await provisioner.declare(body)
    await unfreeze(provisioner, tmp_path)
    await failing(provisioner, 50, version=2)
    await failing(provisioner, 2, version=3, image="linux-2")
    assert not await is_frozen(provisioner)
    await failing(provisioner, 3, version=4, image="linux-2")
    assert await is_frozen(provisioner)


async def test_pools_that_are_not_frozen(provisioner: Provisioner) -> None:
    """Pools that are not frozen: one that probes bad images, one with another image, one whose config of it is
    paused."""
    body = freezing("zone-a", on_bad_image="probe")
    for number, (id_, image) in enumerate([("other", "linux-2"), ("third", "linux-1")]):
        (pool,) = freezing(f"zone-{'bc'[number]}", id=id_)["worker_pools"]
        pool["launch_configs"][0]["image"] = image
        body["worker_pools"].append(pool)
    await provisioner.declare(body)
    await provisioner.database.execute("UPDATE launch_config_name SET paused = true WHERE name = 'zone-c'")
    await failing(provisioner, 99, version=1)
    assert await provisioner.database.fetchval("SELECT count(*) FROM worker_pool WHERE frozen") == 0
    await provisioner.database.execute("UPDATE launch_config_name SET paused = false WHERE name = 'zone-c'")
    await failing(provisioner, 100, version=2)
    rows = await provisioner.database.fetch("SELECT id FROM worker_pool WHERE frozen")
    assert [row["id"] for row in rows] == ["third"]


async def test_a_person_freezes_a_pool(provisioner: Provisioner, tmp_path: Path) -> None:
    """Only unfreezing ends it, and no alert is raised for a command."""
    await provisioner.requested(2)
    async with administrator(provisioner, tmp_path, ["pools:write"]) as client:
        for status in (200, 409):
            answer = await client.post("/pools/linux/freeze", json={"reason": "suspect"})
            assert answer.status_code == status
    await provisioner.plan()
    assert (await provisioner.states(), await provisioner.last_reason()) == (
        {"stopped": 2},
        "the pool is frozen: suspect",
    )
    (frozen,) = await provisioner.published(PoolFrozen)
    assert (frozen.reason, frozen.by) == ("suspect", "admin")
    assert await unfreeze(provisioner, tmp_path) == 200
    events = await provisioner.events()
    assert not [event for event in events if isinstance(event, AlertRaised | AlertResolved)]
    assert await provisioner.states() == {"stopped": 2, "requested": 2}
