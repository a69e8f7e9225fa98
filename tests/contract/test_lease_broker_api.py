"""What the lease-broker answers over HTTP: every route, its status codes and bodies, and that what it refuses changes
nothing."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from slipway_common.clock import utc_now
from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.lease import LeaseLimitChanged
from slipway_lease_broker.domain.terms import Backoff, Bounds, Derived, Mode, Operation, Policy
from slipway_lease_broker.http import wakes
from slipway_lease_broker.http.bodies import Acquire
from slipway_lease_broker.http.errands import Answer, Errand
from slipway_lease_broker.http.leases import wanted
from slipway_lease_broker.loops.decide import DecideLoop
from slipway_lease_broker.loops.gangs import GangLoop
from slipway_lease_broker.metrics import REFUSED_FACTS, THROTTLES
from slipway_local.postgres import EmbeddedPostgres
from tests import harness
from tests.lease_broker import after, ask, release, terms
from tests.lease_broker_http import Replica, World, world_on


@pytest.fixture
async def world(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[World]:
    async with world_on(postgres, tmp_path) as world:
        yield world


def slug(answer: Any) -> str:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return str(answer.json()["type"]).removeprefix("urn:slipway:problem:")


def instant(seconds: float) -> str:
    return after(seconds).isoformat().replace("+00:00", "Z")


async def test_a_lease_from_acquire_to_release(world: World) -> None:
    """Granted and confirmed in one call, renewed, given back; each answer is the lease as it is."""
    broker = world.replica
    answer = await broker.acquire("r", units=2, operation="install", hold_seconds=600)
    lease = answer.json()
    assert answer.status_code == 200
    assert lease.pop("id") == lease["lease_id"]
    assert lease | {"lease_id": ""} == {
        "lease_id": "",
        "lease_pool_id": "sim-a",
        "request_id": "r",
        "tenant": "ann",
        "operation": "install",
        "owner": "ann",
        "units": 2,
        "fencing_token": 1,
        "state": "confirmed",
        "granted_at": instant(0),
        "expires_at": instant(300),
        "hold_until": instant(600),
        "ended_at": None,
        "ttl_seconds_left": 300.0,
        "hold_seconds_left": 600.0,
        "waited_seconds": 0.0,
        "mode": "enforce",
        "advised_wait_seconds": None,
        "reason": "",
    }
    path, token = f"/leases/{lease['lease_id']}", {"fencing_token": 1}
    await world.broker.set_clock(100)
    renewed = await broker.call("POST", f"{path}/renew", token | {"progress": "20 %"})
    assert (renewed.status_code, renewed.json()["expires_at"]) == (200, instant(400))
    assert (renewed.json()["ttl_seconds_left"], renewed.json()["hold_seconds_left"]) == (300.0, 500.0)
    await world.broker.set_clock(200)
    assert (await broker.call("POST", f"{path}/heartbeat", token)).json()["expires_at"] == instant(500)
    partly = await broker.call("POST", f"{path}/release", token | {"units": 1})
    assert (partly.status_code, partly.json()) == (
        200,
        {"lease_id": lease["lease_id"], "released_units": 1, "remaining": 1},
    )
    assert await world.broker.held() == 1
    assert (await broker.call("POST", f"{path}/release", token)).json()["released_units"] == 1
    again = await broker.call("POST", f"{path}/release", token)
    assert (again.status_code, again.json()["released_units"], again.json()["remaining"]) == (200, 0, 0)
    assert await world.broker.held() == 0
    shown = (await broker.call("GET", path)).json()
    assert (shown["state"], shown["ended_at"], shown["ttl_seconds_left"]) == ("released", instant(200), 0.0)
    kinds = [row["kind"] for row in (await broker.call("GET", f"{path}/history")).json()["items"]]
    assert kinds[0] == "granted"
    assert kinds[-1] == "released"


async def test_a_retired_pool_takes_no_new_requests(world: World) -> None:
    """They would wait for ever. What it granted before is still answered for."""
    held = (await world.replica.acquire("held")).json()
    await world.broker.pool.execute("UPDATE lease_pools SET retired = true, dirty = true")
    before = await world.rows()
    refused = await world.replica.acquire("new")
    assert (refused.status_code, slug(refused)) == (404, "unknown-lease-pool")
    assert await world.rows() == before
    assert (await world.replica.acquire("held")).json()["lease_id"] == held["lease_id"]


async def test_leases_of_ones_own_token_are_listed(world: World) -> None:
    """Not those of other tokens, nor what was asked for over the events: Slipway's own launches."""
    await world.replica.acquire("anns", operation="destroy")
    await world.broker.tell(ask("launch", 1))
    await world.broker.decide()

    async def listed(query: str, by: str = "ann") -> list[str]:
        rows = (await world.replica.call("GET", f"/leases{query}", by=by)).json()["items"]
        return [row["request_id"] for row in rows]

    assert await listed("?mine=true") == ["anns"]
    assert await listed("?mine=true&pool=sim-a") == ["anns"]
    assert await listed("?mine=true", "ben") == []
    assert await listed("") == ["anns", "launch"]


async def test_who_backs_off_is_told_until_when(world: World) -> None:
    """A unit is free, but its tenant's last start failed: the wait's end is the estimate, and when to ask again."""
    await world.broker.declare(terms(limit=2, policy=Policy(pacing="off", backoff=Backoff(seconds=40))))
    failing = (await world.replica.acquire("failing")).json()
    path = f"/leases/{failing['lease_id']}/release"
    await world.replica.call("POST", path, {"fencing_token": 1, "result": "failed"})
    await world.broker.set_clock(10)
    answer = await world.replica.acquire("again")
    told = answer.json()
    assert (answer.status_code, told["eta_seconds"], told["retry_after_seconds"]) == (202, 30.0, 30.0)
    assert told["reason"] == "ann backs off until 2026-01-01T12:00:40+00:00: what it started failed"
    assert answer.headers["Retry-After"] == "30"
    assert (await world.replica.acquire("other", tenant="calm")).status_code == 200


