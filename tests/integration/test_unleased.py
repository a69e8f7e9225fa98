"""The provisioner with the simulator as its provider, and while the lease-broker is unavailable."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmed,
    LeaseConfirmRequested,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    LeaseUnleasedReported,
)
from slipway_api.events.service import ServiceHeartbeat
from slipway_api.events.worker import Scope, Stage, WorkerLaunchFailed, WorkerLost
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.handlers.heartbeats import HeartbeatView
from slipway_provisioner.loops import unleased
from slipway_provisioner.providers.simulated import Simulated
from slipway_provisioner.store import leases, pools
from slipway_simulator.main import served
from slipway_simulator.settings import Settings as SimulatorSettings
from tests.support.harness import PATIENCE_SECONDS
from tests.support.providers import provider_settings
from tests.support.provisioner import Provisioner, after, declared, provisioner_on, received, report
from tests.support.serving import serving


@pytest.fixture
async def simulator(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """The real simulator behind its real server."""
    (port,) = free_ports(1)
    scenario = {
        "seed": 3,
        "speed": 1000,
        "honours_tokens": False,
        "zones": {"zone-a": {}, "zone-b": {"capacity": 1}},
        "accounts": {"sim-a": {}},
    }
    url = f"http://127.0.0.1:{port}"
    async with (
        serving(served(SimulatorSettings(port=port, ledger=tmp_path / "ledger.jsonl", kafka=""))),
        httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS) as client,
    ):
        assert (await client.post("/scenario", json=scenario)).status_code == 200
        yield client


@pytest.fixture
async def simulated(
    postgres: EmbeddedPostgres, simulator: httpx2.AsyncClient
) -> AsyncIterator[tuple[Provisioner, httpx2.AsyncClient]]:
    """A provisioner with the simulator as its provider, on the host's clock. Its machines never reach it."""
    adapter = Simulated(provider_settings())
    async with provisioner_on(postgres, adapter) as provisioner:
        await provisioner.follow_the_host()
        yield provisioner, simulator
        await adapter.close()


async def launched_on(provisioner: Provisioner, simulator: httpx2.AsyncClient, *configs: str, pending: int) -> None:
    await provisioner.declare(declared(*configs, settings={"url": str(simulator.base_url)}))
    await provisioner.demand(report(pending, observed_at=await pools.now(provisioner.database)))
    await provisioner.plan()
    for request in await provisioner.published(LeaseRequested):
        await provisioner.leases(provisioner.granted(request, expires_at=after(10**9)))
    await provisioner.launch()


async def test_simulated_lost_reply(simulated: tuple[Provisioner, httpx2.AsyncClient]) -> None:
    """The connection ends without a reply; the instances are found by tag, and the ledger shows one call."""
    provisioner, simulator = simulated
    await simulator.post("/faults", json={"name": "lost-reply", "arg": "1"})
    await launched_on(provisioner, simulator, "zone-a", pending=2)
    assert await provisioner.states() == {"launching": 2}
    await provisioner.follow_the_host(ahead_seconds=16)
    await provisioner.resolve()
    assert await provisioner.states() == {"starting": 2}
    state = (await simulator.get("/state")).json()
    assert (state["calls"]["total"], state["instances"]["live"]) == (1, 2)


async def test_simulated_capacity_and_images(simulated: tuple[Provisioner, httpx2.AsyncClient]) -> None:
    """Partial capacity, no capacity, and machines that vanish, as reported by the simulator."""
    provisioner, simulator = simulated
    await launched_on(provisioner, simulator, "zone-b", pending=2)
    assert await provisioner.states() == {"starting": 1, "stopped": 1}
    (failed,) = await provisioner.published(WorkerLaunchFailed)
    assert (failed.outcome.scope, failed.outcome.code) == (Scope.CAPACITY, "PartialCapacity")
    starting = next(worker for worker in await provisioner.workers() if worker.instance_id)
    await simulator.post(f"/instances/{starting.instance_id}/crash")
    await provisioner.follow_the_host(ahead_seconds=61)
    await provisioner.reap()
    assert await provisioner.states() == {"stopped": 2}
    (lost,) = await provisioner.published(WorkerLost)
    assert lost.outcome is not None
    assert lost.outcome.stage is Stage.BOOT


@pytest.fixture
async def safe(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres, broker_unavailable_mode="safe") as provisioner:
        yield provisioner


async def outage(provisioner: Provisioner, units: int, waiting: int) -> list[LeaseRequested]:
    """A lease pool that granted `units` now, with a hold of 1200 s, before the broker became unavailable; then intents
    wait."""
    (request,) = await provisioner.requested(units)
    await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    await provisioner.set_clock(1)
    await provisioner.demand(report(units + waiting, at=1))
    await provisioner.plan()
    provisioner.broker_unavailable_seconds = 1.0
    return await provisioner.published(LeaseRequested)


