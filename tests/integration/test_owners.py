"""Owners: a token that is limited to an owner writes nothing that another owner has declared."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from slipway_api.events.launch_config import LaunchConfigUpdated
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.provisioner import Provisioner, administrator, declared, provisioner_on

REASON = {"reason": "test"}


@pytest.fixture
async def product(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    """Pool linux with its account is declared by team-b, and a worker of it starts."""
    async with provisioner_on(postgres) as product:
        await product.starting(1)
        await product.declare(body("team-b"), adopt=True)
        yield product


def body(owner: str, *, pool: str = "linux", **changes: Any) -> dict[str, Any]:
    found = declared(**changes)
    found["worker_pools"][0]["id"] = pool
    del found["lease_pools"]
    return found | {"metadata": {"owner": owner}}


def slug(answer: httpx2.Response) -> str:
    return str(answer.json().get("type", "")).rpartition(":")[2]


async def commands(product: Provisioner) -> list[tuple[str, str, str, Any]]:
    """Scope, method, path and body of every write on a thing that somebody owns."""
    (worker,) = await product.workers()
    return [
        ("declaration:write", "PUT", "/declaration?dry_run=true&adopt=true", body("team-a", max_capacity=7)),
        ("declaration:write", "PUT", "/declaration?dry_run=true", body("team-b", max_capacity=7)),
        ("declaration:write", "PUT", "/pools/linux?dry_run=true", body("")["worker_pools"][0] | {"max_capacity": 7}),
        ("declaration:write", "PUT", "/pools/linux?dry_run=true&action=set-image", body("")["worker_pools"][0]),
        ("declaration:write", "POST", "/pools/linux/rollback", REASON | {"dry_run": True, "to_revision": 1}),
        ("pools:write", "POST", "/pools/linux/pause", REASON),
        ("pools:write", "POST", "/pools/linux/resume", REASON),
        ("pools:write", "POST", "/pools/linux/freeze", REASON),
        ("pools:write", "POST", "/pools/linux/unfreeze", REASON),
        ("launch-configs:write", "POST", "/launch-configs/zone-a/pause", REASON),
        ("launch-configs:write", "POST", "/launch-configs/zone-a/resume", REASON),
        ("accounts:write", "POST", "/accounts/sim-a/retire", REASON),
        ("accounts:write", "POST", "/accounts/sim-a/reinstate", REASON),
        ("accounts:write", "POST", "/accounts/sim-a/confirm-unresponsive", REASON),
        ("workers:terminate", "POST", f"/workers/{worker.id}/terminate", REASON),
    ]


async def test_what_another_owner_declared_is_refused(product: Provisioner, tmp_path: Path) -> None:
    """Whatever the way in: as oneself or as the other, single pools, roll-backs, commands. Nothing changes."""
    before = [dict(row) for row in await product.database.fetch("SELECT * FROM worker_pool")]
    for scope, method, path, sent in await commands(product):
        async with administrator(product, tmp_path, [f"{scope}:team-a"]) as client:
            answer = await client.request(method, path, json=sent)
            assert answer.status_code == 403, (path, answer.text)
            assert slug(answer) in ("foreign-owner", "scope-missing")
    assert [dict(row) for row in await product.database.fetch("SELECT * FROM worker_pool")] == before


@pytest.mark.parametrize("owner", ["team-b", "team-*"])
async def test_what_the_owner_declared_is_not(owner: str, product: Provisioner, tmp_path: Path) -> None:
    """The same writes by a token of the owner; those that change the owner of what is declared are still refused."""
    for scope, method, path, sent in await commands(product):
        if "adopt" not in path:
            async with administrator(product, tmp_path, [f"{scope}:{owner}"]) as client:
                answer = await client.request(method, path, json=sent)
                assert answer.status_code != 403, (path, answer.text)


async def test_launch_configs_are_published_with_their_owner(product: Provisioner) -> None:
    """Again when another owner adopts their pool, and not when nothing changes."""
    await product.events()
    await product.declare(body("team-c"), adopt=True)
    adopted = await product.published(LaunchConfigUpdated)
    assert [(event.name, event.owner) for event in adopted] == [("zone-a", "team-c")]
    await product.declare(body("team-c"))
    assert await product.published(LaunchConfigUpdated) == []


async def test_a_new_pool_belongs_to_the_owner_of_the_token(product: Provisioner, tmp_path: Path) -> None:
    """What nobody owns is for tokens without such a limit."""
    async with administrator(product, tmp_path, ["declaration:write:team-b"]) as client:
        pool = body("", pool="own")["worker_pools"][0]
        pool["launch_configs"][0]["name"] = "own-a"
        assert slug(await client.put("/pools/own?dry_run=true", json=pool)) == "foreign-owner"
        assert slug(await client.put("/pools/own?dry_run=true&owner=team-a", json=pool)) == "foreign-owner"
        assert (await client.put("/pools/own?dry_run=true&owner=team-b", json=pool)).status_code == 200
        assert (await client.get("/pools")).status_code == 403, "it includes no read"


async def test_pruning_takes_nothing_of_others(product: Provisioner, tmp_path: Path) -> None:
    async with administrator(product, tmp_path, ["declaration:write:team-a"]) as client:
        empty = {"version": 1, "metadata": {"owner": "team-a"}, "accounts": [], "worker_pools": []}
        assert slug(await client.put("/declaration?dry_run=true&prune=true", json=empty)) == "foreign-owner"
        assert (await client.put("/declaration?dry_run=true", json=empty)).status_code == 200
