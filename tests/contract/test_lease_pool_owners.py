"""A token that may operate the lease pools of one owner reaches no others, on any route."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from slipway_common.web.access import declared
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.contract.test_access import apps, filled
from tests.contract.test_lease_pool_declarations import TIMES, pool, put, refusal
from tests.support.lease_broker_http import World, world_on

TEAM: Final = "team-a"
OWNED: Final = "lease-pools:write:{owner}"
FOREIGN: Final = (403, "foreign-owner")
BODIES: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("PATCH", "/lease-pools/{lease_pool_id}"): {"limit": 3, "reason": "r"},
    ("POST", "/lease-pools/{lease_pool_id}/drain"): {"reason": "r"},
    ("POST", "/lease-pools/{lease_pool_id}/undrain"): {"reason": "r"},
    ("PUT", "/lease-pools/{lease_pool_id}/units"): {"units": 1, "ttl_seconds": 60},
}
"""Bodies of the writes whose path names a lease pool."""


@pytest.fixture
async def world(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[World]:
    """A pool of the team, one of another owner, and one of nobody."""
    async with world_on(postgres, tmp_path) as world:
        for owner, name in ((TEAM, "mine"), ("team-b", "theirs")):
            answer = await put(world, {owner: [pool(name, derived={"per_unit": 1})]}, by="root")
            assert answer.status_code == 200, answer.text
        yield world


def owned_routes() -> list[tuple[str, str]]:
    """Routes of the lease-broker that a scope with an owner reaches, as it serves them."""
    found = declared(apps()["lease-broker"])
    return [(method, path) for method, path, access in found if OWNED in getattr(access, "scopes", ())]


def test_every_route_of_an_owner_is_tried() -> None:
    assert {*owned_routes()} == {*BODIES, ("PUT", "/lease-pools"), ("PUT", "/slots")}


@pytest.mark.parametrize(("method", "path"), BODIES)
async def test_a_path_names_a_pool_of_the_owner(world: World, method: str, path: str) -> None:
    before = await world.rows()
    for name in ("theirs", "sim-a"):
        refused = await world.replica.call(method, filled(path, name), BODIES[method, path], by=TEAM)
        assert refusal(refused) == (403, "scope-missing")
    assert await world.rows() == before
    answer = await world.replica.call(method, filled(path, "mine"), BODIES[method, path], by=TEAM)
    assert answer.status_code in (200, 409), answer.text
    unknown = await world.replica.call(method, filled(path, "nothing"), BODIES[method, path], by=TEAM)
    assert unknown.status_code == 404


async def test_declarations_are_those_of_the_owner(world: World) -> None:
    """Neither in the name of others, nor by adopting, pruning or claiming what nobody owns."""
    before = await world.rows()
    mine = pool("mine", derived={"per_unit": 1})
    for documents, query in (
        ({"team-b": [pool("theirs")]}, {}),
        ({TEAM: [mine, pool("theirs")]}, {"adopt": "true"}),
        ({TEAM: [mine, pool("sim-a")]}, {}),
        ({TEAM: [mine]}, {"prune": "true"}),
    ):
        for dry_run in ({}, {"dry_run": "true"}):
            assert refusal(await put(world, documents, by=TEAM, **query, **dry_run)) == FOREIGN, (documents, query)
    assert await world.rows() == before
    assert (await put(world, {TEAM: [mine, pool("new")]}, by=TEAM)).status_code == 200
    preview = (await put(world, {TEAM: [mine]}, by=TEAM, dry_run="true")).json()
    assert (await put(world, {TEAM: [mine]}, by=TEAM, confirm=preview["digest"])).status_code == 200
    assert (await put(world, {TEAM: [mine, pool("new")]}, by=TEAM)).status_code == 200, "its archived pool is back"


async def test_slots_are_those_of_the_owners_pools(world: World) -> None:
    """A new pool of slots has no owner, so that it is declared first."""
    before = await world.rows()
    for name in ("theirs", "sim-a", "new"):
        body = {"slots": [{"lease_pool": name, "state": "free", "names": ["s"]}], **TIMES}
        body.pop("reserve_seconds")
        assert refusal(await world.replica.call("PUT", "/slots", body, by=TEAM)) == FOREIGN
    assert await world.rows() == before
    body["slots"] = [{"lease_pool": "mine", "state": "free", "names": ["s"]}]
    assert (await world.replica.call("PUT", "/slots", body, by=TEAM)).status_code == 200