async def test_stale_tokens_are_counted(world: World) -> None:
    """Each call that is refused for its token; no other refusal."""
    lease = (await world.replica.acquire("r")).json()
    before = REFUSED_FACTS.labels("stale token")._value.get()
    for what in ("renew", "confirm", "release"):
        path = f"/leases/{lease['lease_id']}/{what}"
        assert (await world.replica.call("POST", path, {"fencing_token": 9})).status_code == 409
        assert (await world.replica.call("POST", path, {"fencing_token": 1}, by="ben")).status_code == 403
    assert REFUSED_FACTS.labels("stale token")._value.get() == before + 3


async def test_the_same_request_is_one_lease(world: World) -> None:
    """However often it is asked, at once and later: the same lease, its token and no other unit."""
    answers = await asyncio.gather(*(world.replica.acquire("r") for _ in range(20)))
    answers.append(await world.replica.acquire("r"))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["lease_id"] for answer in answers}) == 1
    assert await world.broker.held() == 1


async def test_what_arrives_together_is_decided_together(world: World) -> None:
    """Requests that come while a batch commits are one transaction, and never over the limit."""
    pool = world.broker.pool
    async with pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM lease_pools FOR UPDATE")
            asked = [asyncio.create_task(world.replica.acquire("r0"))]
            await world.broker.until_waiting(*asked)
            asked += [asyncio.create_task(world.replica.acquire(f"r{n}")) for n in range(1, 50)]
            await harness.until(lambda: len(world.replica.desk._queues.get("sim-a", ())) == 49)
        answers = await asyncio.gather(*asked)
    assert sorted(answer.status_code for answer in answers) == [200] * 2 + [202] * 48
    assert await world.broker.held() == 2
    assert await pool.fetchval("SELECT count(DISTINCT xmin::text) FROM requests") == 2


async def test_who_waits_is_told_where_and_why(world: World) -> None:
    """202 with a place, an estimate, when to ask again, in the body and as Retry-After."""
    await world.replica.acquire("held", units=2)
    first, second = await world.replica.acquire("first"), await world.replica.acquire("second", units=2)
    assert first.status_code == 202
    assert first.json() | {"eta_seconds": 0, "retry_after_seconds": 0} == {
        "request_id": "first",
        "state": "waiting",
        "position": 1,
        "eta_seconds": 0,
        "retry_after_seconds": 0,
        "reason": "2 of 2 units are held, limit as declared",
    }
    assert second.json()["position"] == 2
    assert second.json()["eta_seconds"] > first.json()["eta_seconds"] > 0
    assert second.headers["Retry-After"] == str(round(second.json()["retry_after_seconds"]))
    listed = (await world.replica.call("GET", "/lease-pools/sim-a/requests")).json()["items"]
    assert [(row["request_id"], row["units"], row["state"]) for row in listed] == [
        ("first", 1, "waiting"),
        ("second", 2, "waiting"),
    ]
    one = (await world.replica.call("GET", "/lease-pools/sim-a/requests/second")).json()
    assert (one["position"], one["waiting_units"], one["leases"]) == (2, 2, [])


async def test_a_place_among_tenants(world: World) -> None:
    """Tenants take turns: who asks alone is served second, however many wait of another tenant."""
    await world.replica.acquire("held", units=2)
    for n in range(10):
        await world.replica.acquire(f"crowd-{n}", tenant="crowd")
    assert (await world.replica.acquire("lone", tenant="lone")).json()["position"] == 2
    assert (await world.replica.acquire("urgent", tenant="crowd", priority=5)).json()["position"] == 1


async def test_whoever_waits_is_answered_as_soon_as_a_unit_comes_back(world: World) -> None:
    """By a grant that is confirmed, in the call that waited for it."""
    held = (await world.replica.acquire("held", units=2)).json()
    waiting = asyncio.create_task(world.replica.acquire("next", wait_seconds=60.0))
    await harness.until(lambda: world.replica.desk.staying == 1)
    await world.replica.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
    answer = await waiting
    assert (answer.status_code, answer.json()["state"], answer.json()["fencing_token"]) == (200, "confirmed", 2)
    assert world.replica.desk.staying == 0


async def test_whoever_waits_too_long_keeps_its_place(world: World) -> None:
    """The wait ends with 202; the request goes on waiting, and is granted in reserve while nobody asks."""
    held = (await world.replica.acquire("held", units=2)).json()
    assert (await world.replica.acquire("next", wait_seconds=0.01)).status_code == 202
    assert world.replica.desk.staying == 0
    await world.replica.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
    shown = (await world.replica.call("GET", "/lease-pools/sim-a/requests/next")).json()
    assert [lease["state"] for lease in shown["leases"]] == ["reserved"]
    assert (await world.replica.acquire("next")).json()["state"] == "confirmed"


async def test_a_grant_to_be_confirmed_apart(world: World) -> None:
    """With confirm: false it is a reserve; confirmed by its holder, or taken back."""
    lease = (await world.replica.acquire("r", confirm=False)).json()
    assert (lease["state"], lease["ttl_seconds_left"]) == ("reserved", 180.0)
    again = await world.replica.acquire("r", confirm=False)
    assert again.json()["state"] == "reserved"
    path = f"/leases/{lease['lease_id']}/confirm"
    confirmed = await world.replica.call("POST", path, {"fencing_token": 1})
    assert (confirmed.status_code, confirmed.json()["state"]) == (200, "confirmed")
    late = (await world.replica.acquire("late", confirm=False)).json()
    await world.broker.set_clock(180)
    await world.broker.decide()
    answer = await world.replica.call("POST", f"/leases/{late['lease_id']}/confirm", {"fencing_token": 2})
    assert (answer.status_code, slug(answer), answer.json()["reason"]) == (410, "lease-ended", "expired")


