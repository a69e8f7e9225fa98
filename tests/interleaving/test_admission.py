"""Two sessions on requests, grants and leases of the provisioner."""

import asyncio
from pathlib import Path
from typing import Final

import httpx2

import slipway_provisioner
from slipway_api.events import lease as lease_events
from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    LeaseUnleasedReported,
)
from slipway_api.events.worker import WorkerDelayed
from slipway_common.database.postgres import Connection
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store import leases
from tests.support.interleaving import gone, lost
from tests.support.provisioner import (
    Provisioner,
    administrator,
    after,
    declared,
    in_transaction,
    provisioner_on,
    report,
    stopped_at,
)
from tests.support.starts import batch_count
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)


def confirmed(lease_id: str, seconds: float = 300) -> lease_events.LeaseConfirmed:
    return lease_events.LeaseConfirmed(
        lease_pool_id="sim-a", lease_id=lease_id, fencing_token=1, expires_at=after(seconds)
    )


GRANT_AND_CANCEL: Final = (
    "store.functions.LOCK_LEASES",
    "store.functions.LOCKING",
    "store.leases.REQUESTS_OF",
    "store.workers.BY_REQUESTS",
    "store.workers.LOCK_FREE",
    "store.leases.BIND",
    "store.leases.GRANT",
    "store.leases.TAKE",
    "store.leases.DELETE_REQUEST",
    "store.leases.INSERT",
)


@locking(*GRANT_AND_CANCEL)
async def test_a_cancel_that_waited_for_a_grant(provisioner: Provisioner) -> None:
    """An admitted intent is no longer cancelled."""
    (request,) = await provisioner.requested(2)
    await provisioner.demand(report(0, at=1))
    async with stopped_at(provisioner, "worker", provisioner.leases(provisioner.granted(request))) as grant:
        planning = provisioner.start(provisioner.plan())
        await provisioner.until_waiting(grant, planning)
    await asyncio.gather(grant, planning)
    assert await provisioner.states() == {"requested": 2}
    events = await provisioner.events()
    assert not any(isinstance(event, LeaseCancelRequested | LeaseReleaseRequested) for event in events)


@locking(*GRANT_AND_CANCEL)
async def test_a_grant_that_waited_for_a_cancel(provisioner: Provisioner) -> None:
    """Its units are released in the same transaction."""
    (request,) = await provisioner.requested(2)
    await provisioner.demand(report(0, at=1))
    async with stopped_at(provisioner, "outbox", provisioner.plan()) as planning:
        grant = provisioner.start(provisioner.leases(provisioner.granted(request)))
        await provisioner.until_waiting(planning, grant)
    await asyncio.gather(grant, planning)
    assert await provisioner.states() == {"stopped": 2}
    (released,) = await provisioner.published(LeaseReleaseRequested)
    assert (released.units, released.result) == (2, "surplus")


@locking("store.workers.LOCK_FREE", "store.leases.REQUESTS_OF", "store.workers.DELAYED")
async def test_a_cancel_skips_locked_workers(provisioner: Provisioner) -> None:
    """Workers that are requesting admission at this moment are left to the next plan."""
    (grant,) = await provisioner.admitted()
    await provisioner.leases(lost(grant))
    await provisioner.demand(report(0, at=1))
    async with stopped_at(provisioner, "lease_request", provisioner.resend_requests()) as asking:
        await provisioner.plan()
        assert await provisioner.states() == {"requested": 1}
    await asking
    await provisioner.sweep_now()
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 1}
    assert len(await provisioner.published(LeaseCancelRequested)) == 1


async def admitted_and_drained(provisioner: Provisioner) -> lease_events.LeaseGranted:
    """Grant for two intents whose revision drains."""
    (grant,) = await provisioner.admitted(2)
    await provisioner.declare(declared("zone-b"), strategy="now")
    return grant


