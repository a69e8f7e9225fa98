"""Calls to the lease-broker that wait: their places, the answers that end them, and callers that leave."""

import asyncio
from pathlib import Path

import pytest

from slipway_api.http.lease_broker import AcquireLease
from slipway_lease_broker import grant_notifier, grant_waiters
from slipway_lease_broker.domain.exchange import Submission
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.grant_waiters import Woken
from slipway_lease_broker.http.leases import wait_for_grant, wanted
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support import harness
from tests.support.lease_broker import acquire_request, release
from tests.support.lease_broker_http import Replica, World, world_on


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


async def submit_waiting(replica: Replica, request_id: str = "next") -> Woken:
    """Submit a request whose caller waits for the grant."""
    command = wanted("sim-a", AcquireLease(request_id=request_id), "ann")
    woken: Woken = asyncio.get_running_loop().create_future()
    await replica.group_commit.submit(
        replica.pool, Submission(command=command, sender=Sender(name="ann"), confirm=True, woken=woken)
    )
    return woken


async def test_a_token_keeps_a_number_of_calls_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any more are answered at once, as if they had waited: each keeps a connection, of which others need some."""
    monkeypatch.setattr(grant_waiters, "CALLS_MAX", 1)
    held = (await world.replica.acquire("held", units=2)).json()
    calls = [asyncio.create_task(world.replica.acquire("first", wait_seconds=60.0))]
    await harness.until(lambda: world.replica.grant_waiters.waiting_callers == 1)
    gang = {"request_id": "gang", "members": [{"pool": "sim-a"}], "wait_seconds": 60.0}
    async with asyncio.timeout(harness.PATIENCE_SECONDS / 2):
        assert (await world.replica.acquire("second", wait_seconds=60.0)).status_code == 202
        assert (await world.replica.call("POST", "/lease-gangs", gang)).status_code == 202
    for name in ("second", "gang"):
        await world.replica.call("DELETE", f"/lease-pools/sim-a/requests/{name}")
    calls.append(asyncio.create_task(world.replica.acquire("of another", by="ben", wait_seconds=60.0)))
    await harness.until(lambda: world.replica.grant_waiters.waiting_callers == 2)
    await world.replica.call("POST", f"/leases/{held['lease_id']}/release", {"fencing_token": 1})
    assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200, 200]


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
