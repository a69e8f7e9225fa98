"""Deadlines per pool and launch config: each worker has those of its launch config, as they are declared now."""

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
import pytest

from slipway_api.events.lease import LeaseRequested
from slipway_api.events.worker import WorkerStopping
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.declaration import DeclarationRefused
from slipway_provisioner.domain.workers import Worker
from tests.support.provisioner import Provisioner, after, apply_body, declared, provisioner_on, report, revision_id

HOUR: Final = 3600.0
MINUTE: Final = 60
BOOT_SECONDS: Final = 1200.0  # of a host of bare metal
TODAY: Final = "zone-a@836f5e"
"""Id of this revision before launch configs had deadlines."""


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres) as made:
        yield made


def now(seconds: float) -> str:
    return after(seconds).isoformat()


async def launch(provisioner: Provisioner) -> None:
    """Decide, and start what is needed under a lease that lasts."""
    await provisioner.plan()
    requests = [event for event in await provisioner.events() if isinstance(event, LeaseRequested)]
    lasting: dict[str, Any] = {"expires_at": after(9 * HOUR), "hold_until": after(9 * HOUR)}
    await provisioner.leases(*(provisioner.granted(request, **lasting) for request in requests))
    await provisioner.launch()


async def running(provisioner: Provisioner, **pool: Any) -> httpx2.AsyncClient:
    """A worker that has registered; returns a client with its token."""
    await provisioner.declare(declared(**pool))
    await provisioner.trust()
    await provisioner.demand(report(1, valid_for_seconds=9 * HOUR))
    await launch(provisioner)
    return await register(provisioner, await provisioner.worker())


async def register(provisioner: Provisioner, worker: Worker) -> httpx2.AsyncClient:
    """Register the machine of a worker; returns a client with its token."""
    answer = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()
    client = provisioner.client(token=answer["token"])
    client.base_url = httpx2.URL(f"http://provisioner/workers/{worker.id}")
    return client


async def stops_at(provisioner: Provisioner, seconds: float) -> list[str]:
    """Reasons of the workers that were stopped since, once this time has come."""
    await provisioner.set_clock(seconds)
    await provisioner.plan()
    await provisioner.expire()
    return [event.reason for event in await provisioner.published(WorkerStopping)]


@pytest.mark.parametrize(("profile", "launches", "hosts"), [("bare-metal", 1, 1), ("on-demand", 7, 0)])
async def test_a_host_that_boots_in_20_minutes(
    provisioner: Provisioner, profile: str, launches: int, hosts: int
) -> None:
    """With the deadline of bare metal it serves after one launch; with that of a cloud's machine it never does."""
    await provisioner.declare(declared(profile=profile, max_capacity=1))
    await provisioner.trust()
    await provisioner.demand(report(1, valid_for_seconds=9 * HOUR))
    launched: dict[str, float] = {}
    serving: dict[str, httpx2.AsyncClient] = {}
    for at in range(0, 2 * int(HOUR), MINUTE):
        await provisioner.set_clock(at)
        await launch(provisioner)
        for instance in provisioner.cloud.live.keys() - launched.keys():
            launched[instance] = at
        for worker in await provisioner.workers():
            since = launched.get(worker.instance_id or "", at)
            if worker.state == "starting" and at - since >= BOOT_SECONDS:
                serving[worker.id] = await register(provisioner, worker)
                await serving[worker.id].post("/claimed", json={"task_id": "t", "source": "q", "at": now(at)})
        if at % (3 * MINUTE) == 0:  # not each minute: the limit of a worker's requests goes by the real clock
            for client in serving.values():
                assert (await client.post("/heartbeat")).status_code == 200
        await provisioner.expire()
        await provisioner.terminate_instances()
        await provisioner.reap()
    assert (len(launched), len(serving)) == (launches, hosts)


async def test_registration(provisioner: Provisioner) -> None:
    await provisioner.declare(declared(deadlines={"registration_seconds": 1500.0}))
    await provisioner.trust()
    await provisioner.demand(report(1, valid_for_seconds=9 * HOUR))
    await launch(provisioner)
    assert await stops_at(provisioner, 1500) == []
    assert await stops_at(provisioner, 1502) == ["did not register in time"]


async def test_the_first_claim_and_the_next_one(provisioner: Provisioner) -> None:
    """A worker that has claimed before gets the other deadline."""
    worker = await running(provisioner, deadlines={"first_claim_seconds": 60.0, "idle_despite_demand_seconds": 700.0})
    await provisioner.set_clock(50)
    await worker.post("/claimed", json={"task_id": "t", "source": "q", "at": now(50)})
    await worker.post("/idle", json={"at": now(51)})
    await provisioner.demand(report(1, at=52, valid_for_seconds=9 * HOUR))
    assert await stops_at(provisioner, 750) == []
    assert await stops_at(provisioner, 753) == ["idle while tasks wait"]


async def test_the_first_claim(provisioner: Provisioner) -> None:
    await running(provisioner, deadlines={"first_claim_seconds": 60.0, "idle_despite_demand_seconds": 700.0})
    assert await stops_at(provisioner, 62) == ["idle while tasks wait"]