async def test_an_attempt_replaces_the_one_before(world: World) -> None:
    """The old lease ends in the same transaction, and its holder hears why."""
    old = (await world.replica.acquire("one", units=2)).json()
    replaced = {"lease_id": old["lease_id"], "fencing_token": old["fencing_token"]}
    new = await world.replica.acquire("two", units=2, replaces=replaced)
    assert (new.status_code, new.json()["fencing_token"]) == (200, 2)
    assert await world.broker.held() == 2
    late = await world.replica.call("POST", f"/leases/{old['lease_id']}/renew", {"fencing_token": 1})
    assert (late.status_code, late.json()["reason"]) == (410, "replaced")


async def test_ends_are_told_with_their_reason(world: World) -> None:
    """To whoever renews, and to whoever asks again for what it had."""
    lease = (await world.replica.acquire("r")).json()
    path, token = f"/leases/{lease['lease_id']}", {"fencing_token": 1}
    await world.broker.set_clock(300)
    await world.broker.decide()
    for what in ("renew", "heartbeat", "confirm", "release"):
        answer = await world.replica.call("POST", f"{path}/{what}", token)
        assert (answer.status_code, slug(answer), answer.json()["reason"]) == (410, "lease-ended", "lost")
    again = await world.replica.acquire("r")
    assert (again.status_code, slug(again), again.json()["reason"]) == (410, "lease-ended", "lost")


#   what is said as the deadline passes, status, reason of a refusal
OVERTAKEN = [
    (300.0, "", {"request_id": "r", "units": 2}, 410, "lost"),
    (1200.0, "", {"request_id": "r", "units": 2}, 410, "hold"),
    (1200.0, "renew", {"fencing_token": 1}, 410, "hold"),
    (1200.0, "confirm", {"fencing_token": 1}, 410, "hold"),
    (1200.0, "release", {"fencing_token": 1, "remaining": 1}, 200, None),
]


@pytest.mark.parametrize(("ttl", "what", "body", "status", "reason"), OVERTAKEN)
async def test_an_end_in_the_very_commit_is_told(
    world: World, ttl: float, what: str, body: dict[str, Any], status: int, reason: str | None
) -> None:
    """Though the lease still lived when it was asked about. A release has given back what it said."""
    await world.broker.declare(terms(limit=2, ttl_seconds=ttl))
    here, pool = world.replica, world.broker.pool
    here.desk._caught_up = lambda _: True
    held = (await here.acquire("r", units=2)).json()
    await world.broker.set_clock(ttl)
    path = f"/leases/{held['lease_id']}/{what}" if what else "/lease-pools/sim-a/leases"
    async with pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM lease_pools FOR UPDATE")
            first = asyncio.create_task(here.call("DELETE", "/lease-pools/sim-a/requests/none"))
            await world.broker.until_waiting(first)
            asked = asyncio.create_task(here.call("POST", path, body))
            new = asyncio.create_task(here.acquire("new"))
            await harness.until(lambda: len(here.desk._queues.get("sim-a", ())) == 2)
        answer, _, _ = await asyncio.gather(asked, new, first)
    assert (answer.status_code, answer.json().get("reason")) == (status, reason), answer.text
    if status == 200:
        assert (answer.json()["released_units"], answer.json()["remaining"]) == (1, 0)
    else:
        assert slug(answer) == "lease-ended"
    again = await here.call("POST", path, body)
    assert (again.status_code, again.json().get("reason")) == (status, reason)


async def test_giving_up(world: World) -> None:
    """What waits is cancelled, what was granted meanwhile given back; then the id is spent."""
    await world.replica.acquire("held", units=2)
    await world.replica.acquire("next")
    path = "/lease-pools/sim-a/requests"
    first, again = [await world.replica.call("DELETE", f"{path}/next") for _ in range(2)]
    assert (first.status_code, first.json()) == (200, {"request_id": "next", "cancelled_units": 1, "released_units": 0})
    assert (again.status_code, again.json()["cancelled_units"]) == (200, 0)
    assert (await world.replica.call("GET", f"{path}/next")).json()["state"] == "cancelled"
    late = await world.replica.acquire("next")
    assert (late.status_code, late.json()["reason"]) == (410, "cancelled")
    granted = await world.replica.call("DELETE", f"{path}/held")
    assert granted.json()["released_units"] == 2
    assert await world.broker.held() == 0


START_NOW = {"request_id": "bens", "operation": "install", "units": 1, "started_at": instant(0)}
FIRST_YEAR = "0001-01-01T00:00:00+14:00"  # of the year before in UTC
START_LATER = START_NOW | {"request_id": "new", "started_at": instant(61)}


async def test_terms_are_changed_while_a_pool_works(world: World) -> None:
    """With a reason, under a revision, told and kept; a lower limit drains, a higher one admits who waits."""
    held = (await world.replica.acquire("held", units=2)).json()
    assert (await world.replica.acquire("next")).status_code == 202
    path, by = "/lease-pools/sim-a", "operator"
    change = {"limit": 1, "hold_seconds": 600.0, "mode": "enforce", "pacing": None, "reason": "quota was cut"}
    answer = await world.replica.call("PATCH", path, change | {"revision": 1}, by=by)
    assert answer.status_code == 200, answer.text
    assert {name: answer.json()[name] for name in ("limit", "hold_seconds", "pacing", "revision", "pinned")} == {
        "limit": 1,
        "hold_seconds": 600.0,
        "pacing": None,
        "revision": 2,
        "pinned": False,
    }
    stale = await world.replica.call("PATCH", path, change | {"revision": 1}, by=by)
    assert (stale.status_code, slug(stale), stale.json()["revision"]) == (409, "revision-conflict", 2)
    same = await world.replica.call("PATCH", path, change, by=by)
    assert same.json()["revision"] == 2
    await world.broker.decide()
    assert await world.broker.held() == 2
    assert [event for event in await world.broker.told() if isinstance(event, LeaseLimitChanged)] == [
        LeaseLimitChanged(lease_pool_id="sim-a", limit=1, previous_limit=2, reason="quota was cut")
    ]
    assert (await world.replica.call("POST", f"/leases/{held['lease_id']}/renew", {"fencing_token": 1})).is_success
    await world.replica.call("PATCH", path, {"limit": 3, "pacing": "off", "reason": "and raised"}, by=by)
    await world.broker.decide()
    assert await world.broker.held() == 3
    set_ = [row for row in (await world.replica.call("GET", f"{path}/history")).json()["items"] if row["kind"] == "set"]
    assert [(row["by"], row["reason"].rpartition(": ")[2]) for row in set_] == [
        ("operator", "and raised"),
        ("operator", "quota was cut"),
    ]


