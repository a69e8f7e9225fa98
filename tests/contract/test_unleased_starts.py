"""Starts without a lease, reported over HTTP: each is charged once by its cause, and blocks no more than it may."""

from typing import Any, Final

import pytest

from slipway_lease_broker.domain.terms import Policy
from tests.support.lease_broker import after, terms
from tests.support.lease_broker_http import World, instant

CAUSES: Final = ("unavailable", "max_wait", "lost")


async def report(world: World, *names: str, by: str = "ann", **fields: Any) -> Any:
    """The answer to a report of starts by request id, at the beginning unless told otherwise."""
    starts = [{"request_id": name, "started_at": after(0).isoformat()} | fields for name in names]
    return await world.replica.call("POST", "/lease-pools/sim-a/unleased", {"starts": starts}, by=by)


async def released(world: World, lease: Any, by: str = "ann") -> int:
    body = {"fencing_token": lease["fencing_token"]}
    answer = await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", body, by=by)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["released_units"])


async def pool_of(world: World) -> Any:
    return (await world.replica.call("GET", "/lease-pools/sim-a", by="reader")).json()


async def numbers(world: World) -> tuple[int, int, int]:
    """Units held, units waiting, requests waiting; the counters are those of the rows."""
    pool = await pool_of(world)
    rows = await world.broker.pool.fetchrow(
        """SELECT (SELECT coalesce(sum(greatest(units - uncounted_units, 0)), 0) FROM leases WHERE ended_at IS NULL),
                  (SELECT coalesce(sum(waiting_units), 0) FROM requests)"""
    )
    assert tuple(rows) == (pool["held"], pool["waiting"])
    return pool["held"], pool["waiting"], pool["requests"]


@pytest.mark.parametrize("cause", CAUSES)
async def test_a_start_without_a_lease_shows_its_cause(world: World, cause: str) -> None:
    """In each answer, repeated or not, and afterwards."""
    for _ in range(2):
        (lease,) = (await report(world, "r", cause=cause)).json()["items"]
        assert lease["unleased_by"] == cause
    shown = await world.replica.call("GET", f"/leases/{lease['lease_id']}")
    assert shown.json()["unleased_by"] == cause


async def test_a_start_without_a_cause(world: World) -> None:
    """A report that tells none means an unavailable broker; an unknown cause is refused."""
    (lease,) = (await report(world, "r")).json()["items"]
    assert lease["unleased_by"] == "unavailable"
    assert (await report(world, "x", cause="tired")).status_code == 422


@pytest.mark.parametrize("cause", ["max_wait", "unavailable"])
async def test_a_request_that_still_waits(world: World, cause: str) -> None:
    """Its start becomes a lease beyond the limit and waits no longer. A repeated report has the same lease, which is
    released like any other."""
    held = (await world.replica.acquire("held", units=2)).json()
    for name in ("r", "next"):
        assert (await world.replica.acquire(name, operation="destroy")).status_code == 202
    assert await numbers(world) == (2, 2, 2)
    for charged in (1, 0):
        answer = (await report(world, "r", cause=cause, operation="destroy")).json()
        (lease,) = answer["items"]
        assert (answer["charged"], lease["request_id"], lease["unleased_by"]) == (charged, "r", cause)
    assert await numbers(world) == (3, 1, 1)
    assert (await world.replica.acquire("r", operation="destroy")).json()["lease_id"] == lease["lease_id"]
    await released(world, held)
    assert (await world.replica.acquire("next", operation="destroy")).status_code == 200
    assert [await released(world, lease), await released(world, lease)] == [1, 0]
    assert await numbers(world) == (1, 0, 0)


async def test_a_request_that_was_granted_meanwhile(world: World) -> None:
    """Its start has that lease, confirmed by the answer, and is charged no second time."""
    for name in ("first", "second"):
        await world.replica.acquire(name)
    reserved = (await world.replica.acquire("r", confirm=False, tenant="team-x")).json()
    assert reserved["state"] == "waiting"
    (first,) = (await report(world, "first", cause="max_wait")).json()["items"]
    await released(world, first)
    answer = (await report(world, "r", cause="max_wait")).json()
    assert (answer["charged"], answer["items"][0]["state"]) == (0, "confirmed")
    assert answer["items"][0]["unleased_by"] is None
    assert await numbers(world) == (2, 0, 0)


