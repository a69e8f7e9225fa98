"""The HTTP API of the lease-broker: every route with its status codes and bodies; refused calls change nothing."""

import asyncio
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from slipway_common.base.clock import utc_now
from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.lease import LeaseLimitChanged
from slipway_lease_broker import grant_notifier
from slipway_lease_broker.domain.exchange import Submission
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.terms import Backoff, Bounds, Derived, Mode, Operation, Policy
from slipway_lease_broker.grant_waiters import Woken
from slipway_lease_broker.http.bodies import Acquire
from slipway_lease_broker.http.leases import wait_for_grant, wanted
from slipway_lease_broker.loops.decide import DecideLoop
from slipway_lease_broker.loops.gangs import GangLoop
from slipway_lease_broker.metrics import REFUSED_COMMANDS, THROTTLES
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support import harness
from tests.support.lease_broker import NOT_RECEIVING, acquire_request, admissions, release, terms
from tests.support.lease_broker_http import Replica, World, instant, slug, world_on


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


async def test_a_waiting_request_gets_its_position_and_reason(world: World) -> None:
    """202 with position, estimate, the end of the leases that it waits for, and the time of the next poll, in the body
    and as Retry-After."""
    await world.replica.acquire("held", units=2)
    first, second = await world.replica.acquire("first"), await world.replica.acquire("second", units=2)
    assert first.status_code == 202
    assert first.json() | {"eta_seconds": 0, "retry_after_seconds": 0} == {
        "request_id": "first",
        "state": "waiting",
        "position": 1,
        "eta_seconds": 0,
        "retry_after_seconds": 0,
        "held_until": "2026-01-01T12:20:00Z",
        "reason": "2 of 2 held; free by 2026-01-01T12:20:00+00:00",
        "cause": "full",
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
    """Tenants take turns: a single request is served second, however many requests of another tenant wait."""
    await world.replica.acquire("held", units=2)
    for n in range(10):
        await world.replica.acquire(f"crowd-{n}", tenant="team-crowd")
    assert (await world.replica.acquire("lone", tenant="team-lone")).json()["position"] == 2
    assert (await world.replica.acquire("urgent", tenant="team-crowd", priority=5)).json()["position"] == 1


async def test_a_waiting_call_is_answered_as_soon_as_a_unit_is_released(world: World) -> None:
    """By a confirmed grant, in the call that waited for it."""
    held = (await world.replica.acquire("held", units=2)).json()
    waiting = asyncio.create_task(world.replica.acquire("next", wait_seconds=60.0))
    await harness.until(lambda: world.replica.grant_waiters.waiting_callers == 1)
    await world.replica.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
    answer = await waiting
    assert (answer.status_code, answer.json()["state"], answer.json()["fencing_token"]) == (200, "confirmed", 2)
    assert world.replica.grant_waiters.waiting_callers == 0


async def test_a_wait_that_times_out_keeps_its_place(world: World) -> None:
    """The call ends with 202; the request goes on waiting, and its grant stays reserved while no call is open."""
    held = (await world.replica.acquire("held", units=2)).json()
    assert (await world.replica.acquire("next", wait_seconds=0.01)).status_code == 202
    assert world.replica.grant_waiters.waiting_callers == 0
    await world.replica.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
    shown = (await world.replica.call("GET", "/lease-pools/sim-a/requests/next")).json()
    assert [lease["state"] for lease in shown["leases"]] == ["reserved"]
    assert (await world.replica.acquire("next")).json()["state"] == "confirmed"


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


START_NOW = {"request_id": "bens", "operation": "install", "units": 1, "started_at": instant(0)}
FIRST_YEAR = "0001-01-01T00:00:00+14:00"  # in the previous year in UTC
START_LATER = START_NOW | {"request_id": "new", "started_at": instant(61)}


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
    await put(3)
    assert await limit() == (30, "derived: 10 × 3 units")
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
    here.runtime.wakeups.append(bell)
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
    ("GET", "/leases/gone", "reader", None, "", 404, "unknown-lease"),
    ("GET", "/leases/gone/history", "reader", None, "", 404, "unknown-lease"),
    ("GET", "/leases?pool=nowhere", "reader", None, "", 404, "unknown-lease-pool"),
    ("GET", "/leases?mine=true", "", None, "", 401, "no-token"),
    ("GET", "/lease-pools/nowhere/requests", "reader", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/nowhere/requests/x", "reader", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/sim-a/requests/x", "reader", None, "", 404, "unknown-request"),
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
    ("GET", "/lease-pools/nowhere/history", "reader", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/sim-a/history?since=noon", "reader", None, "", 422, "invalid-request"),
    ("GET", "/lease-pools/nowhere/report", "reader", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/sim-a/report?limit=0", "reader", None, "", 422, "invalid-request"),
]


async def test_refused_calls_change_nothing(world: World) -> None:
    """Each is answered with its own problem, and every row stays as it was."""
    held = (await world.replica.acquire("held", units=2)).json()["lease_id"]
    await world.replica.acquire("waits")
    await world.replica.acquire("bens", by="ben")
    before = await world.rows()
    ahead = utc_now() + timedelta(days=1)
    published = {"Slipway-Sent-At": ahead.isoformat(), "Date": format_datetime(ahead, usegmt=True)}
    for method, path, by, body, header, status, expected in REFUSED:
        case = f"{method} {path[:50]} by {by!r} {body}"
        sent = {"replaces": body["replaces"] | {"lease_id": held}} if body and "replaces" in body else {}
        headers = {header: published[header]} if header else {}
        answer = await world.replica.call(method, path.replace("HELD", held), body and body | sent, by=by, **headers)
        assert (answer.status_code, slug(answer)) == (status, expected), f"{case}: {answer.text}"
        problem = answer.json()
        assert problem["status"] == status
        assert problem["title"], case
        assert problem["detail"], case
    assert await world.rows() == before


async def test_a_former_holder(world: World) -> None:
    """A token of another lease and an ended lease are distinct problems, and nothing changes."""
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
    """Up to a minute ahead is accepted, and any time in the past; an invalid time is not."""
    for value, status in (
        (utc_now() + timedelta(seconds=50), 200),
        (utc_now() - timedelta(days=400), 200),
        ("soon", 422),
        ("2026-01-01T12:00:00", 422),
    ):
        header = value if isinstance(value, str) else value.isoformat()
        answer = await world.replica.call(
            "POST", "/lease-pools/sim-a/leases", {"request_id": "r"}, **{"Slipway-Sent-At": header}
        )
        assert answer.status_code == status, answer.text


async def test_leases_by_pool_and_tenant(world: World) -> None:
    await world.broker.declare(terms(limit=2), terms("sim-b", limit=2))
    for pool, tenant in (("sim-a", "x"), ("sim-a", "y"), ("sim-b", "x")):
        await world.replica.acquire(f"{pool}-{tenant}", pool, tenant=f"team-{tenant}")

    async def listed(query: str) -> list[str]:
        answer = await world.replica.call("GET", f"/leases{query}", by="reader")
        assert answer.status_code == 200, answer.text
        return [row["request_id"] for row in answer.json()["items"]]

    assert await listed("") == ["sim-a-x", "sim-a-y", "sim-b-x"]
    assert await listed("?pool=sim-a") == ["sim-a-x", "sim-a-y"]
    assert await listed("?tenant=team-x") == ["sim-a-x", "sim-b-x"]
    assert await listed("?pool=sim-a&tenant=team-y&limit=1") == ["sim-a-y"]


async def test_every_write_is_documented_with_its_body(world: World) -> None:
    """The OpenAPI document names a body for each write."""
    paths = (await world.replica.call("GET", "/openapi.json")).json()["paths"]
    writes = [
        (path, method, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if method != "get" and not path.startswith("/dead-letters")
    ]
    assert len(writes) > 5
    for path, method, operation in writes:
        assert method == "delete" or "requestBody" in operation, (method, path)


async def submit_waiting(replica: Replica, request_id: str = "next") -> Woken:
    """Submit a request whose caller waits for the grant."""
    command = wanted("sim-a", Acquire.model_validate({"request_id": request_id}), "ann")
    woken: Woken = asyncio.get_running_loop().create_future()
    await replica.group_commit.submit(
        replica.pool, Submission(command=command, sender=Sender(name="ann"), confirm=True, woken=woken)
    )
    return woken


async def test_a_waiting_call_is_answered_on_cancel(world: World) -> None:
    """At once, and not when its wait ends."""
    await world.replica.acquire("held", units=2)
    staying = asyncio.create_task(wait_for_grant(await submit_waiting(world.replica), 60.0, never()))
    await world.replica.call("DELETE", "/lease-pools/sim-a/requests/next")
    assert await staying is True
    late = await world.replica.acquire("next", wait_seconds=60)
    assert (late.status_code, late.json()["reason"]) == (410, "cancelled")


async def test_units_are_released_although_decisions_fail(world: World) -> None:
    """The command is recorded, and the decision is left to the loop, which logs the failure."""
    held = (await world.replica.acquire("held", units=2)).json()
    assert (await world.replica.acquire("next")).status_code == 202
    assert (await world.replica.acquire("urgent", priority=1)).status_code == 202  # compared with the other by its age
    await world.broker.pool.execute("""UPDATE lease_pools SET policy = policy || '{"ageing_seconds": 0}'""")
    released = await world.replica.call(
        "POST", f"/leases/{held['lease_id']}/release", {"fencing_token": held["fencing_token"]}
    )
    assert released.status_code == 200
    assert (await world.replica.acquire("later")).status_code == 202
    assert await world.broker.held() == 0


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_call_that_waits_at_another_replica_is_woken(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a notification, long before the periodic check would find the grant."""
    monkeypatch.setattr(grant_notifier, "CHECK_SECONDS", 3600.0)
    async with world_on(postgres, tmp_path, replicas=2) as world:
        here, there = world.replicas
        held = (await here.acquire("held", units=2)).json()
        staying = asyncio.create_task(wait_for_grant(await submit_waiting(there), 60.0, never()))
        await here.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
        assert await staying is True
        answer = await there.acquire("next")
    assert (answer.status_code, answer.json()["state"]) == (200, "confirmed")


async def test_a_lost_notification_blocks_no_caller(world: World) -> None:
    """Only the callers that were granted something since are woken by a check."""
    await world.broker.send(acquire_request("held", 2))
    (held,) = await world.broker.grants()
    here = world.replica
    staying = [
        asyncio.create_task(wait_for_grant(await submit_waiting(here, name), 60.0, never()))
        for name in ("next", "last")
    ]
    await world.broker.send(release(held, 1))
    await world.broker.decide()  # in a process that knows nothing of the callers that wait here
    await here.grant_waiters.check_grants(here.pool)
    assert await staying[0] is True
    assert here.grant_waiters.waiting_callers == 1
    await world.broker.send(release(held, 1))
    await world.broker.decide()
    await here.grant_waiters.check_grants(here.pool)
    assert await staying[1] is True


async def test_a_disconnected_caller_confirms_nothing(world: World) -> None:
    """No caller received the grant, so it stays reserved until its reserve time ends."""
    held = (await world.replica.acquire("held", units=2)).json()
    here, gone = world.replica, asyncio.Event()
    staying = asyncio.create_task(wait_for_grant(await submit_waiting(here), 60.0, gone.wait()))
    gone.set()
    assert await staying is False
    assert here.grant_waiters.waiting_callers == 0
    await here.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
    (lease,) = (await here.call("GET", "/leases?pool=sim-a")).json()["items"]
    assert (lease["request_id"], lease["state"]) == ("next", "reserved")


async def test_a_caller_that_leaves_while_its_request_commits_waits_no_longer(world: World) -> None:
    """Its request waits in the database, and its grant stays reserved."""
    held = (await world.replica.acquire("held", units=2)).json()
    here, pool = world.replica, world.broker.pool
    async with pool.acquire() as blocker, blocker.transaction():
        await blocker.execute("SELECT 1 FROM lease_pools FOR UPDATE")
        leaving = asyncio.create_task(submit_waiting(here))
        await world.broker.until_waiting(leaving)
        leaving.cancel()
        await asyncio.wait({leaving})
    await here.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
    assert here.grant_waiters.waiting_callers == 0
    (lease,) = (await here.call("GET", "/leases?pool=sim-a")).json()["items"]
    assert (lease["request_id"], lease["state"]) == ("next", "reserved")


async def test_a_refused_caller_confirms_nothing(world: World) -> None:
    """Although its request id is that of the request granted in the same batch."""
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
            await harness.until(lambda: len(here.group_commit._queues.get("sim-a", ())) == 2)
        answers = await asyncio.gather(released, strange, first)
    assert [answer.status_code for answer in answers] == [200, 403, 404]
    (lease,) = (await here.call("GET", "/leases?pool=sim-a")).json()["items"]
    assert (lease["request_id"], lease["state"]) == ("next", "reserved")
