"""Keys that providers give to launch configs, changed beside plans, declarations and other sweeps."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_api.events.launch_config import LaunchConfigUpdated
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply import provider_keys
from slipway_provisioner.domain.cloud import Account
from tests.support.cloud import Cloud
from tests.support.provisioner import Provisioner, declared, provisioner_on, report, stopped_at
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
SHARES: Final = "SELECT key FROM shared_window WHERE key LIKE 'capacity/%' ORDER BY key"


class Learned(Cloud):
    """Provider that has learned the capacity of all its launch configs."""

    def capacity_key(self, account: Account, config: Mapping[str, Any]) -> str:
        return "everywhere"


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres) as provisioner:
        await provisioner.declare(declared("zone-a", "zone-b"))
        await provisioner.trust()
        yield provisioner


async def refreshed(provisioner: Provisioner) -> int:
    async with provisioner.database.acquire() as db:
        return await provider_keys.refresh(db, "linux", {"simulated": Learned()})


async def shares(provisioner: Provisioner) -> list[str]:
    """Capacities with shares, after those that no launch config has are pruned."""
    await provisioner.prune()
    return [row["key"] for row in await provisioner.database.fetch(SHARES)]


@locking("store.provider_keys.SET")
async def test_replicas_that_sweep_a_pool_change_its_keys_once(provisioner: Provisioner) -> None:
    """The second has read the old keys before the first commits."""
    await provisioner.events()
    async with stopped_at(provisioner, "outbox", refreshed(provisioner)) as one:
        two = provisioner.start(refreshed(provisioner))
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    updated = await provisioner.published(LaunchConfigUpdated)
    assert sorted((event.name, event.revision, event.capacity_key) for event in updated) == [
        ("zone-a", 2, "everywhere"),
        ("zone-b", 2, "everywhere"),
    ]
    assert await shares(provisioner) == ["capacity/everywhere"]


class Renamed(Cloud):
    """Provider that calls its images otherwise."""

    def image_key(self, account: Account, config: Mapping[str, Any]) -> str:
        return f"renamed/{config['image']}"


IMAGES: Final = "SELECT key, state FROM shared_window WHERE key LIKE 'image/renamed%' AND stage = 'boot'"
FORGIVEN: Final = "SELECT pool_id, unconfirmed FROM forgiven WHERE key LIKE 'image/renamed%'"
TRIPPED: Final = "UPDATE shared_window SET state = 'tripped' WHERE key LIKE 'image/%'"
FORGIVE: Final = """
INSERT INTO forgiven (pool_id, key, stage, unconfirmed)
SELECT 'linux', key, stage, 3 FROM shared_window WHERE key LIKE 'image/%' AND stage = 'boot'"""


@locking("store.provider_keys.MOVE_WINDOWS", "store.provider_keys.MOVE_FORGIVEN")
async def test_replicas_move_the_window_of_an_image_once(provisioner: Provisioner) -> None:
    """The second waits for the first, and finds nothing left to move: what was tripped stays so."""
    await provisioner.database.execute(TRIPPED)
    await provisioner.database.execute(FORGIVE)

    async def renamed() -> int:
        async with provisioner.database.acquire() as db:
            return await provider_keys.refresh(db, "linux", {"simulated": Renamed()})

    async with stopped_at(provisioner, "outbox", renamed()) as one:
        two = provisioner.start(renamed())
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    (image,) = await provisioner.database.fetch(IMAGES)
    assert image["state"] == "tripped"
    assert [tuple(row) for row in await provisioner.database.fetch(FORGIVEN)] == [("linux", 3)]


@locking("store.provider_keys.SET")
async def test_a_plan_counts_by_the_keys_that_it_has_locked(provisioner: Provisioner) -> None:
    """While keys change, no plan begins: it would lock the old share and count the new one, or the reverse."""
    await provisioner.demand(report(20))
    free = "SELECT id FROM worker_pool FOR UPDATE SKIP LOCKED"
    async with stopped_at(provisioner, "outbox", refreshed(provisioner)) as changing:
        assert await provisioner.database.fetch(free) == []
    await changing
    assert await provisioner.plan_step() is True
    assert await shares(provisioner) == ["capacity/everywhere"]


@locking("store.provider_keys.SET")
@pytest.mark.parametrize("first", ["keys", "declaration"])
async def test_a_declaration_and_changed_keys_take_turns(provisioner: Provisioner, first: str) -> None:
    """Neither loses what the other has written, and none of them fails for good."""
    body = declared("zone-a", "zone-b", max_capacity=50)
    body["worker_pools"][0]["launch_configs"][0]["price_factor"] = 2.0
    steps = [provisioner.declare(body), refreshed(provisioner)]
    async with stopped_at(provisioner, "outbox", steps.pop(0 if first == "declaration" else 1)) as one:
        two = provisioner.start(steps.pop())
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    rows = await provisioner.database.fetch(
        "SELECT c.capacity, n.price_factor FROM launch_config c JOIN launch_config_name n USING (name) ORDER BY c.id"
    )
    assert [tuple(row) for row in rows] == [("everywhere", 2.0), ("everywhere", 1.0)]
