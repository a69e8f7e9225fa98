"""Leases and lease pools over HTTP: acquire, renew, release, terms at run time, gangs, unleased starts."""

import asyncio
from typing import Any

import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.lease import LeaseLimitChanged
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.terms import Backoff, Derived, Operation, Policy
from slipway_lease_broker.loops.decide import DecideLoop
from slipway_lease_broker.metrics import REFUSED_COMMANDS, THROTTLES
from tests.support import harness
from tests.support.lease_broker import NOT_RECEIVING, acquire_request, admissions, terms
from tests.support.lease_broker_http import World, instant, slug


async def test_a_lease_from_acquire_to_release(world: World) -> None:
    """Granted and confirmed in one call, renewed, released; each answer is the current lease."""
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
        "holder": "",
        "units": 2,
        "fencing_token": 1,
        "state": "confirmed",
        "granted_at": instant(0),
        "expires_at": instant(300),
        "hold_until": instant(600),
        "ended_at": None,
        "ttl_seconds": 300.0,
        "ttl_seconds_left": 300.0,
        "hold_seconds_left": 600.0,
        "waited_seconds": 0.0,
        "mode": "enforce",
        "advised_wait_seconds": None,
        "reason": "",
        "unleased_by": None,
    }
    path, token = f"/leases/{lease['lease_id']}", {"fencing_token": 1}
    await world.broker.set_clock(100)
    renewed = await broker.call("POST", f"{path}/renew", token | {"progress": "20 %"})
    assert (renewed.status_code, renewed.json()["expires_at"]) == (200, instant(400))
    assert (renewed.json()["ttl_seconds_left"], renewed.json()["hold_seconds_left"]) == (300.0, 500.0)
    await world.broker.set_clock(200)
    assert (await broker.call("POST", f"{path}/heartbeat", token)).json()["expires_at"] == instant(500)
    (listed,) = (await broker.call("GET", "/leases?mine=true")).json()["items"]
    assert (listed["ttl_seconds"], listed["ttl_seconds_left"]) == (300.0, 300.0)
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


async def test_the_full_ttl_is_shown_also_where_the_hold_leaves_less(world: World) -> None:
    """Holders time their renewals by it: the TTL left never reaches past the hold."""
    broker = world.replica
    lease = (await broker.acquire("r", hold_seconds=200)).json()
    path, token = f"/leases/{lease['lease_id']}", {"fencing_token": 1}
    await world.broker.set_clock(150)
    bodies = [
        lease,
        (await broker.call("POST", f"{path}/renew", token)).json(),
        (await broker.call("POST", f"{path}/confirm", token)).json(),
        (await broker.call("GET", path)).json(),
        (await broker.call("GET", "/lease-pools/sim-a/requests/r")).json()["leases"][0],
    ]
    assert [(body["ttl_seconds"], body["ttl_seconds_left"]) for body in bodies] == [(300, 200), *[(300, 50)] * 4]


async def test_an_archived_pool_takes_no_new_requests(world: World) -> None:
    """They would wait forever. Existing leases are still served."""
    held = (await world.replica.acquire("held")).json()
    await world.broker.pool.execute("UPDATE lease_pools SET archived = true, dirty = true")
    before = await world.rows()
    refused = await world.replica.acquire("new")
    assert (refused.status_code, slug(refused)) == (404, "unknown-lease-pool")
    assert await world.rows() == before
    assert (await world.replica.acquire("held")).json()["lease_id"] == held["lease_id"]


async def test_leases_of_the_own_token_are_listed(world: World) -> None:
    """Neither those of other tokens nor those requested over Kafka, which are Slipway's own launches."""
    await world.replica.acquire("anns", operation="destroy")
    await world.broker.send(acquire_request("launch", 1))
    await world.broker.decide()

    async def listed(query: str, by: str = "ann") -> list[str]:
        rows = (await world.replica.call("GET", f"/leases{query}", by=by)).json()["items"]
        return [row["request_id"] for row in rows]

    assert await listed("?mine=true") == ["anns"]
    assert await listed("?mine=true&pool=sim-a") == ["anns"]
    assert await listed("?mine=true", "ben") == []
    assert await listed("") == ["anns", "launch"]