async def test_a_pinned_pool_has_the_limit_that_was_set(world: World) -> None:
    """However much a derived limit wants otherwise; unpinned, it follows again."""
    await world.broker.declare(terms(limit=2, policy=Policy(pacing="off", derived=Derived(per_unit=10.0))))
    path = "/lease-pools/sim-a"

    async def limit() -> tuple[int, str]:
        await world.broker.decide()
        (row,) = (await world.replica.call("GET", "/lease-pools")).json()["items"]
        return row["limit_in_force"], row["limit_reason"]

    async def put(units: int) -> Any:
        return await world.replica.call("PUT", f"{path}/units", {"units": units, "ttl_seconds": 60.0}, by="operator")

    answer = await put(1)
    assert (answer.status_code, answer.json()) == (200, {"id": "sim-a", "units": 1, "valid_until": instant(60)})
    assert await limit() == (10, "derived: 10 × 1 units")
    pinned = await world.replica.call("PATCH", path, {"pinned": True, "reason": "ratchet"}, by="operator")
    assert pinned.json()["pinned"] is True
    assert await limit() == (2, "pinned: ratchet")
    await world.replica.call("PATCH", path, {"pinned": False, "reason": "done"}, by="operator")
    assert await limit() == (10, "derived: 10 × 1 units")
    await world.broker.set_clock(60)
    assert await limit() == (10, "derived: 10 × 1 units, reported too long ago")
    await put(3)
    assert await limit() == (30, "derived: 10 × 3 units")
    alerts = [event for event in await world.broker.told() if isinstance(event, AlertRaised | AlertResolved)]
    assert [type(alert) for alert in alerts] == [AlertRaised, AlertResolved]


async def test_a_drained_pool_grants_nothing(world: World) -> None:
    """Who holds goes on, who asks waits and is told why; undrained, it grants at once."""
    lease = (await world.replica.acquire("held")).json()
    for _ in range(2):
        answer = await world.replica.call("POST", "/lease-pools/sim-a/drain", {"reason": "moving"}, by="operator")
        assert (answer.status_code, answer.json()) == (200, {"id": "sim-a", "drained": True, "held": 1})
    waits = await world.replica.acquire("next")
    assert (waits.status_code, waits.json()["reason"]) == (202, "nothing starts: drained: moving")
    assert waits.json()["eta_seconds"] is None
    assert (await world.replica.call("POST", f"/leases/{lease['lease_id']}/renew", {"fencing_token": 1})).is_success
    answer = await world.replica.call("POST", "/lease-pools/sim-a/undrain", {"reason": "moved"}, by="operator")
    assert answer.json()["drained"] is False
    await world.broker.decide()
    assert (await world.replica.acquire("next")).status_code == 200
    told = (await world.replica.call("GET", "/lease-pools/sim-a/history")).json()["items"]
    assert [row["kind"] for row in told if row["by"] == "operator"] == ["undrained", "drained"]


#   what closes a pool, what opens it
OPENED = [("POST", "/drain", {}, "POST", "/undrain", {}), ("PATCH", "", {"limit": 0}, "PATCH", "", {"limit": 1})]


@pytest.mark.parametrize(("method", "path", "closing", "again", "where", "opening"), OPENED)
async def test_a_pool_that_is_opened_grants_at_once(
    world: World, method: str, path: str, closing: dict[str, Any], again: str, where: str, opening: dict[str, Any]
) -> None:
    """To whoever asked before and asks again to stay: what people change rings for a decision, no tick has to come."""
    here, bell = world.replica, asyncio.Event()
    here.runtime.bells.append(bell)
    loop = DecideLoop(
        caught_up=lambda _: False, lost_linger_seconds=70, waiter_ttl_seconds=120, committed=here.desk.decided
    )

    async def decide() -> None:
        while await bell.wait():
            bell.clear()
            while await loop.step(here.pool):
                pass

    world.broker.start(decide())
    pool, why = "/lease-pools/sim-a", {"reason": "moving"}
    assert (await here.call(method, pool + path, closing | why, by="operator")).is_success
    assert (await here.acquire("next")).status_code == 202
    stays = asyncio.create_task(here.acquire("next", wait_seconds=10.0))
    await harness.until(lambda: here.desk.staying == 1)
    assert (await here.call(again, pool + where, opening | why, by="operator")).is_success
    answer = await stays
    assert (answer.status_code, answer.json()["state"]) == (200, "confirmed")


async def test_what_started_without_a_lease_is_charged_once(world: World) -> None:
    """It holds back others until its hold passes, from when it started; what is over by then counts nothing."""
    await world.broker.set_clock(2000)
    starts = [
        {"request_id": name, "operation": "install", "units": units, "started_at": instant(at)}
        for name, units, at in (("recent", 2, 1900), ("long over", 1, 0))
    ]
    for charged in (2, 0):
        answer = await world.replica.call("POST", "/lease-pools/sim-a/unleased", {"starts": starts})
        assert (answer.status_code, answer.json()["charged"]) == (200, charged), answer.text
        states = [(row["request_id"], row["state"], row["hold_until"]) for row in answer.json()["items"]]
        assert states == [("recent", "confirmed", instant(3100)), ("long over", "released", instant(1200))]
    assert await world.broker.held() == 2
    fast = starts[0] | {"request_id": "fast clock", "units": 1, "started_at": instant(9000)}
    answer = await world.replica.call("POST", "/lease-pools/sim-a/unleased", {"starts": [fast]})
    assert [row["hold_until"] for row in answer.json()["items"]] == [instant(3200)]
    assert (await world.replica.acquire("next")).status_code == 202
    await world.broker.set_clock(3100)
    await world.broker.decide()
    assert (await world.replica.acquire("next")).status_code == 200