@locking("store.leases.LEASES_OF", "store.functions.LOCK_LEASES", "store.leases.END")
async def test_a_lease_that_ends_while_its_drained_intents_are_cancelled(provisioner: Provisioner) -> None:
    """They request no admission again, and their units are released once."""
    grant = await admitted_and_drained(provisioner)
    async with stopped_at(provisioner, "outbox", provisioner.plan()) as planning:
        ending = provisioner.start(provisioner.leases(lost(grant)))
        await provisioner.until_waiting(planning, ending)
    await asyncio.gather(planning, ending)
    events = await provisioner.events()
    assert not any(isinstance(event, WorkerDelayed) for event in events)
    assert [event.units for event in events if isinstance(event, LeaseReleaseRequested)] == [2]
    assert (await provisioner.states())["stopped"] == 2


@locking("store.leases.LEASES_OF", "store.functions.LOCK_LEASES", "store.leases.END")
async def test_a_cancel_skips_a_lease_that_ends(provisioner: Provisioner) -> None:
    """Its intents are cancelled by the next plan, and nothing is released."""
    grant = await admitted_and_drained(provisioner)
    async with stopped_at(provisioner, "outbox", provisioner.leases(lost(grant))) as ending:
        await provisioner.plan()
        assert "stopped" not in await provisioner.states()
    await ending
    await provisioner.plan()
    assert (await provisioner.states())["stopped"] == 2
    assert await provisioner.published(LeaseReleaseRequested) == []


@locking("store.workers.DELAYED", "store.leases.RESEND", "store.leases.DELETE_REQUEST")
async def test_two_replicas_resend_a_request_once(provisioner: Provisioner) -> None:
    """Each delayed intent gets one request; an unanswered request is resent once per period."""
    (grant,) = await provisioner.admitted(3)
    await provisioner.leases(lost(grant))
    await provisioner.events()
    await asyncio.gather(*(provisioner.resend_requests() for _ in range(3)))
    (asked,) = await provisioner.published(LeaseRequested)
    assert asked.units == 3
    await provisioner.set_clock(31)
    await asyncio.gather(*(provisioner.resend_requests() for _ in range(3)))
    assert await provisioner.published(LeaseRequested) == [asked]


@locking("store.unleased.LOCK", "store.unleased.SPEND")
async def test_replicas_without_a_broker_keep_one_pace(postgres: EmbeddedPostgres) -> None:
    """One launch for all replicas; a replica that waited for the pace starts none."""
    async with provisioner_on(postgres, broker_unavailable_mode="safe") as provisioner:
        (request,) = await provisioner.requested(2)
        await provisioner.leases(provisioner.granted(request))
        await provisioner.set_clock(1)
        await provisioner.demand(report(5, at=1))
        await provisioner.plan()
        await provisioner.set_clock(600)
        provisioner.broker_unavailable_seconds = 1.0
        async with stopped_at(provisioner, "outbox", provisioner.admit_unleased()) as first:
            others = [provisioner.start(provisioner.admit_unleased()) for _ in range(3)]
            await provisioner.until_waiting(first, *others)
        assert [await first, *(await asyncio.gather(*others))] == [True, False, False, False]
        assert len(await provisioner.published(LeaseUnleasedReported)) == 1


@locking("store.unleased.LOCK", "store.functions.LOCK_LEASES", "store.leases.TAKE", "store.workers.BY_REQUEST")
async def test_a_grant_during_an_unleased_admission(postgres: EmbeddedPostgres) -> None:
    """No intent has two leases: the unneeded unit is released."""
    async with provisioner_on(postgres, broker_unavailable_mode="safe") as provisioner:
        (request,) = await provisioner.requested(2)
        await provisioner.leases(provisioner.granted(request))
        await provisioner.set_clock(1)
        await provisioner.demand(report(3, at=1))
        await provisioner.plan()
        (asked,) = await provisioner.published(LeaseRequested)
        await provisioner.set_clock(600)
        provisioner.broker_unavailable_seconds = 1.0
        async with stopped_at(provisioner, "outbox", provisioner.admit_unleased()) as admitting:
            granting = provisioner.start(provisioner.leases(provisioner.granted(asked)))
            await provisioner.until_waiting(admitting, granting)
        await asyncio.gather(admitting, granting)
        (started,) = await provisioner.database.fetch(
            "SELECT lease_id FROM worker WHERE request_id = $1", asked.request_id
        )
        states = await provisioner.database.fetch("SELECT id, state FROM lease WHERE state <> 'reserved'")
        assert {row["id"]: row["state"] for row in states} == {started["lease_id"]: "unleased", "lease-2": "ended"}