async def test_the_answer_names_the_end_of_a_backoff(world: World) -> None:
    """A unit is free, but the tenant's last lease failed: the end of the backoff is the estimate and the time of the
    next poll."""
    await world.broker.declare(terms(limit=2, policy=Policy(pacing="off", backoff=Backoff(seconds=40))))
    failing = (await world.replica.acquire("failing")).json()
    path = f"/leases/{failing['lease_id']}/release"
    await world.replica.call("POST", path, {"fencing_token": 1, "result": "failed"})
    await world.broker.set_clock(10)
    answer = await world.replica.acquire("again")
    published = answer.json()
    assert (answer.status_code, published["eta_seconds"], published["retry_after_seconds"]) == (202, 30.0, 30.0)
    assert published["reason"] == "tenant ann backs off after 1 failure; not before 2026-01-01T12:00:40+00:00"
    assert answer.headers["Retry-After"] == "30"
    assert (await world.replica.acquire("other", tenant="team-calm")).status_code == 200


async def test_stale_tokens_are_counted(world: World) -> None:
    """Each call refused for its token is counted, and no other refusal."""
    lease = (await world.replica.acquire("r")).json()
    before = REFUSED_COMMANDS.labels("stale token")._value.get()
    for what in ("renew", "confirm", "release"):
        path = f"/leases/{lease['lease_id']}/{what}"
        assert (await world.replica.call("POST", path, {"fencing_token": 9})).status_code == 409
        assert (await world.replica.call("POST", path, {"fencing_token": 1}, by="ben")).status_code == 403
    assert REFUSED_COMMANDS.labels("stale token")._value.get() == before + 3


async def test_the_same_request_is_one_lease(world: World) -> None:
    """However often it is repeated, concurrently and later: the same lease and token, and no other unit."""
    answers = await asyncio.gather(*(world.replica.acquire("r") for _ in range(20)))
    answers.append(await world.replica.acquire("r"))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["lease_id"] for answer in answers}) == 1
    assert await world.broker.held() == 1


async def test_commands_that_arrive_together_are_decided_together(world: World) -> None:
    """Requests that arrive while a batch commits are one transaction, and never exceed the limit."""
    pool = world.broker.pool
    async with pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM lease_pools FOR UPDATE")
            calls = [asyncio.create_task(world.replica.acquire("r0"))]
            await world.broker.until_waiting(*calls)
            calls += [asyncio.create_task(world.replica.acquire(f"r{n}")) for n in range(1, 50)]
            await harness.until(lambda: len(world.replica.group_commit._queues.get("sim-a", ())) == 49)
        answers = await asyncio.gather(*calls)
    assert sorted(answer.status_code for answer in answers) == [200] * 2 + [202] * 48
    assert await world.broker.held() == 2
    assert await pool.fetchval("SELECT count(DISTINCT xmin::text) FROM requests") == 2


async def test_a_grant_to_be_confirmed_separately(world: World) -> None:
    """With confirm: false it is reserved until its holder confirms it or the reserve time ends."""
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


async def test_an_attempt_replaces_an_earlier_one(world: World) -> None:
    """The old lease ends in the same transaction, and its holder gets the reason."""
    old = (await world.replica.acquire("one", units=2)).json()
    replaced = {"lease_id": old["lease_id"], "fencing_token": old["fencing_token"]}
    new = await world.replica.acquire("two", units=2, replaces=replaced)
    assert (new.status_code, new.json()["fencing_token"]) == (200, 2)
    assert await world.broker.held() == 2
    late = await world.replica.call("POST", f"/leases/{old['lease_id']}/renew", {"fencing_token": 1})
    assert (late.status_code, late.json()["reason"]) == (410, "replaced")


async def test_ended_leases_are_answered_with_their_reason(world: World) -> None:
    """To renewals, and to repeated requests."""
    lease = (await world.replica.acquire("r")).json()
    path, token = f"/leases/{lease['lease_id']}", {"fencing_token": 1}
    await world.broker.set_clock(300)
    await world.broker.decide()
    for what in ("renew", "heartbeat", "confirm", "release"):
        answer = await world.replica.call("POST", f"{path}/{what}", token)
        assert (answer.status_code, slug(answer), answer.json()["reason"]) == (410, "lease-ended", "lost")
    again = await world.replica.acquire("r")
    assert (again.status_code, slug(again), again.json()["reason"]) == (410, "lease-ended", "lost")


#   command as the deadline passes, status, reason of a refusal
OVERTAKEN = [
    (300.0, "", {"request_id": "r", "units": 2}, 410, "lost"),
    (1200.0, "", {"request_id": "r", "units": 2}, 410, "hold"),
    (1200.0, "renew", {"fencing_token": 1}, 410, "hold"),
    (1200.0, "confirm", {"fencing_token": 1}, 410, "hold"),
    (1200.0, "release", {"fencing_token": 1, "remaining": 1}, 200, None),
]


