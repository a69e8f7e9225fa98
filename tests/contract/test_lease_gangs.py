"""Requests of several lease pools over HTTP, and requests for more than a pool can ever grant."""

import asyncio
from typing import Any

from slipway_lease_broker.domain.terms import Bounds, Derived, Mode, Operation, Policy
from slipway_lease_broker.loops.gangs import GangLoop
from tests.support import harness
from tests.support.lease_broker import admissions, terms
from tests.support.lease_broker_http import World, slug


async def test_more_units_than_can_ever_be_granted_at_once(world: World) -> None:
    """Refused at once, with the possible number; accepted where the limit may rise to it, or does not apply."""
    kept = {"heavy": Operation(weight=2), "destroy": Operation(reserved_units=1, max_wait_seconds=60)}
    never = {
        "declared": terms("declared", 4),
        "reserved": terms("reserved", 4, policy=Policy(pacing="off", operations=kept)),
        "adaptive": terms("adaptive", 2, policy=Policy(pacing="off", adaptive=Bounds(floor=1, ceiling=4))),
    }
    accepted = {
        "stopped": terms("stopped", 0),
        "shadow": terms("shadow", 4, policy=Policy(mode=Mode.SHADOW)),
        "derived": terms("derived", 4, policy=Policy(pacing="off", derived=Derived(per_unit=1))),
    }
    await world.broker.declare(*never.values(), *accepted.values())
    here = world.replica
    before = await world.rows()
    for name, most, operation in (
        ("declared", 4, "install"),
        ("adaptive", 4, "install"),
        ("reserved", 3, "install"),
        ("reserved", 1, "heavy"),
    ):
        refused = await here.acquire("r", name, units=most + 1, operation=operation)
        assert (refused.status_code, slug(refused)) == (422, "too-many-units")
        assert refused.json()["units_max"] == most
        assert f"at most {most} unit" in refused.json()["detail"]
        gang_of = {"request_id": "g", "operation": operation, "members": [{"pool": name, "units": most + 1}]}
        refused = await here.call("POST", "/lease-gangs", gang_of)
        assert (refused.status_code, slug(refused)) == (422, "too-many-units")
    assert await world.rows() == before
    for name, units, operation in (
        ("declared", 4, "install"),
        ("adaptive", 4, "install"),
        ("reserved", 5, "destroy"),
        ("stopped", 1, "install"),
        ("shadow", 9, "install"),
        ("derived", 9, "install"),
    ):
        assert (await here.acquire("r", name, units=units, operation=operation)).status_code in (200, 202)
    await world.broker.declare(terms("declared", 3), *accepted.values())
    assert (await here.acquire("late", "declared", units=3)).status_code == 202
    await world.broker.declare(terms("declared", 2), *accepted.values())
    waits = (await here.acquire("late", "declared", units=3)).json()
    assert (waits["eta_seconds"], waits["retry_after_seconds"]) == (None, 60.0)
    assert waits["reason"] == "requests 3 units, more than the limit of 2 allows: as declared"


def gang(*pools: str, request_id: str = "g", **body: Any) -> dict[str, Any]:
    return {"request_id": request_id, "members": [{"pool": pool, "units": 1} for pool in pools]} | body


async def test_a_gang_starts_in_all_its_pools_or_in_none(world: World) -> None:
    """Answered with the pool of the longest wait, woken by the last unit, confirmed in the call; the same id is the
    same gang."""
    await world.broker.declare(terms(limit=2), terms("sim-b", limit=1), terms("sim-c"))
    here = world.replica
    held = (await here.acquire("held", "sim-b")).json()
    waits = await here.call("POST", "/lease-gangs", gang("sim-b", "sim-a"))
    assert (waits.status_code, waits.json()["state"]) == (202, "waiting")
    assert waits.json()["reason"].startswith("sim-b: ")
    assert [await world.broker.held(pool) for pool in ("sim-a", "sim-b")] == [0, 1]
    waiting = asyncio.create_task(here.call("POST", "/lease-gangs", gang("sim-b", "sim-a", wait_seconds=60.0)))
    await harness.until(lambda: here.grant_waiters.waiting_callers == 1)
    await here.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
    loop = GangLoop(admissions(waiters=here.grant_waiters))
    assert await loop.step(here.pool)
    answer = await waiting
    assert answer.status_code == 200, answer.text
    leases = answer.json()["leases"]
    assert [(lease["lease_pool_id"], lease["state"]) for lease in leases] == [
        ("sim-b", "confirmed"),
        ("sim-a", "confirmed"),
    ]
    again = await here.call("POST", "/lease-gangs", gang("sim-b", "sim-a"))
    assert [lease["lease_id"] for lease in again.json()["leases"]] == [lease["lease_id"] for lease in leases]
    assert [lease["ttl_seconds"] for lease in again.json()["leases"]] == [300.0, 300.0]
    assert [await world.broker.held(pool) for pool in ("sim-a", "sim-b")] == [1, 1]
    before = await world.rows()
    for body, by, status, expected in (
        (gang("sim-a", "sim-a"), "ann", 422, "duplicate-pool"),
        (gang(), "ann", 422, "invalid-request"),
        (gang("sim-a", "nowhere"), "ann", 404, "unknown-lease-pool"),
        (gang("sim-a"), "cid", 403, "scope-missing"),
        (gang("sim-b", "sim-a"), "ben", 403, "wrong-owner"),
        (gang("sim-a", request_id="x"), "", 401, "no-token"),
        (gang("sim-b", request_id="held"), "ann", 409, "request-conflict"),
        (gang("sim-a"), "ann", 409, "request-conflict"),
        (gang("sim-c"), "ann", 409, "request-conflict"),
        (gang("sim-a", "sim-b", "sim-c"), "ann", 409, "request-conflict"),
    ):
        refused = await here.call("POST", "/lease-gangs", body, by=by)
        assert (refused.status_code, slug(refused)) == (status, expected), refused.text
    assert await world.rows() == before
    await here.call("POST", f"/leases/{leases[0]['lease_id']}/release", {"fencing_token": leases[0]["fencing_token"]})
    over = await here.call("POST", "/lease-gangs", gang("sim-b", "sim-a"))
    assert (over.status_code, over.json()["reason"]) == (410, "released")