async def test_a_partial_release_said_again(world: World) -> None:
    """After a lost answer: what remains is the same, whoever else gave back meanwhile."""
    lease = (await world.replica.acquire("r", units=2)).json()
    body = {"fencing_token": lease["fencing_token"], "remaining": 1}
    for released in (1, 0):
        answer = await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", body)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["released_units"], answer.json()["remaining"]) == (released, 1)
    assert await world.broker.held() == 1
    both = await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", body | {"units": 1})
    assert (both.status_code, slug(both)) == (422, "invalid-request")


async def test_a_release_after_the_hold_is_heard_once(world: World) -> None:
    """Its answer says that nothing was given back, however often; what its holder met closes the pool and is counted
    once. A partial release is no last word: it may have been said while the lease lived."""
    await world.broker.declare(terms(limit=2, ttl_seconds=1200))
    lease = (await world.replica.acquire("r", units=2)).json()
    await world.broker.set_clock(1200)
    await world.broker.decide()
    path, before = f"/leases/{lease['lease_id']}", THROTTLES.labels("sim-a")._value.get()
    shown = (await world.replica.call("GET", path)).json()
    body = {"fencing_token": 1, "throttled": True, "retry_after_seconds": 60.0, "result": "failed"}
    for last_word, counted in (({"remaining": 1}, 0), ({"remaining": 0}, 1), ({}, 1), ({"units": 1}, 1)):
        answer = await world.replica.call("POST", f"{path}/release", body | last_word)
        assert (answer.status_code, answer.json()) == (
            200,
            {"lease_id": lease["lease_id"], "released_units": 0, "remaining": 0},
        )
        assert THROTTLES.labels("sim-a")._value.get() == before + counted
    for call, status in ((body | {"fencing_token": 9}, 409), (body, 403)):
        answer = await world.replica.call("POST", f"{path}/release", call, by="ann" if status == 409 else "ben")
        assert answer.status_code == status
    waits = await world.replica.acquire("next")
    assert (waits.status_code, waits.json()["reason"][:28]) == (202, "the provider asked to wait u")
    assert (await world.replica.call("GET", path)).json() == shown
    late = await world.replica.call("POST", f"{path}/renew", {"fencing_token": 1})
    assert (late.status_code, late.json()["reason"]) == (410, "hold")
    trail = (await world.replica.call("GET", f"{path}/history")).json()["items"]
    assert [(entry["kind"], entry["by"]) for entry in trail[-2:]] == [("heard", "ann"), ("throttled", "ann")]


async def test_a_report_of_the_past(world: World) -> None:
    """What holders told here, against the terms that are asked about."""
    for n in range(2):
        lease = (await world.replica.acquire(f"r{n}")).json()
        await world.broker.set_clock(100 * (n + 1))
        body = {"fencing_token": n + 1, "throttled": n == 1}
        await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", body)
    query = "since_seconds=3600&limit=1&hold_seconds=60"
    answer = await world.replica.call("GET", f"/lease-pools/sim-a/report?{query}", by="")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["id"], told["mode"], told["requests"], told["throttled"]) == ("sim-a", "enforce", 2, 1)
    (what_if,) = told["what_if"]
    assert (what_if["limit_units"], what_if["hold_seconds"], what_if["cut_short"]) == (1, 60.0, 2)
    held = next(row for row in told["spreads"] if row["of"] == "seconds held")
    assert (held["count"], held["p50"]) == (2, 100.0)


async def test_more_than_is_ever_granted_at_once(world: World) -> None:
    """Refused at the door, with what may be asked for; accepted where the limit may rise to it, or does not count."""
    kept = {"heavy": Operation(weight=2), "destroy": Operation(reserved_units=1, max_wait_seconds=60)}
    never = {
        "declared": terms("declared", 4),
        "kept": terms("kept", 4, policy=Policy(pacing="off", operations=kept)),
        "adaptive": terms("adaptive", 2, policy=Policy(pacing="off", adaptive=Bounds(floor=1, ceiling=4))),
    }
    accepted = {
        "closed": terms("closed", 0),
        "shadow": terms("shadow", 4, policy=Policy(mode=Mode.SHADOW)),
        "derived": terms("derived", 4, policy=Policy(pacing="off", derived=Derived(per_unit=1))),
    }
    await world.broker.declare(*never.values(), *accepted.values())
    here = world.replica
    before = await world.rows()
    for name, most, operation in (
        ("declared", 4, "install"),
        ("adaptive", 4, "install"),
        ("kept", 3, "install"),
        ("kept", 1, "heavy"),
    ):
        refused = await here.acquire("r", name, units=most + 1, operation=operation)
        assert (refused.status_code, slug(refused)) == (422, "too-many-units")
        assert refused.json()["units_max"] == most
        assert f"at most {most} at once" in refused.json()["detail"]
        gang_of = {"request_id": "g", "operation": operation, "members": [{"pool": name, "units": most + 1}]}
        refused = await here.call("POST", "/lease-gangs", gang_of)
        assert (refused.status_code, slug(refused)) == (422, "too-many-units")
    assert await world.rows() == before
    for name, units, operation in (
        ("declared", 4, "install"),
        ("adaptive", 4, "install"),
        ("kept", 5, "destroy"),
        ("closed", 1, "install"),
        ("shadow", 9, "install"),
        ("derived", 9, "install"),
    ):
        assert (await here.acquire("r", name, units=units, operation=operation)).status_code in (200, 202)
    await world.broker.declare(terms("declared", 3), *accepted.values())
    assert (await here.acquire("late", "declared", units=3)).status_code == 202
    await world.broker.declare(terms("declared", 2), *accepted.values())
    waits = (await here.acquire("late", "declared", units=3)).json()
    assert (waits["eta_seconds"], waits["retry_after_seconds"]) == (None, 60.0)
    assert waits["reason"] == "asks for 3 units, more than the limit of 2 allows: as declared"