@pytest.mark.parametrize(("ttl", "what", "body", "status", "reason"), OVERTAKEN)
async def test_an_end_in_the_same_commit_is_answered(
    world: World, ttl: float, what: str, body: dict[str, Any], status: int, reason: str | None
) -> None:
    """Although the lease was alive when the command arrived. A release has taken effect."""
    await world.broker.declare(terms(limit=2, ttl_seconds=ttl))
    here, pool = world.replica, world.broker.pool
    here.group_commit._admissions = admissions(waiters=here.grant_waiters, waiter_ttl_seconds=120)
    held = (await here.acquire("r", units=2)).json()
    await world.broker.set_clock(ttl)
    path = f"/leases/{held['lease_id']}/{what}" if what else "/lease-pools/sim-a/leases"
    async with pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM lease_pools FOR UPDATE")
            first = asyncio.create_task(here.call("DELETE", "/lease-pools/sim-a/requests/none"))
            await world.broker.until_waiting(first)
            command_call = asyncio.create_task(here.call("POST", path, body))
            new = asyncio.create_task(here.acquire("new"))
            await harness.until(lambda: len(here.group_commit._queues.get("sim-a", ())) == 2)
        answer, _, _ = await asyncio.gather(command_call, new, first)
    assert (answer.status_code, answer.json().get("reason")) == (status, reason), answer.text
    if status == 200:
        assert (answer.json()["released_units"], answer.json()["remaining"]) == (1, 0)
    else:
        assert slug(answer) == "lease-ended"
    again = await here.call("POST", path, body)
    assert (again.status_code, again.json().get("reason")) == (status, reason)


async def test_cancel(world: World) -> None:
    """Waiting units are cancelled, units granted in the meantime released; the request id cannot be used again."""
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


async def test_terms_are_changed_at_run_time(world: World) -> None:
    """With a reason and a revision, published and recorded; after a lower limit usage falls first, a higher one grants
    to waiting requests."""
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
    assert [event for event in await world.broker.events() if isinstance(event, LeaseLimitChanged)] == [
        LeaseLimitChanged(lease_pool_id="sim-a", limit=1, previous_limit=2, reason="quota was cut")
    ]
    assert (await world.replica.call("POST", f"/leases/{held['lease_id']}/renew", {"fencing_token": 1})).is_success
    await world.replica.call("PATCH", path, {"limit": 2, "pacing": "off", "reason": "and raised"}, by=by)
    raised = await world.replica.call("PATCH", path, {"limit": 3, "reason": "raised more"}, by=by)
    assert raised.json()["result"] == "updated"
    await world.broker.decide()
    assert await world.broker.held() == 3
    set_ = [row for row in (await world.replica.call("GET", f"{path}/history")).json()["items"] if row["kind"] == "set"]
    assert [(row["by"], row["reason"].rpartition(": ")[2]) for row in set_] == [
        ("operator", "raised more"),
        ("operator", "and raised"),
        ("operator", "quota was cut"),
    ]


async def test_a_pinned_pool_has_the_limit_that_was_set(world: World) -> None:
    """A derived limit has no effect on it; unpinned, the pool follows the derived limit again."""
    await world.broker.declare(terms(limit=2, policy=Policy(pacing="off", derived=Derived(per_unit=10.0))))
    path = "/lease-pools/sim-a"

    async def limit() -> tuple[int, str]:
        await world.broker.decide()
        (row,) = (await world.replica.call("GET", "/lease-pools")).json()["items"]
        return row["limit_in_force"], row["limit_reason"]

    async def listed(open_: str) -> list[str]:
        rows = (await world.replica.call("GET", f"/alerts?open={open_}")).json()["items"]
        return [row["kind"] for row in rows]

    async def put(units: int) -> Any:
        return await world.replica.call("PUT", f"{path}/units", {"units": units, "ttl_seconds": 60.0}, by="operator")

    answer = await put(1)
    assert (answer.status_code, answer.json()) == (200, {"id": "sim-a", "units": 1, "valid_until": instant(60)})
    assert await limit() == (10, "derived: 10 × 1 unit")
    pinned = await world.replica.call("PATCH", path, {"pinned": True, "reason": "ratchet"}, by="operator")
    assert pinned.json()["pinned"] is True
    assert await limit() == (2, "pinned: ratchet")
    await world.replica.call("PATCH", path, {"pinned": False, "reason": "done"}, by="operator")
    assert await limit() == (10, "derived: 10 × 1 unit")
    await world.broker.set_clock(60)
    assert await limit() == (10, "derived: 10 × 1 unit (stale report)")
    assert await listed("true") == ["lease-pool-units-stale"]
    await put(3)
    assert await limit() == (30, "derived: 10 × 3 units")
    assert (await listed("true"), await listed("false")) == ([], ["lease-pool-units-stale"])
    alerts = [event for event in await world.broker.events() if isinstance(event, AlertRaised | AlertResolved)]
    assert [type(alert) for alert in alerts] == [AlertRaised, AlertResolved]