async def test_a_grant_that_nobody_received(world: World) -> None:
    """It expired, so that its start is charged as if it had waited."""
    await world.replica.acquire("r", confirm=False)
    await world.broker.set_clock(200)
    await world.broker.decide()
    assert await numbers(world) == (0, 0, 0)
    for charged in (1, 0):
        answer = (await report(world, "r", cause="max_wait")).json()
        assert (answer["charged"], answer["items"][0]["unleased_by"]) == (charged, "max_wait")
    assert (await numbers(world))[0] == 1


@pytest.mark.parametrize(("seconds", "held"), [(301, 1), (2000, 0)])
async def test_a_grant_that_nobody_heard_of(world: World, seconds: int, held: int) -> None:
    """Its answer did not arrive, and it was lost for lack of renewals. Its start counts in its place, once, until the
    hold of the start is over."""
    await world.replica.acquire("r")
    for at in (301, seconds):
        await world.broker.set_clock(at)
        await world.broker.decide()
    assert await numbers(world) == (held, 0, 0)
    for charged in (1, 0):
        answer = (await report(world, "r", started_at=after(seconds - 10).isoformat())).json()
        (lease,) = answer["items"]
        assert (answer["charged"], lease["unleased_by"]) == (charged, "unavailable")
        assert (lease["state"], lease["hold_until"]) == ("confirmed", instant(seconds - 10 + 1200))
        await world.broker.decide()
        assert await numbers(world) == (1, 0, 0)
    await world.broker.set_clock(seconds + 1000)
    await world.broker.decide()
    assert await numbers(world) == (1, 0, 0)
    assert await released(world, lease) == 1


async def test_a_cancelled_request(world: World) -> None:
    """A client that cancels before it starts is charged too."""
    await world.replica.acquire("held", units=2)
    await world.replica.acquire("r")
    await world.replica.call("DELETE", "/lease-pools/sim-a/requests/r")
    assert (await report(world, "r", cause="max_wait")).json()["charged"] == 1
    assert await numbers(world) == (3, 0, 0)


async def test_a_flood_of_starts_blocks_no_more_than_the_limit(world: World) -> None:
    """Of those that waited in vain only as many count as the pool has units, of all callers together: new grants begin
    again once these are over, and not once the last of the flood is."""
    await world.broker.declare(terms(limit=3, policy=Policy(pacing="off")))
    held = [(await world.replica.acquire(f"held{number}")).json() for number in range(3)]
    flood = [(f"f{number}", by) for number, by in enumerate(["ann", "ben"] * 4 + ["ann"])]
    for name, by in flood:
        await world.replica.acquire(name, by=by)
    for name, by in flood:
        assert (await report(world, name, cause="max_wait", by=by)).json()["charged"] == 1
    assert await numbers(world) == (6, 0, 0)
    await world.replica.acquire("next")
    for lease in held:
        await released(world, lease)
    assert (await world.replica.acquire("next")).status_code == 202
    (first,) = (await report(world, "f0", cause="max_wait")).json()["items"]
    await released(world, first)
    assert (await world.replica.acquire("next")).status_code == 200  # also of a caller with starts that do not count


async def test_a_drained_pool(world: World) -> None:
    """Starts count up to its declared limit: once it is undrained these are held."""
    reason = {"reason": "x"}
    await world.replica.acquire("r")
    await world.replica.call("POST", "/lease-pools/sim-a/drain", reason, by="operator")
    names = ["a", "b", "c"]
    for name in names:
        await world.replica.acquire(name)
    assert (await report(world, *names, cause="max_wait")).json()["charged"] == 3
    assert await numbers(world) == (3, 0, 0)
    await world.replica.call("POST", "/lease-pools/sim-a/undrain", reason, by="operator")
    assert (await world.replica.acquire("next", by="ben")).status_code == 202


