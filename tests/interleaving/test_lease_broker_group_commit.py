"""Group commits of two replicas for one lease pool, each with its own batch: the pool's lock orders them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slipway_api.events.lease import LeaseGranted, LeaseReleased
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support import harness
from tests.support.lease_broker import terms
from tests.support.lease_broker_http import Replica, World, world_on


@pytest.fixture
async def world(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[World]:
    async with world_on(postgres, tmp_path, replicas=2) as world:
        yield world


async def test_one_request_sent_to_two_replicas_is_one_lease(world: World) -> None:
    """Both batches wait for the lock; the second finds the grant of the first."""
    async with world.broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM lease_pools FOR UPDATE")
            calls = [asyncio.create_task(replica.acquire("r")) for replica in world.replicas]
            await world.broker.until_waiting(*calls)
        first, second = [answer.json() for answer in await asyncio.gather(*calls)]
    assert (first["lease_id"], first["fencing_token"]) == (second["lease_id"], 1)
    assert await world.broker.held() == 1


async def test_a_renewal_behind_a_replacement_is_refused(world: World) -> None:
    """Its lease ended while it waited for the lock: nothing is revived."""
    here, there = world.replicas
    old = (await here.acquire("one", units=2)).json()
    replaces = {"lease_id": old["lease_id"], "fencing_token": 1}
    async with world.broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE leases IN SHARE MODE")  # the first batch has read and cannot write yet
            replacing = asyncio.create_task(here.acquire("two", units=2, replaces=replaces))
            await world.broker.until_waiting(replacing)
            late = asyncio.create_task(there.call("POST", f"/leases/{old['lease_id']}/renew", {"fencing_token": 1}))
            await world.broker.until_waiting(replacing, late)
        answers = await asyncio.gather(replacing, late)
    assert [answer.status_code for answer in answers] == [200, 410]
    assert answers[1].json()["reason"] == "replaced"
    assert await world.broker.held() == 2


async def test_two_processes_with_one_request_id_at_two_replicas(world: World) -> None:
    """Both batches wait for the lock; the second finds the holder of the first, and is refused."""
    async with world.broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM lease_pools FOR UPDATE")
            calls = [
                asyncio.create_task(replica.acquire("r", holder=holder))
                for replica, holder in zip(world.replicas, ("first", "second"), strict=True)
            ]
            await world.broker.until_waiting(*calls)
        granted, refused = sorted(await asyncio.gather(*calls), key=lambda answer: answer.status_code)
    assert (granted.status_code, refused.status_code) == (200, 409)
    assert granted.json()["holder"] == refused.json()["holder"]


@pytest.mark.parametrize("behind", ["renew", "release", "token"])
async def test_a_call_of_the_first_holder_behind_a_take_over(world: World, behind: str) -> None:
    """The lease was taken over while the call waited for the lock: it is fenced off, and changes nothing."""
    here, there = world.replicas
    held = (await here.acquire("r", holder="first")).json()
    await world.broker.set_clock(299)
    async with world.broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE leases IN SHARE MODE")  # the first batch has read and cannot write yet
            taking = asyncio.create_task(here.acquire("r", holder="second"))
            await world.broker.until_waiting(taking)
            path = f"/leases/{held['lease_id']}/{behind}"
            late = asyncio.create_task(there.call("POST", path, {"fencing_token": held["fencing_token"]}))
            await world.broker.until_waiting(taking, late)
        taken, refused = await asyncio.gather(taking, late)
    assert (taken.status_code, taken.json()["holder"]) == (200, "second")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:slipway:problem:stale-token")
    renewed = await here.call(
        "POST", f"/leases/{held['lease_id']}/renew", {"fencing_token": taken.json()["fencing_token"]}
    )
    assert renewed.json()["holder"] == "second"


async def test_a_take_over_behind_a_renewal_is_refused(world: World) -> None:
    """The first holder renewed its lease while the other waited for the lock."""
    here, there = world.replicas
    held = (await here.acquire("r", holder="first")).json()
    await world.broker.set_clock(299)
    async with world.broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE leases IN SHARE MODE")
            path = f"/leases/{held['lease_id']}/renew"
            renewing = asyncio.create_task(here.call("POST", path, {"fencing_token": held["fencing_token"]}))
            await world.broker.until_waiting(renewing)
            late = asyncio.create_task(there.acquire("r", holder="second"))
            await world.broker.until_waiting(renewing, late)
        renewed, refused = await asyncio.gather(renewing, late)
    assert (renewed.status_code, refused.status_code) == (200, 409)
    assert refused.json()["type"] == "urn:slipway:problem:request-in-use"


async def test_two_gangs_of_one_name(world: World) -> None:
    """They request different pools for the first time, so that no pool's lock orders them; the lock of the gang does.
    One is refused as if it had come later, and leaves no rows."""
    names = ["sim-a", "sim-b"]
    await world.broker.declare(*(terms(name, limit=2) for name in names))

    async def acquire_request(replica: Replica, pool: str) -> Any:
        return await replica.call("POST", "/lease-gangs", {"request_id": "g", "members": [{"pool": pool}]})

    async with world.broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE gangs IN SHARE MODE")  # both have their pool and cannot write yet
            calls = [
                asyncio.create_task(acquire_request(replica, name))
                for replica, name in zip(world.replicas, names, strict=True)
            ]
            await world.broker.until_waiting(*calls)
        accepted, refused = sorted(await asyncio.gather(*calls), key=lambda answer: answer.status_code)
    assert (accepted.status_code, refused.status_code) == (200, 409)
    (lease,) = accepted.json()["leases"]
    assert await world.broker.pool.fetchval("SELECT array_agg(lease_pool_id) FROM requests") == [lease["lease_pool_id"]]
    names.remove(lease["lease_pool_id"])
    later = await acquire_request(world.replica, names[0])
    assert refused.json() | {"request_id": ""} == later.json() | {"request_id": ""}


async def test_two_replicas_and_a_decide_loop(world: World) -> None:
    """All clients request, wait, hold and release at both: never over the limit, each request granted once."""
    stop = asyncio.Event()

    async def decider() -> None:
        while not stop.is_set():
            await world.broker.loop.step(world.broker.pool)
            await asyncio.sleep(0.001)

    async def holder(n: int) -> None:
        here, there = world.replicas if n % 2 else reversed(world.replicas)
        answers = [await here.acquire(f"r{n}"), await there.acquire(f"r{n}", wait_seconds=60)]
        lease = answers[1].json()
        assert answers[0].status_code == 202 or answers[0].json()["lease_id"] == lease["lease_id"]
        released = await here.call(
            "POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": lease["fencing_token"]}
        )
        assert released.json()["released_units"] == 1

    deciding = asyncio.create_task(decider())
    async with asyncio.timeout(harness.PATIENCE_SECONDS):
        await asyncio.gather(*(holder(n) for n in range(40)))
    stop.set()
    await deciding
    held, granted = 0, []
    for event in await world.broker.events():  # transactions of one pool are serial: this is the order of their commits
        held += event.units if isinstance(event, LeaseGranted) else 0
        held -= event.units if isinstance(event, LeaseReleased) else 0
        assert held <= 2
        if isinstance(event, LeaseGranted):
            granted.append((event.request_id, event.fencing_token))
    assert held == 0
    assert sorted(name for name, _ in granted) == sorted(f"r{n}" for n in range(40))
    assert [token for _, token in granted] == list(range(1, 41))