async def test_a_drained_pool_grants_nothing(world: World) -> None:
    """Leases go on, requests wait with the reason; undrained, it grants at once."""
    lease = (await world.replica.acquire("held")).json()
    for _ in range(2):
        answer = await world.replica.call("POST", "/lease-pools/sim-a/drain", {"reason": "moving"}, by="operator")
        assert (answer.status_code, answer.json()) == (200, {"id": "sim-a", "drained": True, "held": 1})
    waits = await world.replica.acquire("next")
    assert (waits.status_code, waits.json()["reason"]) == (202, "drained: moving")
    assert waits.json()["eta_seconds"] is None
    assert (await world.replica.call("POST", f"/leases/{lease['lease_id']}/renew", {"fencing_token": 1})).is_success
    answer = await world.replica.call("POST", "/lease-pools/sim-a/undrain", {"reason": "moved"}, by="operator")
    assert answer.json()["drained"] is False
    await world.broker.decide()
    assert (await world.replica.acquire("next")).status_code == 200
    published = (await world.replica.call("GET", "/lease-pools/sim-a/history")).json()["items"]
    assert [row["kind"] for row in published if row["by"] == "operator"] == ["undrained", "drained"]


#   stops granting, starts it again
async def test_the_pacing_in_force_is_served(world: World) -> None:
    """Of each declared operation and of all others, so that no client computes it; the pool's ETA includes it."""
    launch = {"launch": Operation(pacing=Pacing(0.5))}
    await world.broker.declare(terms(limit=2, policy=Policy(operations=launch), hold_seconds=1200))
    path = "/lease-pools/sim-a"

    async def pacing() -> Any:
        return (await world.replica.call("GET", path)).json()["pacing_in_force"]

    paced = {"launch": {"interval_seconds": 0.5, "burst": 1}}
    assert await pacing() == {"default": {"interval_seconds": 30, "burst": 1}, "operations": paced}
    assert (await world.replica.acquire("i1")).status_code == 200
    waits = (await world.replica.acquire("i2")).json()
    assert (waits["eta_seconds"], waits["reason"]) == (30, "paced: next start in 30 s; 1 of 2 held")
    assert (await world.replica.call("GET", path)).json()["eta_seconds"] == 60
    assert (await world.replica.acquire("l", operation="launch")).status_code == 200
    change = {"pacing": "off", "operation": "install", "reason": "now"}
    assert (await world.replica.call("PATCH", path, change, by="operator")).status_code == 200
    default = {"interval_seconds": 30, "burst": 1}
    assert await pacing() == {"default": default, "operations": paced | {"install": None}}
    refused = await world.replica.call("PATCH", path, {"operation": "install", "reason": "x"}, by="operator")
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:slipway:problem:invalid-request")


OPENED = [("POST", "/drain", {}, "POST", "/undrain", {}), ("PATCH", "", {"limit": 0}, "PATCH", "", {"limit": 1})]


@pytest.mark.parametrize(("method", "path", "closing", "again", "where", "opening"), OPENED)
async def test_a_pool_that_starts_granting_grants_at_once(
    world: World, method: str, path: str, closing: dict[str, Any], again: str, where: str, opening: dict[str, Any]
) -> None:
    """To waiting calls: a change by an operator notifies the decide loop, without waiting for a tick."""
    here, bell = world.replica, asyncio.Event()
    here.runtime.wakeups["bell"] = bell
    loop = DecideLoop(admissions(receiving=lambda _: NOT_RECEIVING, waiters=here.grant_waiters, waiter_ttl_seconds=120))

    async def decide() -> None:
        while await bell.wait():
            bell.clear()
            while await loop.step(here.pool):
                pass

    world.broker.start(decide())
    pool, reason = "/lease-pools/sim-a", {"reason": "moving"}
    assert (await here.call(method, pool + path, closing | reason, by="operator")).is_success
    assert (await here.acquire("next")).status_code == 202
    waiting = asyncio.create_task(here.acquire("next", wait_seconds=60.0))
    await harness.until(lambda: here.grant_waiters.waiting_callers == 1)
    opened = await here.call(again, pool + where, opening | reason, by="operator")
    if opened.status_code == 409:  # a limit that grows from 0
        confirm = {"confirm": opened.json()["digest"]}
        opened = await here.call(again, pool + where, opening | reason | confirm, by="operator")
    assert opened.is_success
    answer = await waiting
    assert (answer.status_code, answer.json()["state"]) == (200, "confirmed")