def gang(*pools: str, request_id: str = "g", **body: Any) -> dict[str, Any]:
    return {"request_id": request_id, "members": [{"pool": pool, "units": 1} for pool in pools]} | body


async def test_a_gang_starts_in_all_its_pools_or_in_none(world: World) -> None:
    """Told where it waits longest, woken by the last unit, confirmed in the call; the same id is the same gang."""
    await world.broker.declare(terms(limit=2), terms("sim-b", limit=1), terms("sim-c"))
    here = world.replica
    held = (await here.acquire("held", "sim-b")).json()
    waits = await here.call("POST", "/lease-gangs", gang("sim-b", "sim-a"))
    assert (waits.status_code, waits.json()["state"]) == (202, "waiting")
    assert waits.json()["reason"].startswith("sim-b: ")
    assert [await world.broker.held(pool) for pool in ("sim-a", "sim-b")] == [0, 1]
    waiting = asyncio.create_task(here.call("POST", "/lease-gangs", gang("sim-b", "sim-a", wait_seconds=60.0)))
    await harness.until(lambda: here.desk.staying == 1)
    await here.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
    loop = GangLoop(lost_linger_seconds=70, committed=here.desk.decided)
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


REFUSED: list[tuple[str, str, str, Any, str, int, str]] = [
    # method, path, by, body, header, status, slug
    ("POST", "/lease-pools/nowhere/leases", "ann", {"request_id": "x"}, "", 404, "unknown-lease-pool"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "units": -1}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "units": 0}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "units": True}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "units": 10**9}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x" * 501}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "a\0b"}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": ""}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "priority": 10}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "wait_seconds": 61}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "wait": 1}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "held", "units": 1}, "", 409, "request-conflict"),
    ("POST", "/lease-pools/sim-a/leases", "ben", {"request_id": "held", "units": 2}, "", 403, "wrong-owner"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x"}, "Slipway-Sent-At", 422, "clock-ahead"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x"}, "Date", 422, "clock-ahead"),
    ("POST", "/lease-pools/sim-a/leases", "", {"request_id": "x"}, "", 401, "no-token"),
    ("POST", "/lease-pools/sim-a/leases", "stranger", {"request_id": "x"}, "", 401, "unknown-token"),
    ("POST", "/lease-pools/sim-a/leases", "cid", {"request_id": "x"}, "", 403, "scope-missing"),
    ("POST", "/lease-pools/sim-a/leases", "operator", {"request_id": "x"}, "", 403, "scope-missing"),
    (
        "POST",
        "/lease-pools/sim-a/leases",
        "ben",
        {"request_id": "x", "replaces": {"lease_id": "HELD", "fencing_token": 1}},
        "",
        403,
        "wrong-owner",
    ),
    (
        "POST",
        "/lease-pools/sim-a/leases",
        "ann",
        {"request_id": "x", "replaces": {"lease_id": "HELD", "fencing_token": 7}},
        "",
        409,
        "stale-token",
    ),
    *(
        refused
        for what in ("renew", "heartbeat", "confirm", "release")
        for refused in (
            ("POST", f"/leases/HELD/{what}", "ben", {"fencing_token": 1}, "", 403, "wrong-owner"),
            ("POST", f"/leases/HELD/{what}", "cid", {"fencing_token": 1}, "", 403, "scope-missing"),
            ("POST", f"/leases/HELD/{what}", "nobody", {"fencing_token": 1}, "", 403, "scope-missing"),
            ("POST", f"/leases/HELD/{what}", "", {"fencing_token": 1}, "", 401, "no-token"),
            ("POST", f"/leases/HELD/{what}", "ann", {"fencing_token": 2}, "", 409, "stale-token"),
            ("POST", f"/leases/HELD/{what}", "ann", {"fencing_token": -1}, "", 422, "invalid-request"),
            ("POST", f"/leases/HELD/{what}", "ann", {"fencing_token": 1}, "Slipway-Sent-At", 422, "clock-ahead"),
            ("POST", f"/leases/gone/{what}", "ann", {"fencing_token": 1}, "", 404, "unknown-lease"),
            ("POST", f"/leases/gone/{what}", "nobody", {"fencing_token": 1}, "", 403, "scope-missing"),
            ("POST", f"/leases/{'x' * 501}/{what}", "ann", {"fencing_token": 1}, "", 422, "invalid-request"),
        )
    ),
    ("POST", "/leases/HELD/release", "ann", {"fencing_token": 1, "units": -1}, "", 422, "invalid-request"),
    ("GET", "/leases/gone", "", None, "", 404, "unknown-lease"),
    ("GET", "/leases/gone/history", "", None, "", 404, "unknown-lease"),
    ("GET", "/leases?pool=nowhere", "", None, "", 404, "unknown-lease-pool"),
    ("GET", "/leases?mine=true", "", None, "", 401, "no-token"),
    ("GET", "/lease-pools/nowhere/requests", "", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/nowhere/requests/x", "", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/sim-a/requests/x", "", None, "", 404, "unknown-request"),
    ("DELETE", "/lease-pools/sim-a/requests/x", "ann", None, "", 404, "unknown-request"),
    ("DELETE", "/lease-pools/nowhere/requests/x", "ann", None, "", 404, "unknown-lease-pool"),
    ("DELETE", "/lease-pools/sim-a/requests/held", "ben", None, "", 403, "wrong-owner"),
    ("DELETE", "/lease-pools/sim-a/requests/held", "cid", None, "", 403, "scope-missing"),
    *(
        refused
        for method, path, body in (
            ("PATCH", "", {"limit": 5, "reason": "x"}),
            ("POST", "/drain", {"reason": "x"}),
            ("POST", "/undrain", {"reason": "x"}),
            ("PUT", "/units", {"units": 1, "ttl_seconds": 5.0}),
        )
        for refused in (
            (method, f"/lease-pools/sim-a{path}", "ann", body, "", 403, "scope-missing"),
            (method, f"/lease-pools/sim-a{path}", "", body, "", 401, "no-token"),
            (method, f"/lease-pools/nowhere{path}", "operator", body, "", 404, "unknown-lease-pool"),
            (method, f"/lease-pools/sim-a{path}", "operator", body, "Slipway-Sent-At", 422, "clock-ahead"),
            (method, f"/lease-pools/sim-a{path}", "operator", body | {"more": 1}, "", 422, "invalid-request"),
        )
    ),
    ("PATCH", "/lease-pools/sim-a", "operator", {"limit": 5}, "", 422, "invalid-request"),
    ("PATCH", "/lease-pools/sim-a", "operator", {"limit": -1, "reason": "x"}, "", 422, "invalid-request"),
    ("PATCH", "/lease-pools/sim-a", "operator", {"hold_seconds": 10, "reason": "x"}, "", 422, "invalid-terms"),
    (
        "PATCH",
        "/lease-pools/sim-a",
        "operator",
        {"limit": 5, "reason": "x", "revision": 9},
        "",
        409,
        "revision-conflict",
    ),
    ("PUT", "/lease-pools/sim-a/units", "operator", {"units": 1, "ttl_seconds": 5.0}, "", 409, "not-derived"),
    ("PUT", "/lease-pools/sim-a/units", "operator", {"units": -1, "ttl_seconds": 5.0}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/unleased", "ann", {"starts": [START_NOW]}, "", 403, "wrong-owner"),
    (
        "POST",
        "/lease-pools/sim-a/unleased",
        "ann",
        {"starts": [START_NOW | {"started_at": FIRST_YEAR}]},
        "",
        422,
        "invalid-request",
    ),
    ("GET", f"/lease-pools/sim-a/history?since={quote(FIRST_YEAR)}", "ann", None, "", 422, "invalid-request"),
    (
        "POST",
        "/lease-pools/sim-a/leases",
        "ann",
        {"request_id": "x", "group": {"name": "g", "size": 3, "spread_seconds": 60, "member": 3}},
        "",
        422,
        "invalid-request",
    ),
    ("POST", "/lease-pools/sim-a/unleased", "ann", {"starts": []}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/unleased", "cid", {"starts": [START_LATER]}, "", 403, "scope-missing"),
    ("POST", "/lease-pools/nowhere/unleased", "ann", {"starts": [START_NOW]}, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/nowhere/history", "", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/sim-a/history?since=noon", "", None, "", 422, "invalid-request"),
    ("GET", "/lease-pools/nowhere/report", "", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/sim-a/report?limit=0", "", None, "", 422, "invalid-request"),
]


async def test_what_is_refused_changes_nothing(world: World) -> None:
    """A clear problem for each, and every row as it was."""
    held = (await world.replica.acquire("held", units=2)).json()["lease_id"]
    await world.replica.acquire("waits")
    await world.replica.acquire("bens", by="ben")
    before = await world.rows()
    ahead = utc_now() + timedelta(seconds=100)
    told = {"Slipway-Sent-At": ahead.isoformat(), "Date": format_datetime(ahead, usegmt=True)}
    for method, path, by, body, header, status, expected in REFUSED:
        case = f"{method} {path[:50]} by {by!r} {body}"
        sent = {"replaces": body["replaces"] | {"lease_id": held}} if body and "replaces" in body else {}
        headers = {header: told[header]} if header else {}
        answer = await world.replica.call(method, path.replace("HELD", held), body and body | sent, by=by, **headers)
        assert (answer.status_code, slug(answer)) == (status, expected), f"{case}: {answer.text}"
        problem = answer.json()
        assert problem["status"] == status
        assert problem["title"], case
        assert problem["detail"], case
    assert await world.rows() == before


async def test_a_former_holder(world: World) -> None:
    """Its token is another's by now, or its lease has ended: told apart, and nothing changed."""
    old = (await world.replica.acquire("old", units=2)).json()
    await world.replica.call("POST", f"/leases/{old['lease_id']}/release", {"fencing_token": 1})
    new = (await world.replica.acquire("new", units=2)).json()
    before = await world.rows()
    answer = await world.replica.call("POST", f"/leases/{new['lease_id']}/release", {"fencing_token": 1})
    assert (answer.status_code, slug(answer)) == (409, "stale-token")
    answer = await world.replica.call("POST", f"/leases/{old['lease_id']}/renew", {"fencing_token": 1})
    assert (answer.status_code, answer.json()["reason"]) == (410, "released")
    assert await world.rows() == before


async def test_an_administrator_may_act_for_others(world: World) -> None:
    lease = (await world.replica.acquire("r")).json()
    released = await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1}, by="root")
    assert (released.status_code, released.json()["released_units"]) == (200, 1)