@locking("store.leases.CONFIRM", "store.functions.LOCK_LEASES", "store.leases.RELEASE")
async def test_a_confirm_that_waited_for_a_release_revives_nothing(provisioner: Provisioner) -> None:
    """The lease stays ended."""
    (worker,) = await provisioner.starting()
    async with stopped_at(provisioner, "outbox", provisioner.register("i-0001", worker.batch_id)) as registering:
        confirming = provisioner.start(provisioner.leases(confirmed("lease-1")))
        await provisioner.until_waiting(registering, confirming)
    await asyncio.gather(registering, confirming)
    assert await provisioner.database.fetchval("SELECT state FROM lease") == "ended"


@locking("store.leases.RENEWABLE", "store.leases.RENEW_ONE")
async def test_two_replicas_renew_a_lease_once(provisioner: Provisioner) -> None:
    """Also when the second renewal waited for the first."""
    await provisioner.starting()
    await provisioner.leases(confirmed("lease-1", 300))
    await provisioner.set_clock(101)
    await asyncio.gather(*(in_transaction(provisioner, leases.renew) for _ in range(3)))
    assert len(await provisioner.published(LeaseRenewRequested)) == 1
    await provisioner.set_clock(110)

    async def renew_one(db: Connection) -> None:
        await leases.renew_one(db, "lease-1", renewal_pending_seconds=5)

    await asyncio.gather(*(in_transaction(provisioner, renew_one) for _ in range(3)))
    assert len(await provisioner.published(LeaseRenewRequested)) == 1


@locking("store.leases.RELEASE", "store.workers.LOCK")
async def test_each_unit_is_released_once(provisioner: Provisioner) -> None:
    """A unit is released by the registration or the end of its worker, whichever is first; the last one ends the
    lease."""
    first, second = await provisioner.starting(2)
    await asyncio.gather(
        provisioner.register("i-0001", first.batch_id),
        gone(provisioner, [first.id]),
        gone(provisioner, [first.id, second.id]),
        provisioner.register("i-0002", second.batch_id),
    )
    assert sum(event.units for event in await provisioner.published(LeaseReleaseRequested)) == 2
    assert tuple(await provisioner.database.fetchrow("SELECT units, state FROM lease")) == (0, "ended")


@locking("store.functions.LOCK_LEASES", "store.functions.LOCK_LEASES", "store.leases.RELEASE", "store.workers.LOCK")
async def test_leases_are_locked_in_one_order(provisioner: Provisioner) -> None:
    """Lease events that name leases in descending order do not deadlock with workers that release units in ascending
    order."""
    grants = await provisioner.admitted(12, "zone-a", "zone-b", "zone-c")
    await provisioner.launch()
    everybody = await provisioner.workers()
    answers = [confirmed(grant.lease_id) for grant in reversed(grants)]
    for n in range(4):
        some = [worker.id for worker in everybody[n::4]]
        await asyncio.gather(
            provisioner.leases(*answers),
            gone(provisioner, some),
            provisioner.leases(*answers),
        )
    assert sum(event.units for event in await provisioner.published(LeaseReleaseRequested)) == 12


async def terminate(provisioner: Provisioner, worker: Worker, folder: Path) -> httpx2.Response:
    async with administrator(provisioner, folder) as client:
        return await client.post(f"/workers/{worker.id}/terminate", json={"reason": "drill"})


TERMINATE: Final = ("store.functions.LOCK_LEASES", "store.functions.LOCK_LEASES", "store.workers.LOCK")