async def test_a_lost_lease_that_was_renewed_after_all(world: World) -> None:
    """It counts itself: nothing more is charged, and the answer is this lease."""
    held = (await world.replica.acquire("r")).json()
    answer = (await report(world, f"lost-{held['lease_id']}", cause="lost")).json()
    assert (answer["charged"], answer["items"][0]["lease_id"]) == (0, held["lease_id"])
    assert await numbers(world) == (1, 0, 0)
    assert (await report(world, f"lost-{held['lease_id']}", cause="lost", by="ben")).status_code == 403


async def test_a_lost_lease(world: World) -> None:
    """The rest of its hold counts once, in the place of the lost lease, which would otherwise count beside it."""
    held = (await world.replica.acquire("r")).json()
    await world.broker.set_clock(301)
    await world.broker.decide()
    assert (await world.replica.call("GET", f"/leases/{held['lease_id']}")).json()["state"] == "lost"
    assert await numbers(world) == (1, 0, 0)
    for charged in (1, 0):
        answer = (await report(world, f"lost-{held['lease_id']}", cause="lost")).json()
        (lease,) = answer["items"]
        assert (answer["charged"], lease["unleased_by"], lease["hold_until"]) == (charged, "lost", held["hold_until"])
        await world.broker.decide()
        assert await numbers(world) == (1, 0, 0)
    assert await released(world, lease) == 1
    assert await numbers(world) == (0, 0, 0)


async def test_the_request_of_another(world: World) -> None:
    await world.replica.acquire("held", units=2)
    await world.replica.acquire("r")
    before = await world.rows()
    answer = await report(world, "new", "r", cause="max_wait", by="ben")
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:slipway:problem:wrong-owner")
    assert await world.rows() == before


async def test_a_member_of_a_gang(world: World) -> None:
    """It starts without its lease in each of its pools, and waits in none."""
    await world.broker.declare(*(terms(name, limit=1) for name in ("sim-a", "sim-b")))
    for pool in ("sim-a", "sim-b"):
        await world.replica.acquire(f"held {pool}", pool)
    members = [{"pool": "sim-a"}, {"pool": "sim-b"}]
    gang = await world.replica.call("POST", "/lease-gangs", {"request_id": "g", "members": members})
    assert gang.status_code == 202
    start = {"request_id": "g", "started_at": after(0).isoformat(), "cause": "max_wait"}
    for pool in ("sim-a", "sim-b"):
        for charged in (1, 0):
            answer = await world.replica.call("POST", f"/lease-pools/{pool}/unleased", {"starts": [start]})
            assert answer.json()["charged"] == charged
    pools = (await world.replica.call("GET", "/lease-pools", by="reader")).json()["items"]
    assert [(pool["held"], pool["waiting"]) for pool in pools] == [(2, 0), (2, 0)]


async def test_a_start_is_held_by_the_process_that_waited(world: World) -> None:
    """A second process with its request id does not run on its unit."""
    await world.replica.acquire("held", units=2)
    assert (await world.replica.acquire("r", holder="one")).status_code == 202
    (lease,) = (await report(world, "r", cause="max_wait")).json()["items"]
    assert lease["holder"] == "one"
    second = await world.replica.acquire("r", holder="two")
    assert (second.status_code, second.json()["type"]) == (409, "urn:slipway:problem:request-in-use")
    assert (await world.replica.acquire("r", holder="one")).json()["lease_id"] == lease["lease_id"]
    assert await released(world, lease) == 1


async def test_a_grant_of_just_now_promises_no_next_one(world: World) -> None:
    """Two units granted two seconds ago are two a minute, not sixty; units that do not count free nothing."""
    await world.replica.acquire("held", units=2)
    await world.broker.set_clock(2)
    assert (await world.replica.acquire("next")).json()["eta_seconds"] == 30.0
    await report(world, "many", units=1_000_000, hold_seconds=10.0)
    answer = (await world.replica.acquire("next")).json()
    assert answer["held_until"] == after(1_200).isoformat().replace("+00:00", "Z")
