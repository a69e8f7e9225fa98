"""A pool that a bad image freezes: when, with what words, what still starts, and how it goes on."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.pool import PoolFrozen, PoolUnfrozen
from slipway_common.events.weight import SharedWindow
from slipway_common.events.worker import WorkerStopped
from slipway_local.postgres import EmbeddedPostgres
from slipway_provisioner.loops import plan
from tests.provisioner import Provisioner, administrator, after, declared, provisioner_on, report, weight


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Provisioner]:
    monkeypatch.setattr(plan, "COALESCE_SECONDS", 0.0)
    async with provisioner_on(postgres) as provisioner:
        yield provisioner


def freezing(*configs: str, **changes: Any) -> dict[str, Any]:
    return declared(*configs, **({"on_bad_image": "freeze", "freeze_after": 3} | changes))


async def failing(
    provisioner: Provisioner,
    unconfirmed: int,
    *,
    version: int,
    stage: str = "boot",
    image: str = "linux-1",
    closed: bool = False,
) -> None:
    """A record by which so many starts of the image came to nothing in a row; and a decision by it."""
    share = SharedWindow(
        key=f"image/{image}",
        stage=stage,
        version=version,
        window=64,
        unconfirmed=unconfirmed,
        state="closed" if closed else "open",
        reason=f"closed, {unconfirmed} image errors (boot_timeout)",
    )
    await provisioner.weights(weight(shared=(share,)), revision=version)
    await provisioner.plan()


async def unfreeze(provisioner: Provisioner, folder: Path) -> int:
    async with administrator(provisioner, folder) as client:
        answer = await client.post("/pools/linux/unfreeze", json={"reason": "image is replaced"})
    await provisioner.plan()
    return answer.status_code


async def is_frozen(provisioner: Provisioner) -> bool:
    frozen: bool = await provisioner.pool.fetchval("SELECT frozen FROM worker_pool WHERE id = 'linux'")
    return frozen


@pytest.mark.parametrize("stage", ["launch", "boot", "claim"])
async def test_so_many_starts_without_a_success_freeze_the_pool(
    provisioner: Provisioner, tmp_path: Path, stage: str
) -> None:
    """At once, in the decision that finds it: nothing launches, what waits is cancelled, what was admitted does not
    start, and people are told whom to look at."""
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
    await failing(provisioner, 3, version=2, stage=stage, closed=True)
    words = f"3 starts of image/linux-1 in a row came to nothing ({stage})"
    told = await provisioner.events()
    (frozen,) = [event for event in told if isinstance(event, PoolFrozen)]
    assert (frozen.reason, frozen.by, frozen.frozen) == (words, "provisioner", True)
    (alert,) = [event for event in told if isinstance(event, AlertRaised)]
    assert (alert.dedup_key, alert.summary) == ("provisioner/image-frozen/linux", f"pool linux is frozen: {words}")
    assert (alert.effect, alert.since, alert.severity) == ("3 tasks get no new worker", after(0), "notice")
    assert alert.cause == "closed, 3 image errors (boot_timeout)"
    worker = (await provisioner.workers())[0]
    assert alert.evidence == (f"worker {worker.id}, instance i-0001 of sim-a: boots still",)
    assert sum(isinstance(event, WorkerStopped) for event in told) == 1
    await provisioner.launch()
    assert len(provisioner.cloud.calls) == 1
    await provisioner.demand(report(9, at=1))
    await provisioner.plan()
    assert await provisioner.why() == f"the pool is frozen: {words}"
    assert await provisioner.states() == {"starting": 1, "requested": 1, "stopped": 1}
    async with provisioner.client() as client:
        row = (await client.get("/pools/linux")).json()
    assert (row["frozen"], row["frozen_reason"], row["frozen_by"]) == (True, words, "provisioner")
    assert [e for e in await provisioner.events() if isinstance(e, PoolFrozen | AlertRaised)] == []


async def test_an_unfrozen_pool_goes_on(provisioner: Provisioner, tmp_path: Path) -> None:
    """Its alert is resolved. The same image freezes it again after as many starts more, and that is a page; a success
    in between starts the count anew."""
    await provisioner.declare(freezing())
    await provisioner.demand(report(2))
    await failing(provisioner, 4, version=1)
    assert (await provisioner.states(), await is_frozen(provisioner)) == ({}, True)
    (raised,) = await provisioner.told(AlertRaised)
    assert (raised.kind, raised.severity) == ("image-frozen", "page"), "the image has not closed: nobody else pages"
    assert await unfreeze(provisioner, tmp_path) == 200
    told = await provisioner.events()
    (unfrozen,) = [event for event in told if isinstance(event, PoolUnfrozen)]
    assert (unfrozen.reason, unfrozen.by, unfrozen.frozen) == ("image is replaced", "admin", False)
    resolved = [(event.kind, event.dedup_key) for event in told if isinstance(event, AlertResolved)]
    assert resolved == [("image-frozen", raised.dedup_key)]
    assert await provisioner.states() == {"requested": 2}
    assert await unfreeze(provisioner, tmp_path) == 409
    await failing(provisioner, 6, version=2)
    assert not await is_frozen(provisioner)
    await failing(provisioner, 7, version=3, closed=True)
    assert await is_frozen(provisioner)
    (again,) = await provisioner.told(AlertRaised)
    assert again.severity == "page"
    assert again.summary == "pool linux is frozen: 3 more starts of image/linux-1 in a row came to nothing (boot)"
    assert await unfreeze(provisioner, tmp_path) == 200
    for version, (unconfirmed, frozen) in enumerate([(0, False), (2, False), (3, True)], 4):
        await failing(provisioner, unconfirmed, version=version)
        assert await is_frozen(provisioner) == frozen


@pytest.mark.parametrize("forgiven", [2, 3, 4])
async def test_a_success_ends_what_was_forgiven(provisioner: Provisioner, tmp_path: Path, forgiven: int) -> None:
    """The image that came back freezes the pool after as many starts as any other, no more."""
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
    """Its alert is resolved, once; declared again it is judged anew, and what has not changed freezes it again."""
    await provisioner.declare(freezing())
    await provisioner.demand(report(2))
    await failing(provisioner, 4, version=1)
    (raised,) = await provisioner.told(AlertRaised)
    await provisioner.declare(freezing() | {"worker_pools": []})
    (resolved,) = await provisioner.told(AlertResolved)
    assert (resolved.dedup_key, resolved.summary) == (raised.dedup_key, "pool linux is deleted")
    await provisioner.plan()
    assert (await provisioner.told(AlertResolved), await is_frozen(provisioner)) == ([], False)
    await provisioner.declare(freezing())
    await provisioner.demand(report(2, at=1))
    await failing(provisioner, 5, version=2)
    (again,) = await provisioner.told(AlertRaised)
    assert (again.dedup_key, await is_frozen(provisioner)) == (raised.dedup_key, True)


async def test_another_image_starts_fresh(provisioner: Provisioner, tmp_path: Path) -> None:
    """What the old one did freezes nothing once no active config has it."""
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


async def test_who_goes_on(provisioner: Provisioner) -> None:
    """A pool that probes bad images; one that has another image; one whose config of it is paused."""
    body = freezing("zone-a", on_bad_image="probe")
    for number, (id_, image) in enumerate([("other", "linux-2"), ("third", "linux-1")]):
        (pool,) = freezing(f"zone-{'bc'[number]}", id=id_)["worker_pools"]
        pool["launch_configs"][0]["image"] = image
        body["worker_pools"].append(pool)
    await provisioner.declare(body)
    await provisioner.pool.execute("UPDATE launch_config SET state = 'paused' WHERE id = 'zone-c'")
    await failing(provisioner, 99, version=1)
    assert await provisioner.pool.fetchval("SELECT count(*) FROM worker_pool WHERE frozen") == 0
    await provisioner.pool.execute("UPDATE launch_config SET state = 'active' WHERE id = 'zone-c'")
    await failing(provisioner, 100, version=2)
    rows = await provisioner.pool.fetch("SELECT id FROM worker_pool WHERE frozen")
    assert [row["id"] for row in rows] == ["third"]


async def test_a_person_freezes_a_pool(provisioner: Provisioner, tmp_path: Path) -> None:
    """Like a pause that nothing but unfreezing ends; no alert tells of what somebody did."""
    await provisioner.requested(2)
    async with administrator(provisioner, tmp_path, ["pools:write"]) as client:
        for status in (200, 409):
            answer = await client.post("/pools/linux/freeze", json={"reason": "suspect"})
            assert answer.status_code == status
    await provisioner.plan()
    assert (await provisioner.states(), await provisioner.why()) == ({"stopped": 2}, "the pool is frozen: suspect")
    (frozen,) = await provisioner.told(PoolFrozen)
    assert (frozen.reason, frozen.by) == ("suspect", "admin")
    assert await unfreeze(provisioner, tmp_path) == 200
    told = await provisioner.events()
    assert not [event for event in told if isinstance(event, AlertRaised | AlertResolved)]
    assert await provisioner.states() == {"stopped": 2, "requested": 2}