async def test_unleased_launches_keep_the_last_pace(safe: Provisioner) -> None:
    """Four units in a hold of 1200 s: one start per 300 s, each reported to be charged, with its request cancelled."""
    (asked,) = await outage(safe, 4, 3)
    assert not await safe.admit_unleased()
    for number in (1, 2):
        await safe.set_clock(300 * number)
        assert [await safe.admit_unleased() for _ in range(3)] == [True, False, False]
        await safe.launch()
        events = await safe.events()
        (reported,) = [event for event in events if isinstance(event, LeaseUnleasedReported)]
        (left,) = [event for event in events if isinstance(event, LeaseCancelRequested)]
        assert (reported.lease_pool_id, reported.units, reported.tenant, reported.started_at) == (
            "sim-a",
            1,
            "linux",
            after(300 * number),
        )
        assert (left.request_id, left.units) == (asked.request_id, 1)
        assert not [event for event in events if isinstance(event, LeaseConfirmRequested | LeaseRenewRequested)]
        assert sum(call.count for call in safe.cloud.calls) == 4 + number
    assert await safe.database.fetchval("SELECT count(*) FROM lease WHERE state = 'unleased'") == 2


async def test_launches_wait_for_the_broker(provisioner: Provisioner, safe: Provisioner) -> None:
    """They wait in the default mode, while it is available, and where it never granted anything."""
    for waiting in (provisioner, safe):
        await outage(waiting, 4, 3)
        await waiting.set_clock(300)
    safe.broker_unavailable_seconds = 0.0
    assert not await provisioner.admit_unleased()
    assert not await safe.admit_unleased()
    await safe.database.execute("UPDATE lease SET granted_units = 0")
    safe.broker_unavailable_seconds = 1.0
    assert not await safe.admit_unleased()


async def test_nothing_starts_unleased_beside_a_broker_that_answers(safe: Provisioner) -> None:
    """It is only away from Kafka: it holds what it granted, and cannot charge what starts beside it."""
    await outage(safe, 4, 3)
    await safe.set_clock(300)
    safe.broker_over_http = True
    assert not await safe.admit_unleased()
    safe.broker_over_http = False
    assert await safe.admit_unleased()


async def test_a_broker_answers_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed port, a wrong address and no address do not answer."""
    monkeypatch.setattr(unleased, "ANSWER_SECONDS", PATIENCE_SECONDS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await unleased.broker_answers(url)
    assert not await unleased.broker_answers(url)
    assert not await unleased.broker_answers("http://[")
    assert not await unleased.broker_answers("")


async def test_an_old_heartbeat_is_not_taken_for_a_new_one(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that begins again reads the last heartbeat of each service, however old. It counts from when it was
    sent, at the earliest from the start of the process, and makes no later heartbeat forgotten."""
    now = 1000.0
    monkeypatch.setattr("slipway_provisioner.handlers.heartbeats.monotonic_seconds", lambda: now)
    view = HeartbeatView()

    async def silence(*, sent: float, at: float) -> float:
        """Read a heartbeat; both times are those of the database clock."""
        await provisioner.set_clock(at)
        beat = ServiceHeartbeat(service="lease-broker", instance="0", at=after(sent), version="1")
        (record,) = received(beat)
        await view.apply(provisioner.database, [msgspec.structs.replace(record, time=after(sent))])
        return view.unavailable_seconds("lease-broker", after_seconds=0)

    now = 1040.0
    assert await silence(sent=0, at=600) == 40.0, "nothing was expected before the start"
    assert await silence(sent=595, at=600) == 5.0
    assert await silence(sent=0, at=600) == 5.0
    now = 1050.0
    assert await silence(sent=620, at=610) == 0.0, "a clock that is ahead of the database's"
    now = 1060.0
    assert await silence(sent=0, at=620) == 10.0


async def test_an_unleased_launch_gets_a_lease_when_charged(safe: Provisioner) -> None:
    """Its token comes with the confirmation; then it is renewed and released as usual. One that is released earlier has
    no token and stays charged until its hold ends."""
    await outage(safe, 4, 3)
    for seconds in (300, 600):
        await safe.set_clock(seconds)
        await safe.admit_unleased()
    kept, early = await safe.published(LeaseUnleasedReported)
    async with safe.database.acquire() as db, db.transaction():
        await leases.release(db, early.lease_id, 1, "registered")
    for lease, token in ((kept, 71), (early, 72)):
        await safe.leases(
            LeaseConfirmed(lease_pool_id="sim-a", lease_id=lease.lease_id, fencing_token=token, expires_at=after(1500))
        )
    async with safe.database.acquire() as db, db.transaction():
        for lease in (kept, early):
            await leases.release(db, lease.lease_id, 1, "registered")
    assert [(back.lease_id, back.fencing_token) for back in await safe.published(LeaseReleaseRequested)] == [
        (kept.lease_id, 71)
    ]