@locking(*TERMINATE, "store.leases.INSERT", "store.leases.RELEASE", "store.workers.BY_REQUEST")
async def test_a_termination_that_waited_for_a_grant(provisioner: Provisioner, tmp_path: Path) -> None:
    """It is still a cancellation: the granted unit is released, and the other worker keeps its own."""
    (request,) = await provisioner.requested(2)
    first, _ = await provisioner.workers()
    async with stopped_at(provisioner, "worker", provisioner.leases(provisioner.granted(request))) as grant:
        ending = provisioner.start(terminate(provisioner, first, tmp_path))
        await provisioner.until_waiting(grant, ending)
    await grant
    answer = await ending
    assert (answer.status_code, answer.json()["state"]) == (200, "stopped")
    (released,) = await provisioner.published(LeaseReleaseRequested)
    assert (released.units, released.result) == (1, "cancelled")
    assert tuple(await provisioner.database.fetchrow("SELECT units, state FROM lease")) == (1, "reserved")
    await provisioner.launch()
    assert [call.count for call in provisioner.cloud.calls] == [1]


@locking(*TERMINATE, "store.leases.TAKE", "store.workers.BY_REQUEST")
async def test_a_grant_that_waited_for_a_termination(provisioner: Provisioner, tmp_path: Path) -> None:
    """It binds the other worker, and the unneeded unit is released at once."""
    (request,) = await provisioner.requested(2)
    first, _ = await provisioner.workers()
    async with stopped_at(provisioner, "outbox", terminate(provisioner, first, tmp_path)) as ending:
        grant = provisioner.start(provisioner.leases(provisioner.granted(request)))
        await provisioner.until_waiting(ending, grant)
    await asyncio.gather(ending, grant)
    events = await provisioner.events()
    assert [event.units for event in events if isinstance(event, LeaseCancelRequested)] == [1]
    assert [event.units for event in events if isinstance(event, LeaseReleaseRequested)] == [1]
    assert [worker.holds_unit for worker in await provisioner.workers()] == [False, True]


@locking(*TERMINATE, "store.functions.LOCK_STARTS")
async def test_a_termination_that_waited_for_a_start(provisioner: Provisioner, tmp_path: Path) -> None:
    """The call is made; its worker is stopping, and is terminated once its instance is known."""
    await provisioner.admitted()
    worker = await provisioner.worker()
    async with stopped_at(provisioner, "launch_batch", provisioner.launch()) as start:
        ending = provisioner.start(terminate(provisioner, worker, tmp_path))
        await provisioner.until_waiting(start, ending)
    await asyncio.gather(start, ending)
    assert await provisioner.states() == {"stopping": 1}
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0001"]


@locking(*TERMINATE, "store.functions.LOCK_STARTS")
async def test_a_start_while_its_worker_is_terminated(provisioner: Provisioner, tmp_path: Path) -> None:
    """No call is made for the worker."""
    await provisioner.admitted()
    worker = await provisioner.worker()
    async with stopped_at(provisioner, "outbox", terminate(provisioner, worker, tmp_path)) as ending:
        await provisioner.launch()
    await ending
    await provisioner.launch()
    assert (await provisioner.states(), await batch_count(provisioner)) == ({"stopped": 1}, 0)


@locking(*TERMINATE, "store.workers.DELAYED", "store.leases.TAKE")
async def test_a_termination_that_waited_for_a_new_request(provisioner: Provisioner, tmp_path: Path) -> None:
    """It reads the request of the worker again, and cancels that one."""
    (grant,) = await provisioner.admitted()
    await provisioner.leases(lost(grant))
    worker = await provisioner.worker()
    async with stopped_at(provisioner, "outbox", provisioner.resend_requests()) as asking:
        ending = provisioner.start(terminate(provisioner, worker, tmp_path))
        await provisioner.until_waiting(asking, ending)
    await asyncio.gather(asking, ending)
    events = await provisioner.events()
    (asked,) = [event for event in events if isinstance(event, LeaseRequested)][-1:]
    assert [e.request_id for e in events if isinstance(e, LeaseCancelRequested)] == [asked.request_id]
    assert await provisioner.database.fetchval("SELECT count(*) FROM lease_request") == 0
