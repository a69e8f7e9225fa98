"""Modes of pools whose file declares none: those of a provider whose machines cost money begin in observe."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.cloud import Cloud
from tests.support.provisioner import Provisioner, administrator, apply_body, declared, provisioner_on, report

PATH: Final = "/pools/linux"
PRICES: Final = "prices: [{provider: simulated, region: sim-1, instance_type: m5.large, per_hour: 0.10}]"


class Paid(Cloud):
    """Provider whose machines cost money."""

    real = True


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Provisioner]:
    file = tmp_path / "prices.yaml"
    file.write_text(PRICES)
    async with provisioner_on(postgres, Paid(), prices_file=file) as provisioner:
        provisioner.app.state.providers = provisioner.providers
        yield provisioner


@pytest.fixture
async def client(provisioner: Provisioner, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with administrator(provisioner, tmp_path) as client:
        yield client


async def mode(provisioner: Provisioner) -> str:
    found: str = await provisioner.database.fetchval("SELECT mode FROM worker_pool WHERE id = 'linux'")
    return found


async def test_a_new_pool_launches_nothing(provisioner: Provisioner) -> None:
    """It decides, and says what it would launch."""
    await provisioner.declare(declared())
    await provisioner.trust()
    await provisioner.demand(report(5))
    await provisioner.plan()
    assert await mode(provisioner) == "observe"
    assert await provisioner.workers() == []
    assert "mode observe" in await provisioner.last_reason()


async def test_a_file_without_a_mode_keeps_the_mode(provisioner: Provisioner, client: httpx2.AsyncClient) -> None:
    """A promotion lasts, also when the file is changed; a mode in the file counts; a pool that was removed is new."""
    await provisioner.declare(declared())
    shown = await client.get(PATH)
    spec = shown.json()["declared"] | {"mode": "canary"}
    answer = await client.put(PATH, json=spec, headers={"If-Match": shown.headers["ETag"]})
    assert answer.json()["items"][0]["detail"] == "mode: observe → canary"
    text = (
        "pool linux may cost up to 0.1 an hour, if 1 × m5.large (simulated, sim-1, on-demand) run all the time at 0.1"
    )
    found = {"pool": "linux", "mode": "canary", "cost": "0.1", "unknown": [], "text": text}
    assert answer.json()["costs"] == [found]
    assert await provisioner.declare(declared()) == []
    await provisioner.declare(declared(max_capacity=50))
    assert await mode(provisioner) == "canary"
    await provisioner.declare(declared(mode="enforce"))
    assert await mode(provisioner) == "enforce"
    await provisioner.declare({"version": 1, "worker_pools": []})
    await provisioner.declare(declared())
    assert await mode(provisioner) == "observe"


async def test_a_pool_that_costs_nothing_launches_at_once(provisioner: Provisioner) -> None:
    provisioner.providers["simulated"] = Cloud()
    await provisioner.declare(declared())
    assert await mode(provisioner) == "enforce"


async def test_a_pool_with_one_paid_account_is_one_that_costs(provisioner: Provisioner) -> None:
    provisioner.providers["other"] = Cloud()
    body: dict[str, Any] = declared()
    body["accounts"].append(body["accounts"][0] | {"id": "free", "provider": "other"})
    body["worker_pools"][0]["launch_configs"].insert(
        0, {"name": "zone-b", "account": "free", "zone": "b", "instance_type": "m5.large", "image": "linux-1"}
    )
    await provisioner.declare(body)
    assert await mode(provisioner) == "observe"


async def test_a_dry_run_says_what_pools_may_cost(provisioner: Provisioner) -> None:
    """With the limits that are declared, of the dearest machine, and of unchanged pools nothing."""
    body: dict[str, Any] = declared(mode="enforce", max_capacity=30)
    async with provisioner.database.acquire() as db:
        tariff = provisioner.settings.tariff()
        applied = await apply_body(db, body, providers=provisioner.providers, tariff=tariff)
        (found,) = applied.estimates.costs
        assert "may cost up to 3 an hour, if 30 × m5.large" in found.text
        assert (await apply_body(db, body, providers=provisioner.providers, tariff=tariff)).estimates.costs == []
        body["worker_pools"][0]["limits"] = {"spend_per_day": 2}
        applied = await apply_body(db, body, providers=provisioner.providers, tariff=tariff)
        assert "may cost up to 2 an hour, its limit of spend per day" in applied.estimates.costs[0].text
        del body["worker_pools"][0]["limits"]
        body["worker_pools"][0]["launch_configs"][0]["instance_type"] = "m9.huge"
        applied = await apply_body(db, body, providers=provisioner.providers, tariff=tariff)
        assert "since no price of m9.huge (simulated, sim-1, on-demand) is known" in applied.estimates.costs[0].text


async def test_launches_without_a_price_under_a_limit_of_spend(
    provisioner: Provisioner, client: httpx2.AsyncClient
) -> None:
    """Also of pools that stay as they are, in an account that gets the limit."""
    body: dict[str, Any] = declared(mode="enforce")
    body["worker_pools"][0]["launch_configs"][0]["instance_type"] = "m9.huge"
    assert (await client.put("/declaration", json=body)).json()["unpriced"] == []
    body["accounts"][0]["limits"] = {"spend_per_day": 10}
    for parameters in ({"dry_run": True}, {}):
        (found,) = (await client.put("/declaration", json=body, params=parameters)).json()["unpriced"]
        assert (found["pool"], found["kinds"]) == ("linux", ["m9.huge (simulated, sim-1, on-demand)"])
        assert "would be refused: no price is known, and account sim-a limits its spend" in found["text"]
    body["accounts"][0]["limits"]["default_price"] = 1
    assert (await client.put("/declaration", json=body)).json()["unpriced"] == []


async def test_limits_are_shown(provisioner: Provisioner, client: httpx2.AsyncClient) -> None:
    """With what counts towards them, exactly, and what is left."""
    body: dict[str, Any] = declared(mode="enforce")
    body["accounts"][0]["limits"] = {"launches_per_hour": 20, "spend_per_day": 10, "lifetime_seconds": 3600.0}
    await provisioner.declare(body)
    await provisioner.trust()
    await provisioner.demand(report(3))
    await provisioner.plan()
    (row,) = (await client.get("/launch-limits")).json()["items"]
    assert row == {
        "scope": "account",
        "scope_id": "sim-a",
        "launches_per_hour": 20,
        "launches": 0,
        "launches_left": 17,
        "launches_free_at": None,
        "spend_per_day": "10",
        "spend": "0",
        "spend_left": "10",
        "spend_free_at": None,
        "unpriced": 0,
        "lifetime_seconds": 3600.0,
        "default_price": None,
        "waiting": 3,
        "reached": "",
    }
