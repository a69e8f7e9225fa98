"""Identity of deployments: two of them in one account of the real simulator."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from slipway_api.events.lease import LeaseRequested
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.providers.simulated import Simulated
from slipway_provisioner.store import accounts, pools
from slipway_simulator.main import served
from slipway_simulator.settings import Settings as SimulatorSettings
from tests.support.harness import PATIENCE_SECONDS
from tests.support.providers import provider_settings
from tests.support.provisioner import Provisioner, after, declared, provisioner_on, report
from tests.support.serving import serving

PASSES = 5


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """The real simulator behind its real server."""
    settings = SimulatorSettings(port=free_ports(1)[0], ledger=tmp_path / "ledger.jsonl", kafka="")
    url = f"http://127.0.0.1:{settings.port}"
    client = httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS)
    async with serving(served(settings)), client:
        scenario = {"seed": 3, "speed": 1000, "zones": {"zone-a": {}}, "accounts": {"sim-a": {}}}
        assert (await client.post("/scenario", json=scenario)).status_code == 200
        yield client


async def launched(provisioner: Provisioner, url: str, count: int) -> set[str]:
    """Launch workers in the simulator's account; returns the ids of their instances."""
    await provisioner.follow_the_host()
    await provisioner.declare(declared("zone-a", settings={"url": url}))
    await provisioner.trust()
    await provisioner.demand(report(count, observed_at=await pools.now(provisioner.database)))
    await provisioner.plan()
    for request in await provisioner.published(LeaseRequested):
        await provisioner.leases(provisioner.granted(request, expires_at=after(10**9)))
    await provisioner.launch()
    return {worker.instance_id or "" for worker in await provisioner.workers()}


async def live(cloud: httpx2.AsyncClient) -> int:
    state: dict[str, Any] = (await cloud.get("/state")).json()
    number: int = state["instances"]["live"]
    return number


async def test_two_deployments_in_one_account(postgres: EmbeddedPostgres, cloud: httpx2.AsyncClient) -> None:
    """Neither lists or terminates machines of the other, though each knows nothing of the other's batches."""
    url = str(cloud.base_url)
    async with contextlib.AsyncExitStack() as stack:
        adapters = [Simulated(provider_settings()) for _ in range(2)]
        for adapter in adapters:
            stack.push_async_callback(adapter.close)
        both = [await stack.enter_async_context(provisioner_on(postgres, adapter)) for adapter in adapters]
        created = [await launched(provisioner, url, 3) for provisioner in both]
        assert await live(cloud) == 6
        found = []
        for provisioner, adapter in zip(both, adapters, strict=True):
            async with provisioner.database.acquire() as db:
                account = await accounts.get(db, "sim-a")
            assert 1 <= len(account.deployment) <= 27
            found.append((account.deployment, {i.id for i in await adapter.instances(account)}))
        (one, ours), (other, theirs) = found
        assert one != other
        assert [ours, theirs] == created
        for number in range(1, PASSES + 1):
            for provisioner in both:
                await provisioner.follow_the_host(ahead_seconds=1000 * number)
            await asyncio.gather(*(provisioner.reap() for provisioner in both))
        assert await live(cloud) == 6


async def test_the_id_is_drawn_once(postgres: EmbeddedPostgres) -> None:
    """It is shown to people, and no setting can replace it."""
    async with provisioner_on(postgres) as provisioner, provisioner.client() as client:
        first = (await client.get("/deployment")).json()
        assert first == (await client.get("/deployment")).json()
        assert first["id"] == await provisioner.database.fetchval("SELECT id FROM deployment")
        assert not hasattr(provisioner.settings, "deployment")
