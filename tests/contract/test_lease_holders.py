"""Holders of a lease over HTTP: one request id used by several processes, and starts without a lease by their cause."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.lease_broker import after
from tests.support.lease_broker_http import World, world_on

FIRST: Final = "host-1:10:aaaa"
CAUSES: Final = ("unavailable", "max_wait", "lost")


@pytest.fixture
async def world(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[World]:
    async with world_on(postgres, tmp_path) as world:
        yield world


async def unleased(world: World, request_id: str, **fields: Any) -> Any:
    """The answer to the report of one start without a lease."""
    start = {"request_id": request_id, "started_at": after(0).isoformat()} | fields
    return await world.replica.call("POST", "/lease-pools/sim-a/unleased", {"starts": [start]})


async def test_a_lease_shows_its_holder(world: World) -> None:
    """The one who asked; also in the list, and for a request that had to wait."""
    held = (await world.replica.acquire("r", units=2, holder=FIRST)).json()
    assert (held["holder"], held["unleased_by"]) == (FIRST, None)
    assert (await world.replica.acquire("next", holder="host-2:20:bbbb")).status_code == 202
    path = f"/leases/{held['lease_id']}/release"
    await world.replica.call("POST", path, {"fencing_token": held["fencing_token"], "holder": FIRST})
    listed = (await world.replica.call("GET", "/leases?pool=sim-a")).json()["items"]
    assert [lease["holder"] for lease in listed] == ["host-2:20:bbbb"]


@pytest.mark.parametrize("holder", ["", "x" * 201, "a\0b", 7])
async def test_a_holder_has_a_name(world: World, holder: Any) -> None:
    answer = await world.replica.acquire("r", holder=holder)
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("cause", CAUSES)
async def test_a_start_without_a_lease_shows_its_cause(world: World, cause: str) -> None:
    """In each answer, repeated or not, and afterwards."""
    for _ in range(2):
        (lease,) = (await unleased(world, "r", cause=cause)).json()["items"]
        assert lease["unleased_by"] == cause
    shown = await world.replica.call("GET", f"/leases/{lease['lease_id']}")
    assert shown.json()["unleased_by"] == cause


async def test_a_start_without_a_cause(world: World) -> None:
    """A report that tells none means an unavailable broker; an unknown cause is refused."""
    (lease,) = (await unleased(world, "r")).json()["items"]
    assert lease["unleased_by"] == "unavailable"
    assert (await unleased(world, "x", cause="tired")).status_code == 422