async def test_an_idle_worker_that_is_not_wanted(provisioner: Provisioner) -> None:
    """The launch config's own deadline comes before that of its pool, and a change applies to workers that run."""
    body = declared(deadlines={"idle_seconds": 30.0})
    body["worker_pools"][0]["launch_configs"][0]["deadlines"] = {"idle_seconds": 600.0}
    await running(provisioner)
    await provisioner.declare(body)
    await provisioner.demand(report(0, at=1, valid_for_seconds=9 * HOUR))
    assert await stops_at(provisioner, 599) == []
    (change,) = await provisioner.declare(declared(deadlines={"idle_seconds": 30.0}))
    assert (change.id, change.detail) == ("zone-a", "deadlines.idle_seconds: 600.0 → 30.0")
    assert await stops_at(provisioner, 600) == ["more workers than wanted"]


async def test_an_idle_worker_is_looked_at_again_when_its_own_deadline_passes(provisioner: Provisioner) -> None:
    await running(provisioner, deadlines={"idle_seconds": 600.0})
    await provisioner.demand(report(0, at=1, valid_for_seconds=9 * HOUR))
    await provisioner.plan()
    rows = await provisioner.database.fetch("SELECT due_at FROM dirty_pool")
    assert after(600) in [row["due_at"] for row in rows]


async def test_an_unresponsive_worker(provisioner: Provisioner) -> None:
    worker = await running(provisioner, deadlines={"unresponsive_seconds": 1500.0})
    await worker.post("/claimed", json={"task_id": "t", "source": "q", "at": now(0)})
    assert await stops_at(provisioner, 1499) == []
    assert await stops_at(provisioner, 1502) == ["unresponsive"]


async def test_deadlines_belong_to_the_name(provisioner: Provisioner) -> None:
    """Revisions have the ids that they had before there were deadlines, and keep them when these change."""
    await provisioner.declare(declared(deadlines={"idle_seconds": 60.0}))
    assert revision_id() == TODAY
    assert await provisioner.database.fetchval("SELECT current_id FROM launch_config_name") == TODAY
    await provisioner.declare(declared(profile="bare-metal", deadlines={"maximum_age_seconds": 7200.0}))
    assert await provisioner.database.fetchval("SELECT current_id FROM launch_config_name") == TODAY


async def test_deadlines_in_force_are_shown(provisioner: Provisioner) -> None:
    """Those of the launch config, its pool, a spend limit and the service, and none that never pass."""
    body = declared(limits=spending(HOUR), deadlines={"idle_seconds": 60.0, "drain_seconds": 7200.0})
    body["worker_pools"][0]["launch_configs"][0]["deadlines"] = {"idle_seconds": 30.0}
    await provisioner.declare(body)
    async with provisioner.client() as client:
        shown = (await client.get("/launch-configs/zone-a")).json()
    assert shown["task_slots"] == 1
    declared_ones = {"idle_seconds": 30.0, "drain_seconds": 7200.0, "maximum_age_seconds": HOUR}
    assert shown["deadlines"] == {**provisioner.settings.deadlines()["on-demand"], **declared_ones}


def spending(lifetime_seconds: float) -> dict[str, Any]:
    return {"spend_per_day": "5", "lifetime_seconds": lifetime_seconds}


async def refusal(provisioner: Provisioner, body: dict[str, Any]) -> str:
    """Text with which a declaration is refused, changing nothing."""
    async with provisioner.database.acquire() as db:
        before = await db.fetchval("SELECT count(*) FROM audit")
        with pytest.raises(DeclarationRefused) as refused:
            await apply_body(
                db, body, providers=provisioner.providers, deadlines=provisioner.settings.deadlines(), confirm=""
            )
        assert await db.fetchval("SELECT count(*) FROM audit") == before
    return str(refused.value)


async def test_a_spend_limit_of_the_pool(provisioner: Provisioner) -> None:
    body = declared(limits=spending(HOUR), deadlines={"maximum_age_seconds": 2 * HOUR})
    assert await refusal(provisioner, body) == (
        "worker pool linux: launch config zone-a: deadlines: maximum_age_seconds 7200 must be at most lifetime_seconds "
        "3600 of limits of pool linux, or machines would outlive what the spend limit counts; lower "
        "maximum_age_seconds or raise lifetime_seconds"
    )


async def test_a_spend_limit_of_an_account_that_a_declared_pool_uses(provisioner: Provisioner) -> None:
    """Also if the limit changes later, and the pool does not."""
    body = declared(deadlines={"maximum_age_seconds": 2 * HOUR})
    await provisioner.declare(body)
    body["accounts"][0]["limits"] = spending(HOUR)
    assert "of limits of account sim-a" in await refusal(provisioner, body)
    del body["worker_pools"]
    assert "of limits of account sim-a" in await refusal(provisioner, body)


async def test_a_default_of_the_profile(provisioner: Provisioner) -> None:
    body = declared(profile="bare-metal", deadlines={"maximum_age_seconds": 1800.0})
    assert "registration_seconds 3600 must be below maximum_age_seconds 1800" in await refusal(provisioner, body)