async def test_an_unleased_launch_is_counted_once(world: World) -> None:
    """It occupies its units from its start until its hold ends; one whose hold has ended does not count."""
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
    fast = starts[0] | {"request_id": "fast clock", "units": 1, "started_at": instant(9000), "cause": "lost"}
    answer = await world.replica.call("POST", "/lease-pools/sim-a/unleased", {"starts": [fast]}, by="ben")
    assert [row["hold_until"] for row in answer.json()["items"]] == [instant(3200)]
    short = [
        starts[1] | {"request_id": f"hold {hold}", "started_at": instant(1990), "hold_seconds": hold}
        for hold in (20.0, 9000.0)
    ]
    answer = await world.replica.call("POST", "/lease-pools/sim-a/unleased", {"starts": short}, by="root")
    assert [row["hold_until"] for row in answer.json()["items"]] == [instant(2010), instant(3190)]
    for row in answer.json()["items"]:
        token = {"fencing_token": row["fencing_token"]}
        await world.replica.call("POST", f"/leases/{row['lease_id']}/release", token, by="root")
    recorded = (await world.replica.call("GET", "/lease-pools/sim-a/history", by="reader")).json()["items"]
    reasons = {row["request_id"]: row["reason"] for row in recorded if row["kind"] == "unleased"}
    at = "1 unit started without a lease at 2026-01-01T12:33:20+00:00"
    assert reasons["fast clock"] == f"{at} (lost)"
    assert reasons["recent"].endswith("(unavailable)")
    assert (await world.replica.acquire("next")).status_code == 202
    await world.broker.set_clock(3100)
    await world.broker.decide()
    assert (await world.replica.acquire("next")).status_code == 200


async def test_a_repeated_partial_release(world: World) -> None:
    """After a lost answer: the same units remain, whatever else was released in the meantime."""
    lease = (await world.replica.acquire("r", units=2)).json()
    body = {"fencing_token": lease["fencing_token"], "remaining": 1}
    for released in (1, 0):
        answer = await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", body)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["released_units"], answer.json()["remaining"]) == (released, 1)
    assert await world.broker.held() == 1
    both = await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", body | {"units": 1})
    assert (both.status_code, slug(both)) == (422, "invalid-request")


async def test_a_release_after_the_hold_is_recorded_once(world: World) -> None:
    """Its answer is that nothing was released, however often; its throttle evidence blocks the pool and is counted
    once. A partial release does not count as the late report, since it may have been sent while the lease was alive."""
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
    assert (waits.status_code, waits.json()["reason"][:31]) == (202, "the provider asked for a pause ")
    assert (await world.replica.call("GET", path)).json() == shown
    late = await world.replica.call("POST", f"{path}/renew", {"fencing_token": 1})
    assert (late.status_code, late.json()["reason"]) == (410, "hold")
    trail = (await world.replica.call("GET", f"{path}/history")).json()["items"]
    assert [(entry["kind"], entry["by"]) for entry in trail[-2:]] == [("reported-late", "ann"), ("throttled", "ann")]


async def test_a_report_of_the_past(world: World) -> None:
    """Results of holders, compared with the requested terms."""
    for n in range(2):
        lease = (await world.replica.acquire(f"r{n}")).json()
        await world.broker.set_clock(100 * (n + 1))
        body = {"fencing_token": n + 1, "throttled": n == 1}
        await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", body)
    query = "since_seconds=3600&limit=1&hold_seconds=60"
    answer = await world.replica.call("GET", f"/lease-pools/sim-a/report?{query}", by="reader")
    assert answer.status_code == 200, answer.text
    published = answer.json()
    assert (published["id"], published["mode"], published["requests"], published["throttled"]) == (
        "sim-a",
        "enforce",
        2,
        1,
    )
    (what_if,) = published["what_if"]
    assert (what_if["limit_units"], what_if["hold_seconds"], what_if["cut_short"]) == (1, 60.0, 2)
    held = next(row for row in published["spreads"] if row["of"] == "seconds held")
    assert (held["count"], held["p50"]) == (2, 100.0)