async def test_a_clock_that_is_nearly_right(world: World) -> None:
    """A minute ahead passes, and so does any time gone by; what is no time does not."""
    for said, status in (
        (utc_now() + timedelta(seconds=50), 200),
        (utc_now() - timedelta(days=400), 200),
        ("soon", 422),
        ("2026-01-01T12:00:00", 422),
    ):
        header = said if isinstance(said, str) else said.isoformat()
        answer = await world.replica.call(
            "POST", "/lease-pools/sim-a/leases", {"request_id": "r"}, **{"Slipway-Sent-At": header}
        )
        assert answer.status_code == status, answer.text


async def test_leases_by_pool_and_tenant(world: World) -> None:
    await world.broker.declare(terms(limit=2), terms("sim-b", limit=2))
    for pool, tenant in (("sim-a", "x"), ("sim-a", "y"), ("sim-b", "x")):
        await world.replica.acquire(f"{pool}-{tenant}", pool, tenant=tenant)

    async def listed(query: str) -> list[str]:
        answer = await world.replica.call("GET", f"/leases{query}", by="")
        assert answer.status_code == 200, answer.text
        return [row["request_id"] for row in answer.json()["items"]]

    assert await listed("") == ["sim-a-x", "sim-a-y", "sim-b-x"]
    assert await listed("?pool=sim-a") == ["sim-a-x", "sim-a-y"]
    assert await listed("?tenant=x") == ["sim-a-x", "sim-b-x"]
    assert await listed("?pool=sim-a&tenant=y&limit=1") == ["sim-a-y"]


async def test_every_write_is_documented_with_its_token(world: World) -> None:
    """The OpenAPI document names a body and the bearer scheme for each."""
    paths = (await world.replica.call("GET", "/openapi.json")).json()["paths"]
    writes = [
        (path, method, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if method != "get" and not path.startswith("/dead-letters")
    ]
    assert len(writes) > 5
    for path, method, operation in writes:
        assert operation["security"] == [{"HTTPBearer": []}], (method, path)
        assert method == "delete" or "requestBody" in operation, (method, path)


async def stays(replica: Replica, request_id: str = "next") -> Answer:
    """Ask, as a caller does that is ready to wait."""
    fact = wanted("sim-a", Acquire.model_validate({"request_id": request_id}), "ann")
    return await replica.desk.settle(replica.pool, Errand(fact=fact, caller="ann", confirm=True, wait=True))


async def test_who_waits_for_what_is_cancelled_is_told(world: World) -> None:
    """At once, and not when its patience ends."""
    await world.replica.acquire("held", units=2)
    staying = asyncio.create_task(world.replica.desk.stay(await stays(world.replica), 60.0, never()))
    await world.replica.call("DELETE", "/lease-pools/sim-a/requests/next")
    assert await staying is True
    late = await world.replica.acquire("next", wait_seconds=60)
    assert (late.status_code, late.json()["reason"]) == (410, "cancelled")


async def test_units_come_back_though_no_decision_can_be_made(world: World) -> None:
    """What is said is recorded, and the deciding left to the loop, which tells of its failure."""
    held = (await world.replica.acquire("held", units=2)).json()
    assert (await world.replica.acquire("next")).status_code == 202
    await world.broker.pool.execute("""UPDATE lease_pools SET policy = policy || '{"ageing_seconds": 0}'""")
    released = await world.replica.call(
        "POST", f"/leases/{held['lease_id']}/release", {"fencing_token": held["fencing_token"]}
    )
    assert released.status_code == 200
    assert (await world.replica.acquire("later")).status_code == 202
    assert await world.broker.held() == 0


async def never() -> None:
    await asyncio.Event().wait()


async def test_who_waits_at_another_replica_is_woken(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a notification, long before a look of its own would find the grant."""
    monkeypatch.setattr(wakes, "LOOK_SECONDS", 3600.0)
    async with world_on(postgres, tmp_path, replicas=2) as world:
        here, there = world.replicas
        held = (await here.acquire("held", units=2)).json()
        staying = asyncio.create_task(there.desk.stay(await stays(there), 60.0, never()))
        await here.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
        assert await staying is True
        answer = await there.acquire("next")
    assert (answer.status_code, answer.json()["state"]) == (200, "confirmed")


async def test_a_lost_notification_holds_nobody_up(world: World) -> None:
    """A look wakes whoever was granted something since, and nobody else."""
    await world.broker.tell(ask("held", 2))
    (held,) = await world.broker.grants()
    here = world.replica
    staying = [asyncio.create_task(here.desk.stay(await stays(here, name), 60.0, never())) for name in ("next", "last")]
    await world.broker.tell(release(held, 1))
    await world.broker.decide()  # in a process that knows nothing of who stays here
    await here.desk.look(here.pool)
    assert await staying[0] is True
    assert here.desk.staying == 1
    await world.broker.tell(release(held, 1))
    await world.broker.decide()
    await here.desk.look(here.pool)
    assert await staying[1] is True


async def test_a_caller_that_hung_up_confirms_nothing(world: World) -> None:
    """Nobody heard of the grant, so it stays a reserve that time takes back."""
    held = (await world.replica.acquire("held", units=2)).json()
    here, gone = world.replica, asyncio.Event()
    staying = asyncio.create_task(here.desk.stay(await stays(here), 60.0, gone.wait()))
    gone.set()
    assert await staying is False
    assert here.desk.staying == 0
    await here.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
    (lease,) = (await here.call("GET", "/leases?pool=sim-a")).json()["items"]
    assert (lease["request_id"], lease["state"]) == ("next", "reserved")


async def test_a_stranger_that_is_refused_confirms_nothing(world: World) -> None:
    """Though it asks under the id of the very request that is granted beside it."""
    here, pool = world.replica, world.broker.pool
    held = (await here.acquire("held", units=2)).json()
    await here.acquire("next")
    async with pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM lease_pools FOR UPDATE")
            first = asyncio.create_task(here.call("DELETE", "/lease-pools/sim-a/requests/none"))
            await world.broker.until_waiting(first)
            released = asyncio.create_task(
                here.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
            )
            strange = asyncio.create_task(here.acquire("next", by="ben"))
            await harness.until(lambda: len(here.desk._queues.get("sim-a", ())) == 2)
        answers = await asyncio.gather(released, strange, first)
    assert [answer.status_code for answer in answers] == [200, 403, 404]
    (lease,) = (await here.call("GET", "/leases?pool=sim-a")).json()["items"]
    assert (lease["request_id"], lease["state"]) == ("next", "reserved")
