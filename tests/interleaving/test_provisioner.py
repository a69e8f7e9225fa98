"""Interleavings of two sessions for every statement of the provisioner that takes a lock: nothing is launched twice, no
change is lost, no start commits after a command that forbids it, and there are no deadlocks."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import pytest

import slipway_provisioner
from slipway_common.base.ids import hash_secret, new_id, new_worker_token
from slipway_common.database.postgres import Connection
from slipway_common.events import lease as lease_events
from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.launch_config import LaunchConfigPaused, LaunchConfigResumed, LaunchConfigUpdated
from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmRequested,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    LeaseUnleasedReported,
)
from slipway_common.events.lifecycle import SERVING, State
from slipway_common.events.pool import PoolResumed, PoolUnfrozen
from slipway_common.events.scopes import image_key
from slipway_common.events.signal import SignalRaised
from slipway_common.events.weight import SharedWindow
from slipway_common.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerClaimed,
    WorkerDelayed,
    WorkerLaunched,
    WorkerRequested,
    WorkerStopping,
)
from slipway_common.messaging.incarnation import Incarnation
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply import freezing, launches, reaping, recovery, refused_terminations
from slipway_provisioner.domain.cloud import Instance, InstanceState, Protected
from slipway_provisioner.domain.identity import Attested
from slipway_provisioner.domain.reaping import Kept
from slipway_provisioner.domain.recovery import Action
from slipway_provisioner.domain.roll_out import Drain
from slipway_provisioner.domain.workers import Worker, launch_failed
from slipway_provisioner.handlers.weights import WeightView
from slipway_provisioner.loops import plan
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.providers.port import OutcomeUnknown
from slipway_provisioner.store import (
    accounts,
    ageing,
    batches,
    configs,
    deadlines,
    instances,
    launch_stops,
    leases,
    marks,
    orphans,
    outcomes,
    pauses,
    pools,
    roll_outs,
    weights,
    workers,
)
from slipway_provisioner.store import terminations as stored
from slipway_provisioner.store.batches import Batch, Overdue
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.retention import DELETE_STOPS
from tests.support.harness import until_ended_or_waiting
from tests.support.provisioner import (
    START,
    Provisioner,
    administrator,
    after,
    awaited,
    declared,
    in_transaction,
    provisioner_on,
    received,
    report,
    revision_id,
    stopped_at,
    weight,
)
from tests.support.starts import Forbid, a_first_start_is_the_last, a_waiting_start_obeys, batch_count
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)


async def gone(provisioner: Provisioner, worker_ids: Sequence[str]) -> None:
    """Record that the instances of workers are gone, as the instance reaper does."""
    await in_transaction(provisioner, lambda db: reaping.record_gone(db, worker_ids, "gone"))


# Planning


@locking("store.functions.CLAIM_DIRTY", "store.decisions._DECIDE", "store.decisions.DECIDE", "store.decisions.LAUNCH")
async def test_two_planners_launch_once(provisioner: Provisioner) -> None:
    """The second planner sees the intents of the first, or has nothing to decide."""
    await provisioner.declare()
    await provisioner.trust()
    for round_ in range(1, 11):
        await provisioner.demand(report(4 * round_, at=round_))
        await asyncio.gather(*(provisioner.plan_step() for _ in range(4)))
        assert await provisioner.states() == {"requested": 4 * round_}
    assert await provisioner.database.fetchval("SELECT drawn FROM worker_pool") == 40


@locking("store.functions.CLAIM_DIRTY")
async def test_a_pool_being_planned_is_skipped(provisioner: Provisioner) -> None:
    """A second planner neither waits nor decides; if the first rolls back, the pool is still dirty."""
    await provisioner.declare()
    await provisioner.demand(report(2))
    async with provisioner.database.acquire() as db:
        transaction = db.transaction()
        await transaction.start()
        assert await pools.claim_dirty(db, 60) == pools.Dirty("linux", frozenset({"declared", "demand"}), START)
        second = provisioner.start(provisioner.plan_step())
        await until_ended_or_waiting(provisioner.database, second)
        assert second.done(), "the second planner waits"
        assert await second is False
        await transaction.rollback()
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 2}


@locking("store.functions.CLAIM_DIRTY", "store.demand.NEWEST")
async def test_a_change_during_a_plan_is_not_lost(provisioner: Provisioner) -> None:
    """The change commits without waiting for the planner and makes the pool dirty again."""
    await provisioner.declare()
    await provisioner.demand(report(1))
    async with stopped_at(provisioner, "outbox", provisioner.plan_step()) as planning:
        await provisioner.demand(report(3, at=1))
    await planning
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 3}


@locking("store.marks.POSTPONE", "store.functions.CLAIM_DIRTY")
async def test_a_postponement_while_another_plans(provisioner: Provisioner) -> None:
    """Neither waits for the other's marks: the planner that holds the pool decides, and postponed marks are kept."""
    await provisioner.declare()
    await provisioner.demand(report(2))

    async def postpone(db: Connection) -> bool:
        return await marks.postpone(db, "linux", 5)

    async with stopped_at(provisioner, "outbox", provisioner.plan_step()) as planning:
        await in_transaction(provisioner, postpone)
    await planning
    assert await provisioner.states() == {"requested": 2}
    await provisioner.demand(report(4, at=1))
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await postpone(db)
            planning = provisioner.start(provisioner.plan())
            await provisioner.until_waiting(planning)
        await planning
    await provisioner.set_clock(6)
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 4}


@locking("store.functions.CLAIM_DIRTY")
async def test_a_plan_during_a_change_leaves_its_mark(provisioner: Provisioner) -> None:
    """A planner deletes no mark whose change it cannot see."""
    await provisioner.declare()
    async with provisioner.database.acquire() as db, db.transaction():
        await db.execute("INSERT INTO dirty_pool (pool_id, reason) VALUES ('linux', 'test')")
        await provisioner.plan()
        await db.execute(
            "INSERT INTO demand (pool_id, source, pending, claimed, observed_at, valid_for_seconds) "
            "VALUES ('linux', 'q', 2, 0, slipway_clock(), 300)"
        )
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 2}


@locking("store.demand.NEWEST")
@pytest.mark.parametrize(("first", "second"), [((5, 1), (9, 2)), ((9, 2), (5, 1))])
async def test_the_newest_report_wins_in_any_order_of_commits(
    provisioner: Provisioner, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """A report that waited for another one is compared with the row that it finds then."""
    await provisioner.declare()
    await provisioner.demand(report(1))
    async with stopped_at(provisioner, "dirty_pool", provisioner.demand(report(first[0], at=first[1]))) as one:
        two = provisioner.start(provisioner.demand(report(second[0], at=second[1])))
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    assert await provisioner.database.fetchval("SELECT pending FROM demand") == 9


# Starts, and commands that forbid them


async def drain(db: Connection) -> None:
    """Drain zone-a, as a replacement by `now` does."""
    await roll_outs.lock(db, roll_outs.Name("linux", "zone-a"))
    assert await roll_outs.drain(db, [Drain(id=revision_id(), state_reason="drill", state_by="op")])


async def stop_launches(db: Connection, scope: str, scope_id: str) -> None:
    await launch_stops.put(db, scope, scope_id, reason="drill", by="op", until=None)


FORBID: Final[dict[str, Forbid]] = {
    "launch stop on everything": lambda db: stop_launches(db, "all", ""),
    "launch stop on the account": lambda db: stop_launches(db, "account", "sim-a"),
    "launch stop on the pool": lambda db: stop_launches(db, "pool", "linux"),
    "pause of the pool": lambda db: pauses.pause(db, "linux", reason="drill", by="op", until=None),
    "pause": lambda db: configs.pause(db, "zone-a", reason="drill", by="op", until=None, command=True),
    "freeze": lambda db: pauses.freeze(db, "linux", reason="drill", by="op"),
    "drain": lambda db: drain(db),
}
SHARED: Final = (
    "store.configs.SHARE",
    "store.launch_stops.EXCLUDE_STARTS",
    "store.launch_stops.PUT",
    "store.configs.PAUSE",
    "store.configs.TOUCH",
    "store.pauses.PAUSE",
    "store.pauses.FREEZE",
)


@locking(*SHARED)
@pytest.mark.parametrize("forbid", FORBID.values(), ids=FORBID)
async def test_a_start_that_waited_for_a_command_obeys_it(provisioner: Provisioner, forbid: Forbid) -> None:
    """The command was first: the start waits for it and then sees it."""
    await a_waiting_start_obeys(provisioner, forbid)


@locking(*SHARED)
@pytest.mark.parametrize("forbid", FORBID.values(), ids=FORBID)
async def test_a_command_waits_for_a_start_that_was_first(provisioner: Provisioner, forbid: Forbid) -> None:
    """After the command has committed, no other start commits."""
    await a_first_start_is_the_last(provisioner, forbid)


@locking("store.launch_stops.LIFT", "store.launch_stops.EXCLUDE_STARTS")
async def test_a_start_that_waited_for_the_end_of_a_launch_stop(provisioner: Provisioner) -> None:
    """The start commits."""
    (grant,) = await provisioner.admitted()
    await in_transaction(provisioner, FORBID["launch stop on everything"])
    async with provisioner.database.acquire() as db, provisioner.database.acquire() as other:
        async with db.transaction():
            assert await launch_stops.lift(db, "all", "")
            start = provisioner.start(provisioner.launcher._start(other, grant.lease_id))
            await provisioner.until_waiting(start)
        assert await start is not None


@locking("store.leases.TRY_LOCK", "store.workers.BY_LEASE", "store.workers.UPDATE")
async def test_two_launchers_make_one_batch(provisioner: Provisioner) -> None:
    """One lease has one start statement and one call with all its intents."""
    await provisioner.admitted(3)
    launchers = [Launcher(provisioner.settings, provisioner.providers) for _ in range(4)]
    started = await asyncio.gather(*(launcher.launch_next(provisioner.database) for launcher in launchers))
    await asyncio.gather(*(call for launcher in launchers for call in launcher.calls))
    assert sorted(started) == [False, False, False, True]
    assert [call.count for call in provisioner.cloud.calls] == [3]
    assert len(await provisioner.published(LeaseConfirmRequested)) == 1


@locking("store.leases.TRY_LOCK", "store.leases.LOCK")
async def test_a_locked_lease_does_not_block_a_launcher(provisioner: Provisioner) -> None:
    """The launcher continues with the next lease."""
    first, _second = await provisioner.admitted(2, "zone-a", "zone-b")
    async with provisioner.database.acquire() as db, db.transaction():
        await leases.lock(db, first.lease_id)
        await provisioner.launch()
        assert [call.config["id"] for call in provisioner.cloud.calls] == [revision_id("zone-b")]


@locking("store.leases.LOCK", "store.leases.LOCK_MANY", "store.leases.END", "store.workers.BY_LEASE")
async def test_a_lease_that_ends_during_a_start(provisioner: Provisioner) -> None:
    """The call is made and recorded; its intents do not request admission again."""
    (grant,) = await provisioner.admitted()
    async with stopped_at(provisioner, "launch_batch", provisioner.launch()) as start:
        ending = provisioner.start(provisioner.leases(lost(grant)))
        await provisioner.until_waiting(start, ending)
    await asyncio.gather(start, ending)
    assert await provisioner.states() == {"starting": 1}
    assert await provisioner.published(WorkerDelayed) == []


@locking("store.leases.LOCK_MANY", "store.leases.END", "store.leases.TRY_LOCK")
async def test_a_start_while_its_lease_ends(provisioner: Provisioner) -> None:
    """No call is made under a lease that ended first."""
    (grant,) = await provisioner.admitted()
    async with stopped_at(provisioner, "outbox", provisioner.leases(lost(grant))) as ending:
        await provisioner.launch()
    await ending
    await provisioner.launch()
    assert await batch_count(provisioner) == 0
    assert len(await provisioner.published(WorkerDelayed)) == 1


def lost(grant: lease_events.LeaseGranted) -> lease_events.LeaseLost:
    return lease_events.LeaseLost(
        lease_pool_id=grant.lease_pool_id,
        lease_id=grant.lease_id,
        request_id=grant.request_id,
        units=grant.units,
        counted_until=after(70),
    )


def confirmed(lease_id: str, seconds: float = 300) -> lease_events.LeaseConfirmed:
    return lease_events.LeaseConfirmed(
        lease_pool_id="sim-a", lease_id=lease_id, fencing_token=1, expires_at=after(seconds)
    )


# Admission


GRANT_AND_CANCEL: Final = (
    "store.leases.LOCK_REQUESTS",
    "store.leases.REQUESTS_OF",
    "store.workers.BY_REQUEST",
    "store.workers.LOCK_FREE",
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


@locking("store.leases.LEASES_OF", "store.leases.LOCK_MANY", "store.leases.END")
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


@locking("store.leases.LEASES_OF", "store.leases.LOCK_MANY", "store.leases.END")
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


@locking("store.unleased.LOCK", "store.leases.LOCK_REQUESTS", "store.leases.TAKE", "store.workers.BY_REQUEST")
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


@locking("store.leases.CONFIRM", "store.leases.LOCK_MANY", "store.leases.RELEASE")
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


@locking("store.leases.LOCK_MANY", "store.leases.LOCK_REQUESTS", "store.leases.RELEASE", "store.workers.LOCK")
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


# Termination by a person


async def terminate(provisioner: Provisioner, worker: Worker, folder: Path) -> httpx2.Response:
    async with administrator(provisioner, folder) as client:
        return await client.post(f"/workers/{worker.id}/terminate", json={"reason": "drill"})


TERMINATE: Final = ("store.leases.LOCK_MANY", "store.leases.LOCK_REQUESTS", "store.workers.LOCK")


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


@locking(*TERMINATE, "store.leases.TRY_LOCK", "store.workers.BY_LEASE")
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


@locking(*TERMINATE, "store.leases.TRY_LOCK")
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


# Calls, replies and machines


BATCH: Final = (
    "store.batches.LOCK",
    "store.batches.KNOWN",
    "store.workers.BATCH",
    "store.workers.BY_INSTANCE",
    "store.workers.UPDATE",
)


async def in_flight(provisioner: Provisioner, pending: int) -> tuple[Batch, list[Worker]]:
    """A call without a reply so far."""
    (grant,) = await provisioner.admitted(pending)
    async with provisioner.database.acquire() as db:
        started = await provisioner.launcher._start(db, grant.lease_id)
    assert started is not None
    return started[0], await provisioner.workers()


@locking(*BATCH)
async def test_a_reply_that_waited_for_a_registration(provisioner: Provisioner) -> None:
    """The machine keeps its worker, and the reply binds the others."""
    batch, _ = await in_flight(provisioner, 2)
    async with stopped_at(provisioner, "outbox", provisioner.register("i-b", batch.id)) as registering:
        reply = provisioner.start(provisioner.launcher.record(provisioner.database, batch, ["i-a", "i-b"]))
        await provisioner.until_waiting(registering, reply)
    await asyncio.gather(registering, reply)
    assert [(w.instance_id, w.state) for w in await provisioner.workers()] == [("i-b", "running"), ("i-a", "starting")]
    assert len(await provisioner.published(WorkerLaunched)) == 2


@locking(*BATCH)
async def test_a_registration_that_waited_for_the_reply(provisioner: Provisioner) -> None:
    """It finds the worker that its instance was bound to."""
    batch, _ = await in_flight(provisioner, 2)
    record = provisioner.launcher.record(provisioner.database, batch, ["i-a", "i-b"])
    async with stopped_at(provisioner, "outbox", record) as reply:
        registering = provisioner.start(provisioner.register("i-b", batch.id))
        await provisioner.until_waiting(reply, registering)
    await reply
    assert (await registering).status_code == 200
    assert [(w.instance_id, w.state) for w in await provisioner.workers()] == [("i-a", "starting"), ("i-b", "running")]


@locking("store.batches.LOCK", "store.workers.BATCH")
async def test_two_registrations_of_a_batch_take_two_intents(provisioner: Provisioner) -> None:
    """A third one, an orphan instance, is refused."""
    batch, _ = await in_flight(provisioner, 2)
    answers = await asyncio.gather(*(provisioner.register(f"i-{name}", batch.id) for name in "abc"))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 409]
    assert len({answer.json()["worker_id"] for answer in answers if answer.status_code == 200}) == 2


@locking("store.batches.LOCK", "store.workers.BY_INSTANCE")
async def test_one_machine_that_registers_twice_at_once(provisioner: Provisioner) -> None:
    """It is one worker, and the later token counts."""
    batch, _ = await in_flight(provisioner, 2)
    answers = await asyncio.gather(*(provisioner.register("i-a", batch.id) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert len({answer.json()["worker_id"] for answer in answers}) == 1
    assert await provisioner.states() == {"running": 1, "launching": 1}


@locking("store.batches.LOCK", "store.workers.BY_INSTANCE")
async def test_copies_of_a_document_that_register_at_once(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One enrols the machine, and has its token; all that wait for it are refused."""
    (worker,) = await provisioner.starting()
    own = worker.instance_id or ""
    monkeypatch.setattr(provisioner.cloud, "attested", lambda *_: Attested(own, START))
    tokens = [new_worker_token() for _ in range(3)]
    first, *others = (provisioner.register(own, worker.batch_id, token=token) for token in tokens)
    async with stopped_at(provisioner, "outbox", first) as enrolling:
        copies = [provisioner.start(other) for other in others]
        await provisioner.until_waiting(enrolling, *copies)
    answers = await asyncio.gather(enrolling, *copies)
    assert [answer.status_code for answer in answers] == [200, 409, 409]
    assert [answer.json()["type"].rpartition(":")[2] for answer in answers[1:]] == ["identity-used"] * 2
    assert (await provisioner.worker()).token_sha256 == hash_secret(tokens[0])


@locking("store.workers.LOCK", "store.workers.BY_INSTANCE", "store.leases.RELEASE")
@pytest.mark.parametrize("first", ["seen", "registered"])
async def test_a_boot_that_is_seen_and_registered_at_once(provisioner: Provisioner, first: str) -> None:
    """It is one boot in either order: the machine gets its token, and the unit is released once."""
    await provisioner.starting()
    await provisioner.database.execute("UPDATE launch_config SET boot_evidence = 'provider_running'")
    worker = await provisioner.worker()
    await provisioner.events()
    steps: dict[str, Awaitable[Any]] = {
        "seen": provisioner.reap(),
        "registered": provisioner.register(worker.instance_id or "", worker.batch_id),
    }
    async with stopped_at(provisioner, "outbox", steps.pop(first)) as one:
        other = provisioner.start(awaited(*steps.values()))
        await provisioner.until_waiting(other)
    await asyncio.gather(one, other)
    events = await provisioner.events()
    assert Counter(type(event).__name__ for event in events) == {"WorkerRegistered": 1, "LeaseReleaseRequested": 1}
    assert (await provisioner.worker()).token_sha256 is not None


@locking("store.batches.LOCK", "store.batches.KNOWN")
async def test_a_late_reply_and_a_look_up_record_one_outcome(provisioner: Provisioner) -> None:
    """The first one counts, and the other changes nothing."""
    batch, _ = await in_flight(provisioner, 2)
    launcher = provisioner.launcher
    async with stopped_at(
        provisioner, "outbox", launcher.put_back(provisioner.database, batch, "looked up")
    ) as look_up:
        reply = provisioner.start(launcher.record(provisioner.database, batch, ["i-a", "i-b"]))
        await provisioner.until_waiting(look_up, reply)
    await asyncio.gather(look_up, reply)
    assert await provisioner.states() == {"requested": 2}
    events = await provisioner.events()
    assert sum(isinstance(event, WorkerDelayed) for event in events) == 2
    assert not any(isinstance(event, WorkerLaunched) for event in events)


@locking(*SHARED)
@pytest.mark.parametrize("forbid", FORBID.values(), ids=FORBID)
async def test_a_repeat_that_waited_for_a_command_obeys_it(provisioner: Provisioner, forbid: Forbid) -> None:
    """A repeat is a start: it waits for a command that was first, and then the call is looked up."""
    provisioner.cloud.honours = True
    provisioner.cloud.script.append(OutcomeUnknown("no reply"))
    await provisioner.admitted()
    await provisioner.launch()
    await provisioner.set_clock(16)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await forbid(db)
            repeat = provisioner.start(provisioner.resolve())
            await provisioner.until_waiting(repeat)
        await repeat
    assert len(provisioner.cloud.calls) == 1


@locking("store.batches.LOCK", "store.workers.BATCH", "store.leases.LOCK")
async def test_a_repeat_beside_a_late_reply(provisioner: Provisioner) -> None:
    """The call whose reply came first is not repeated."""
    launcher, database = provisioner.launcher, provisioner.database
    batch, _ = await in_flight(provisioner, 1)
    async with stopped_at(provisioner, "worker", launcher.record(database, batch, ["i-a"])) as reply:
        repeat = provisioner.start(
            in_transaction(provisioner, lambda db: launches.may_repeat(db, batch, launcher.terms))
        )
        await provisioner.until_waiting(reply, repeat)
    await reply
    assert await repeat is False


@locking("store.batches.OVERDUE")
async def test_two_replicas_resolve_different_batches(provisioner: Provisioner) -> None:
    """A batch that was taken is left to its replica until the deadline of the attempt."""
    await in_flight(provisioner, 1)
    await provisioner.set_clock(16)

    async def take(db: Connection) -> list[Overdue]:
        return await batches.take_overdue(db, wait_seconds=10)

    async with provisioner.database.acquire() as db, db.transaction():
        assert len(await take(db)) == 1
        assert await in_transaction(provisioner, take) == []
    assert await in_transaction(provisioner, take) == []
    await provisioner.set_clock(32)
    assert len(await in_transaction(provisioner, take)) == 1


@locking("store.batches.POLLABLE", "store.batches.ACCEPTED")
async def test_two_replicas_poll_different_batches(provisioner: Provisioner) -> None:
    """An accepted batch that was taken is left to its replica until its timeout."""
    batch = await accepted_call(provisioner)

    async def take(db: Connection) -> list[Batch]:
        return await batches.take_pollable(db, poll_seconds=5)

    assert await in_transaction(provisioner, take) == []
    await provisioner.set_clock(6)
    async with provisioner.database.acquire() as db, db.transaction():
        assert [taken.id for taken in await take(db)] == [batch.id]
        assert await in_transaction(provisioner, take) == []
    assert await in_transaction(provisioner, take) == []
    await provisioner.set_clock(12)
    assert len(await in_transaction(provisioner, take)) == 1


@locking("store.batches.LOCK", "store.batches.ACCEPTED")
@pytest.mark.parametrize("first", ["accepted", "put back"])
async def test_an_acceptance_beside_a_look_up(provisioner: Provisioner, first: str) -> None:
    """An acceptance changes no recorded outcome, and the other way round the outcome counts for what was accepted."""
    batch, _ = await in_flight(provisioner, 1)
    account = await in_transaction(provisioner, lambda db: accounts.get(db, batch.account_id))
    launcher = provisioner.launcher

    async def accept(db: Connection) -> None:
        await launches.accept(db, batch, account, "handle", launcher.terms)

    async def put_back(db: Connection) -> None:
        await launches.put_back(db, batch, "looked up")

    one, other = (accept, put_back) if first == "accepted" else (put_back, accept)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await one(db)
            waiting = provisioner.start(in_transaction(provisioner, other))
            await provisioner.until_waiting(waiting)
        await waiting
    stored = await in_transaction(provisioner, lambda db: batches.get(db, batch.id))
    assert stored is not None
    assert (stored.state, stored.handle) == ("known", "handle" if first == "accepted" else "")
    assert await provisioner.states() == {"requested": 1}


@locking("store.batches.KNOWN", "store.batches.POLLED")
async def test_a_poll_beside_an_outcome(provisioner: Provisioner) -> None:
    """A poll that ends after the outcome was recorded does not ask for another one."""
    batch = await accepted_call(provisioner)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await launches.put_back(db, batch, "looked up")
            before = await batches.get(db, batch.id)
            polled = provisioner.start(
                in_transaction(provisioner, lambda tx: batches.polled(tx, batch.id, poll_seconds=99))
            )
            await provisioner.until_waiting(polled)
        await polled
    assert await in_transaction(provisioner, lambda db: batches.get(db, batch.id)) == before


@locking("store.batches.REPEATED", "store.batches.NOT_REPEATABLE")
async def test_a_repeat_beside_one_that_proved_nothing(provisioner: Provisioner) -> None:
    """The later repeat may take effect, so that the time of its call counts, and it may be repeated."""
    batch, _ = await in_flight(provisioner, 1)
    await provisioner.set_clock(16)
    (first,) = await in_transaction(provisioner, lambda db: batches.take_overdue(db, wait_seconds=10))
    await provisioner.set_clock(32)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            (second,) = await batches.take_overdue(db, wait_seconds=10)
            await batches.repeated(db, batch.id)
            late = provisioner.start(in_transaction(provisioner, lambda tx: batches.not_repeatable(tx, first.batch)))
            await provisioner.until_waiting(late)
        await late
    stored = await in_transaction(provisioner, lambda db: batches.get(db, batch.id))
    assert stored is not None
    assert (stored.repeats, stored.called_at) == (2, after(32))
    await in_transaction(provisioner, lambda tx: batches.not_repeatable(tx, second.batch))
    stored = await in_transaction(provisioner, lambda db: batches.get(db, batch.id))
    assert stored is not None
    assert (stored.repeatable, stored.called_at) == (False, START)


async def accepted_call(provisioner: Provisioner) -> Batch:
    """An accepted call, polled for the first time after 5 s."""
    provisioner.cloud.accepts_calls = True
    await provisioner.admitted()
    await provisioner.launch()
    (row,) = await provisioner.database.fetch("SELECT id::text FROM launch_batch")
    async with provisioner.database.acquire() as db:
        batch = await batches.get(db, row["id"])
    assert batch is not None
    return batch


@locking("store.workers.COUNT_OUTCOMES", "store.outcomes.REPAIR")
async def test_failures_add_up(provisioner: Provisioner) -> None:
    """Failures of concurrent calls are all counted, in any order of configs; a repair lowers no counter."""
    outcome = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "", "InsufficientCapacity")
    await provisioner.admitted(8, "zone-a", "zone-b")
    async with provisioner.database.acquire() as db:
        for lease_id in ("lease-1", "lease-2"):
            assert await provisioner.launcher._start(db, lease_id)
    everybody = await provisioner.workers()
    by_config = sorted(everybody, key=lambda worker: worker.launch_config_id)

    async def fail(some: list[Worker]) -> None:
        async with provisioner.database.acquire() as db, db.transaction():
            await workers.save(db, [launch_failed(worker, outcome, after(0)) for worker in some])

    halves = by_config[::2], by_config[::-2]
    await asyncio.gather(*(fail(half) for half in halves), provisioner.database.fetch(outcomes.REPAIR, "linux"))
    await provisioner.database.execute("UPDATE launch_batch SET state = 'known'")
    failed = Counter(worker.launch_config_id for worker in everybody)
    assert await failures(provisioner) == failed
    await provisioner.database.execute(
        "UPDATE launch_config_outcomes SET failures = 1 WHERE launch_config_id = $1 AND stage = 'launch'", revision_id()
    )
    await asyncio.gather(*(provisioner.database.fetch(outcomes.REPAIR, "linux") for _ in range(3)))
    assert await failures(provisioner) == failed


async def failures(provisioner: Provisioner) -> dict[str, int]:
    counted = "SELECT launch_config_id, failures FROM launch_config_outcomes WHERE stage = 'launch' AND failures > 0"
    return dict(await provisioner.database.fetch(counted))


async def running(provisioner: Provisioner, pending: int = 1) -> list[tuple[Worker, str]]:
    """Registered workers and their tokens."""
    pairs = []
    for worker in await provisioner.starting(pending):
        answer = await provisioner.register(worker.instance_id or "", worker.batch_id)
        pairs.append((worker, answer.json()["token"]))
    return pairs


async def send_report(provisioner: Provisioner, token: str, path: str, **body: Any) -> int:
    async with provisioner.client(token=token) as client:
        answer = await client.post(f"/workers/{path}", json={"at": after(0).isoformat()} | body)
        status: int = answer.status_code
        return status


@locking("store.demand.SAVE", "store.demand.CLOSE", "store.workers.LOCK")
async def test_a_claim_that_is_reported_twice_at_once(provisioner: Provisioner) -> None:
    """A claim that is reported twice concurrently is one claim and one event; so is its end, and that of the worker."""
    ((worker, token),) = await running(provisioner)
    await provisioner.events()
    claim = {"path": f"{worker.id}/claimed", "task_id": "t", "source": "q"}
    assert await asyncio.gather(*(send_report(provisioner, token, **claim) for _ in range(3))) == [200] * 3
    assert len(await provisioner.published(WorkerClaimed)) == 1
    end = {"path": f"{worker.id}/idle", "at": after(1).isoformat()}
    assert await asyncio.gather(*(send_report(provisioner, token, **end) for _ in range(3))) == [200] * 3
    assert len(await provisioner.events()) == 1
    assert await provisioner.database.fetchval("SELECT count(*) FROM claim WHERE ended_at IS NOT NULL") == 1
    await send_report(provisioner, token, f"{worker.id}/claimed", task_id="u", source="q", at=after(2).isoformat())
    ends = await asyncio.gather(*(send_report(provisioner, token, f"{worker.id}/stopped") for _ in range(3)))
    assert sorted(ends) == [200, 410, 410]
    assert await provisioner.database.fetchval("SELECT count(*) FROM claim WHERE ended_at IS NULL") == 0


@locking("store.demand.FORGET")
async def test_old_claims_are_forgotten_beside_other_reports(provisioner: Provisioner) -> None:
    """Of a worker that reports several claims concurrently, each of which ends the one before: a thousand are left."""
    (worker,) = await provisioner.starting(1)
    token = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()["token"]
    await provisioner.end_claims(worker.id, 1100)
    claims = (
        send_report(
            provisioner, token, f"{worker.id}/claimed", task_id=f"t{n}", source="q", at=after(2 + n).isoformat()
        )
        for n in range(3)
    )
    assert await asyncio.gather(*claims) == [200] * 3
    numbers = await provisioner.database.fetchrow("SELECT count(ended_at), count(*) - count(ended_at) FROM claim")
    assert tuple(numbers or ()) == (1000, 1)


@locking("store.workers.LOCK", "store.workers.TOUCH")
async def test_a_heartbeat_that_waited_for_a_claim(provisioner: Provisioner) -> None:
    """It records the contact, and leaves the claim as it is."""
    ((worker, token),) = await running(provisioner)
    await provisioner.set_clock(9)
    claim = send_report(provisioner, token, f"{worker.id}/claimed", task_id="t", source="q", at=after(9).isoformat())
    async with stopped_at(provisioner, "claim", claim) as claiming:
        beating = provisioner.start(send_report(provisioner, token, f"{worker.id}/heartbeat"))
        await provisioner.until_waiting(claiming, beating)
    assert (await claiming, await beating) == (200, 200)
    seen = await provisioner.worker()
    assert (seen.idle_since, seen.first_claimed_at, seen.last_seen_at) == (None, after(9), after(9))


@locking("store.workers.LOCK")
async def test_a_claim_comes_before_giving_up(provisioner: Provisioner) -> None:
    """A worker that claimed a task while its expiry waited is busy; one that is idle again has a new idle time."""
    ((worker, token),) = await running(provisioner)
    await provisioner.set_clock(301)
    await provisioner.demand(report(5, at=0.5, valid_for_seconds=900))
    claim = send_report(provisioner, token, f"{worker.id}/claimed", task_id="t", source="q", at=after(301).isoformat())
    async with stopped_at(provisioner, "claim", claim) as claiming:
        giving_up = provisioner.start(provisioner.expire())
        await provisioner.until_waiting(claiming, giving_up)
    await asyncio.gather(claiming, giving_up)
    assert await provisioner.states() == {"running": 1}
    assert await provisioner.published(WorkerStopping) == []


@locking("store.terminations.TAKE_STOPPING", "store.workers.LOCK")
async def test_a_claim_at_the_moment_of_a_stop(provisioner: Provisioner) -> None:
    """A claim that waited for the stop of its idle worker is recorded, and the machine is not terminated: neither while
    the claim is not committed, nor while the task runs."""
    ((worker, token),) = await running(provisioner)
    await provisioner.set_clock(301)
    await provisioner.demand(report(0, at=300))
    claim = send_report(provisioner, token, f"{worker.id}/claimed", task_id="t", source="q", at=after(301).isoformat())
    async with stopped_at(provisioner, "outbox", provisioner.plan()) as planning:
        claiming = provisioner.start(claim)
        await provisioner.until_waiting(planning, claiming)
    assert (await planning, await claiming) == (None, 200)
    assert (await provisioner.worker()).is_finishing
    await provisioner.set_clock(1000)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []


@locking("store.terminations.TAKE_STOPPING", "store.workers.LOCK")
async def test_a_termination_beside_a_claim(provisioner: Provisioner) -> None:
    """At the end of the grace period the machine is not terminated while its claim is not committed, nor afterwards."""
    ((worker, token),) = await running(provisioner)
    await provisioner.set_clock(301)
    await provisioner.demand(report(0, at=300))
    await provisioner.plan()
    assert await provisioner.states() == {"stopping": 1}
    await provisioner.set_clock(422)
    claim = send_report(provisioner, token, f"{worker.id}/claimed", task_id="t", source="q", at=after(421).isoformat())
    async with stopped_at(provisioner, "claim", claim) as claiming:
        await provisioner.terminate_instances()
    assert await claiming == 200
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []


@locking("store.deadlines.RECORD")
async def test_two_replicas_record_one_downtime(provisioner: Provisioner) -> None:
    """The pass that waited for the other follows it at once, whatever the clock was when it began to wait."""
    await provisioner.set_clock(0)
    await provisioner.jump_clock(600)
    database = provisioner.database
    async with database.acquire() as first, first.transaction():
        assert await deadlines.record_pass(first, regular_seconds=5) == 595
        second = provisioner.start(in_transaction(provisioner, lambda db: deadlines.record_pass(db, regular_seconds=5)))
        await provisioner.until_waiting(second)
    assert await second == 0
    assert await database.fetchval("SELECT count(*) FROM downtime") == 1


@locking("store.terminations.TAKE_STOPPING", "store.workers.LOCK")
async def test_workers_are_locked_in_one_order(provisioner: Provisioner) -> None:
    """Terminating instances, finding them missing and stopping workers do not deadlock."""
    everybody = await provisioner.starting(20)
    ids = [worker.id for worker in everybody]
    await provisioner.set_clock(901)
    await provisioner.expire()
    for _ in range(5):
        await asyncio.gather(
            provisioner.database.execute(stored.TAKE_STOPPING, 0, 0),
            gone(provisioner, ids[:10]),
            provisioner.database.execute(stored.TAKE_STOPPING, 0, 0),
        )
    assert await provisioner.states() == {"stopping": 10, "stopped": 10}


@locking("store.accounts.SET_LISTING_PROBLEM")
async def test_two_replicas_raise_one_alert_for_an_implausible_listing(provisioner: Provisioner) -> None:
    """The replica that waited for the other finds no change."""
    await provisioner.declare()

    async def report_problem(db: Connection) -> bool:
        return await accounts.record_listing_problem(db, "sim-a", "the listing is empty")

    async with provisioner.database.acquire() as db:
        async with db.transaction():
            assert await report_problem(db)
            second = provisioner.start(in_transaction(provisioner, report_problem))
            await provisioner.until_waiting(second)
        assert await second is False


@locking("store.accounts.SET_MASS_UNRESPONSIVE")
async def test_two_replicas_raise_one_alert_for_silent_workers(provisioner: Provisioner) -> None:
    """The replica that waited for the other finds no change."""
    await provisioner.declare()

    async def report_silence(db: Connection) -> bool:
        return await accounts.record_mass_unresponsive(db, "sim-a", mass_unresponsive=True)

    async with provisioner.database.acquire() as db:
        async with db.transaction():
            assert await report_silence(db)
            second = provisioner.start(in_transaction(provisioner, report_silence))
            await provisioner.until_waiting(second)
        assert await second is False


def protecting(instance_id: str) -> Callable[[Connection], Awaitable[None]]:
    """Transaction that records an instance which the account refuses to terminate."""
    return lambda db: refused_terminations.record_refused(db, "sim-a", {instance_id: Protected("it is protected")})


@locking("store.accounts.PROTECT")
@pytest.mark.parametrize(("other", "alerts"), [("i-1", [("i-1",)]), ("i-2", [("i-1",), ("i-1", "i-2")])])
async def test_replicas_that_record_protected_instances(
    provisioner: Provisioner, other: str, alerts: list[tuple[str, ...]]
) -> None:
    """Each instance is an alert once, and none of the second replica is lost."""
    await provisioner.declare()
    await provisioner.events()
    async with stopped_at(provisioner, "outbox", in_transaction(provisioner, protecting("i-1"))) as one:
        two = provisioner.start(in_transaction(provisioner, protecting(other)))
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    assert [alert.evidence for alert in await provisioner.published(AlertRaised)] == alerts


@locking("store.accounts.PROTECT", "store.accounts.UNPROTECT")
async def test_a_protected_instance_is_forgotten_while_another_is_found(provisioner: Provisioner) -> None:
    """The one that is found stays, and the alert with it."""
    await provisioner.declare()
    await in_transaction(provisioner, protecting("i-1"))
    await provisioner.events()
    forget = in_transaction(provisioner, lambda db: refused_terminations.forget_gone(db, "sim-a", ["i-1"]))
    async with stopped_at(provisioner, "outbox", forget) as one:
        two = provisioner.start(in_transaction(provisioner, protecting("i-2")))
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    alerts = [event for event in await provisioner.events() if isinstance(event, AlertRaised | AlertResolved)]
    assert [(type(alert), alert.evidence) for alert in alerts] == [(AlertResolved, ("i-1",)), (AlertRaised, ("i-2",))]


@locking("store.accounts.DUE", "store.accounts.PASSED")
async def test_two_reapers_pass_once(provisioner: Provisioner) -> None:
    """An account with a pass in progress is left to its replica, and each pass is counted."""
    await provisioner.declare()
    async with provisioner.database.acquire() as db, db.transaction():
        assert await accounts.due_for_reaping(db, 60) is not None
        assert await in_transaction(provisioner, lambda other: accounts.due_for_reaping(other, 60)) is None
    for round_ in range(1, 4):
        await provisioner.set_clock(61 * round_)
        await asyncio.gather(*(provisioner.reap() for _ in range(3)))
    assert await provisioner.database.fetchval("SELECT passes FROM account") == 3


@locking("store.accounts.DUE", "store.accounts.LASTS")
async def test_a_pass_that_lasts_is_begun_once(provisioner: Provisioner) -> None:
    """An account is not due while its listing goes on, also while another replica is about to record that."""
    await provisioner.declare()
    async with provisioner.database.acquire() as db:
        assert await accounts.due_for_reaping(db, 60) is not None
    await provisioner.set_clock(61)
    async with provisioner.database.acquire() as db, db.transaction():
        await accounts.pass_lasts(db, "sim-a")
        assert await in_transaction(provisioner, lambda other: accounts.due_for_reaping(other, 60)) is None
    assert await in_transaction(provisioner, lambda other: accounts.due_for_reaping(other, 60)) is None
    await provisioner.set_clock(122)
    assert await in_transaction(provisioner, lambda other: accounts.due_for_reaping(other, 60)) is not None


@locking(
    "store.orphans.RECORD",
    "store.orphans.FORGET",
    "store.orphans.LOCK",
    "store.orphans.LOCK_ALL",
    "store.orphans.DECIDE",
    "store.instances.FORGET_MISSING",
    "store.instances.RECORD_MISSING",
)
async def test_a_decision_during_a_pass_is_kept(provisioner: Provisioner) -> None:
    """The pass under way waits for it and keeps it, or the decision waits for the pass and finds its rows."""
    await provisioner.declare()
    kept = [
        Kept(Instance(id=f"i-{n}", batch_id="", created_at=START, state=InstanceState.RUNNING), "unknown")
        for n in range(2)
    ]

    async def record(db: Connection) -> Any:
        await instances.record_missing(db, "sim-a", [])
        return await orphans.record(db, "sim-a", kept, remaining=[])

    async def decide(db: Connection, name: str, action: Action) -> None:
        await recovery.confirm(db, {("sim-a", name): action}, by="me")

    assert await in_transaction(provisioner, record) == (0, 2)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await decide(db, "i-0", Action.TERMINATE)
            passing = provisioner.start(in_transaction(provisioner, record))
            await provisioner.until_waiting(passing)
        assert await passing == (1, 1)
        async with db.transaction():
            await record(db)
            deciding = provisioner.start(in_transaction(provisioner, lambda other: decide(other, "i-1", Action.LEAVE)))
            await provisioner.until_waiting(deciding)
        await deciding
    found = await orphans.of_account(provisioner.database, "sim-a")
    assert [(orphan.instance_id, orphan.decision) for orphan in found] == [("i-0", "terminate"), ("i-1", "leave")]


@locking("store.orphans.ADOPTED", "store.recovery.LOCK_REVISIONS")
async def test_an_instance_is_adopted_once(provisioner: Provisioner) -> None:
    """Two persons confirm at the same time: it gets one worker. A revision that is archived meanwhile gets none."""
    await provisioner.declare()
    instance = Instance(
        id="i-1", batch_id=new_id(), launch_config_id=revision_id(), created_at=START, state=InstanceState.RUNNING
    )

    async def adopt(db: Connection) -> recovery.Confirmed:
        return await recovery.confirm(db, {("sim-a", "i-1"): Action.ADOPT}, by="me")

    async def record(db: Connection) -> None:
        await orphans.record(db, "sim-a", [Kept(instance, "unknown")], remaining=[])

    await in_transaction(provisioner, record)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            assert (await adopt(db)).adopted == 1
            second = provisioner.start(in_transaction(provisioner, adopt))
            await provisioner.until_waiting(second)
        assert (await second).adopted == 0
        assert await provisioner.states() == {"running": 1}
        await provisioner.database.execute("DELETE FROM worker")
        await in_transaction(provisioner, record)
        async with db.transaction():
            await db.execute("UPDATE launch_config SET state = 'archived'")
            third = provisioner.start(in_transaction(provisioner, adopt))
            await provisioner.until_waiting(third)
        with pytest.raises(recovery.CannotAdopt):
            await third
    assert await provisioner.states() == {}


@locking("store.recovery.LOCK_POOLS")
async def test_no_plan_misses_an_adoption(provisioner: Provisioner) -> None:
    """A plan under way commits first, so that its intents are cancelled; the pool is not planned during an adoption."""
    await provisioner.declare()
    instance = Instance(
        id="i-1", batch_id=new_id(), launch_config_id=revision_id(), created_at=START, state=InstanceState.RUNNING
    )

    async def adopt(db: Connection) -> recovery.Confirmed:
        return await recovery.confirm(db, {("sim-a", "i-1"): Action.ADOPT}, by="me")

    await in_transaction(provisioner, lambda db: orphans.record(db, "sim-a", [Kept(instance, "unknown")], remaining=[]))
    await provisioner.demand(report(1))
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            assert await pools.claim_dirty(db, 60) is not None
            adopting = provisioner.start(in_transaction(provisioner, adopt))
            await provisioner.until_waiting(adopting)
        await adopting
        await provisioner.database.execute("DELETE FROM worker")
        await in_transaction(
            provisioner, lambda other: orphans.record(other, "sim-a", [Kept(instance, "unknown")], remaining=[])
        )
        async with db.transaction():
            await adopt(db)
            assert not await provisioner.plan_step()
    await provisioner.plan()
    assert await provisioner.states() == {"running": 1}


@locking("store.restores.RAISE_REVISIONS", "store.restores.REPUBLISH")
async def test_no_start_misses_a_restore(provisioner: Provisioner) -> None:
    """A start under way commits first; one that begins while the restore is recorded launches nothing."""
    await provisioner.admitted(1)

    async def begin(db: Connection) -> None:
        await recovery.stop_until_confirmed(db, Incarnation("new", "restored", ("old",), 2**50, None))

    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await begin(db)
            launching = provisioner.start(provisioner.launch())
            await provisioner.until_waiting(launching)
        await launching
    assert provisioner.cloud.calls == []
    assert await provisioner.states() == {"requested": 1}


# Commands, declarations, sweeps, weights


@locking("store.sweeps.NEXT_TO_SWEEP", "store.sweeps.CONFIGS_OF", "store.configs.PAUSE")
async def test_a_sweep_does_not_publish_over_a_pause(provisioner: Provisioner) -> None:
    """It waits for the pause and republishes the state that follows."""
    await provisioner.declare()
    await provisioner.set_clock(601)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await FORBID["pause"](db)
            sweeping = provisioner.start(provisioner.sweep())
            await provisioner.until_waiting(sweeping)
        await sweeping
    events = await provisioner.events()
    states = [event.state for event in events if isinstance(event, LaunchConfigPaused | LaunchConfigUpdated)]
    assert states == ["paused", "paused"]


@locking("store.outcomes.WRITE_OFF", "store.workers.COUNT_OUTCOMES")
async def test_a_failure_during_a_sweep_is_not_written_off(provisioner: Provisioner) -> None:
    """The sweep waits for it and restarts the hour. Sweeps and failures lock in one order."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    await provisioner.trust()
    both = ([revision_id("zone-b"), revision_id()], ["boot"] * 2, [True] * 2)
    await provisioner.database.execute(workers.COUNT_OUTCOMES, *both)
    await provisioner.database.execute("DELETE FROM outbox")
    await provisioner.set_clock(601)
    await provisioner.sweep()
    await provisioner.database.execute("DELETE FROM outbox")
    await provisioner.set_clock(4202)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await db.execute(workers.COUNT_OUTCOMES, [revision_id()], ["boot"], [True])
            sweeping = provisioner.start(provisioner.database.fetch(outcomes.WRITE_OFF, "linux", True))
            await provisioner.until_waiting(sweeping)
        await sweeping
    written_off = (
        "SELECT array_agg(written_off ORDER BY launch_config_id) FROM launch_config_outcomes WHERE stage = 'boot'"
    )
    assert await provisioner.database.fetchval(written_off) == [0, 1]
    for _ in range(5):
        await asyncio.gather(
            *(provisioner.database.execute(workers.COUNT_OUTCOMES, *both) for _ in range(3)),
            *(provisioner.database.fetch(outcomes.WRITE_OFF, "linux", True) for _ in range(3)),
        )


@locking("store.sweeps.NEXT_TO_SWEEP")
async def test_two_sweeps_sweep_once(provisioner: Provisioner) -> None:
    await provisioner.declare()
    await provisioner.events()
    await provisioner.set_clock(601)
    await asyncio.gather(*(provisioner.sweep() for _ in range(4)))
    assert len(await provisioner.published(LaunchConfigUpdated)) == 1


OLD_ROWS: Final = """
UPDATE worker SET state = 'stopped', ended_at = slipway_clock();
UPDATE lease SET state = 'ended';
DELETE FROM decision;
DELETE FROM pool_revision;
DELETE FROM dirty_pool;
INSERT INTO dirty_pool (pool_id, reason) VALUES ('gone', 'a weight');
INSERT INTO decision (id, pool_id, at, last_at, launched, reason, details)
VALUES (gen_random_uuid(), 'linux', slipway_clock(), slipway_clock(), 0, '', '{}');
INSERT INTO claim (worker_id, source, task_id, claimed_at, reported_at, pool_id, started_at, ended_at)
VALUES (gen_random_uuid(), 's', 't', '', slipway_clock(), 'linux', slipway_clock(), slipway_clock());
INSERT INTO unreachable_machine (worker_id, account_id, pool_id, launch_config_id)
VALUES (gen_random_uuid(), 'sim-y', 'linux', 'a');
INSERT INTO launch_stop (scope, scope_id, reason, by, until) VALUES ('pool', 'linux', 'drill', 'op', slipway_clock());
INSERT INTO pool_revision (pool_id, revision, by, action, owner, revisions, spec, spec_digest, changes)
SELECT 'linux', n, 'op', 'apply', '', '{}', '{}', '', '[]' FROM generate_series(1, 11) AS n;
INSERT INTO account (id, provider, region, identity, lease_pool_id, settings, removed)
VALUES ('sim-z', 'simulated', 'r', 'i', 'sim-z', '{}', true);
INSERT INTO console_output (image_revision, account_id, pool_id, launch_config_id, batch_id, worker_id, instance_id,
    reason)
VALUES ('ami-1', 'sim-y', 'linux', 'a', gen_random_uuid(), gen_random_uuid(), 'i-1', '')"""
PRUNED: Final = (
    "claim",
    "decision",
    "worker",
    "launch_batch",
    "lease",
    "unreachable_machine",
    "launch_stop",
    "pool_revision",
    "account",
    "dirty_pool",
    "console_output",
)


async def rows(provisioner: Provisioner) -> list[int]:
    return [await provisioner.database.fetchval(f"SELECT count(*) FROM {table}") for table in PRUNED]


@locking(
    "store.retention.DELETE_CLAIMS",
    "store.retention.DELETE_DECISIONS",
    "store.retention.DELETE_WORKERS",
    "store.retention.DELETE_BATCHES",
    "store.retention.DELETE_LEASES",
    "store.retention.DELETE_UNREACHABLE",
    "store.retention.DELETE_STOPS",
    "store.retention.DELETE_REVISIONS",
    "store.retention.DELETE_ACCOUNTS",
    "store.retention.DELETE_MARKS",
    "store.retention.DELETE_CONSOLES",
)
async def test_pruning_passes_over_what_others_have_locked(provisioner: Provisioner) -> None:
    """It waits for nobody, and deletes those rows in a later round. Two that prune at once do not wait for each other
    either."""
    await provisioner.starting(1)
    await provisioner.database.execute(OLD_ROWS)
    await provisioner.set_clock(401 * 86_400)
    all_of_them = [1, 1, 1, 1, 1, 1, 1, 11, 2, 1, 1]
    async with provisioner.database.acquire() as db, db.transaction():
        for table in PRUNED:
            await db.execute(f"SELECT FROM {table} FOR UPDATE")
        pruning = provisioner.start(provisioner.prune())
        await until_ended_or_waiting(provisioner.database, pruning)
        assert pruning.done(), "pruning waits for a lock"
        await pruning
        assert await rows(provisioner) == all_of_them
    await asyncio.gather(*(provisioner.prune() for _ in range(3)))
    await provisioner.prune()
    assert await rows(provisioner) == [0, 0, 0, 0, 0, 0, 0, 10, 1, 0, 0]


@locking("store.retention.DELETE_STOPS", "store.launch_stops.PUT")
async def test_a_launch_stop_is_set_again_as_it_is_pruned(provisioner: Provisioner) -> None:
    """The command waits for the deletion, and its stop is in force."""
    await provisioner.declare()

    async def put(db: Connection, until: float) -> None:
        await launch_stops.put(db, "pool", "linux", reason="drill", by="op", until=after(until))

    await in_transaction(provisioner, lambda db: put(db, 10))
    await provisioner.set_clock(8 * 86_400)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            assert await db.execute(DELETE_STOPS.text, 7 * 86_400.0) == "DELETE 1"
            putting = provisioner.start(in_transaction(provisioner, lambda db: put(db, 9 * 86_400)))
            await provisioner.until_waiting(putting)
        await putting
        assert [stop["scope_id"] for stop in await launch_stops.in_force(db)] == ["linux"]


@locking("store.retention.DELETE_SHARES")
async def test_a_share_that_a_record_brings_back_is_pruned(provisioner: Provisioner) -> None:
    """Pruning does not wait for the transaction that stores the record, and deletes the share in a later round."""
    await provisioner.declare()
    late = (SharedWindow(kind="image", id="gone", stage="boot", version=1, window=8),)
    found = f"SELECT count(*) FROM shared_window WHERE key = '{image_key('gone').text}'"
    await provisioner.weights(weight("zone-a", shared=late))
    async with provisioner.database.acquire() as db, db.transaction():
        newer = [msgspec.structs.replace(share, version=2) for share in late]
        await weights.upsert_shared(db, newer)
        pruning = provisioner.start(provisioner.prune())
        await until_ended_or_waiting(provisioner.database, pruning)
        assert pruning.done(), "pruning waits for a lock"
    await pruning
    assert await provisioner.database.fetchval(found) == 1
    await provisioner.prune()
    assert await provisioner.database.fetchval(found) == 0


@locking("store.configs.RESUME_OVERDUE", "store.configs.RESUME", "store.configs.PAUSE")
async def test_a_pause_that_expires_while_it_is_replaced(provisioner: Provisioner) -> None:
    """The later command counts. A repeated resume resumes once."""
    await provisioner.declare()

    async def pause(db: Connection, seconds: float) -> None:
        assert await configs.pause(db, "zone-a", reason="drill", by="op", until=after(seconds), command=True)

    await in_transaction(provisioner, lambda db: pause(db, 10))
    await provisioner.set_clock(11)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await pause(db, 500)
            running_out = provisioner.start(in_transaction(provisioner, configs.resume_overdue))
            await provisioner.until_waiting(running_out)
        assert await running_out == 0
    assert await provisioner.database.fetchval("SELECT paused FROM launch_config_name")

    async def resume(db: Connection) -> bool:
        return await configs.resume(db, "zone-a", reason="over", by="op")

    assert sorted(await asyncio.gather(*(in_transaction(provisioner, resume) for _ in range(3)))) == [0, 0, 1]
    assert len(await provisioner.published(LaunchConfigResumed)) == 1


@locking("store.pauses.RESUME_OVERDUE", "store.pauses.RESUME", "store.pauses.PAUSE")
async def test_a_pool_pause_that_expires_while_it_is_replaced(provisioner: Provisioner) -> None:
    """The later command counts, and a repeated resume resumes once."""
    await provisioner.declare()

    async def pause(db: Connection, seconds: float) -> None:
        assert await pauses.pause(db, "linux", reason="drill", by="op", until=after(seconds))

    await in_transaction(provisioner, lambda db: pause(db, 10))
    await provisioner.set_clock(11)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await pause(db, 500)
            running_out = provisioner.start(in_transaction(provisioner, pauses.resume_overdue))
            await provisioner.until_waiting(running_out)
        assert await running_out == 0
    assert await provisioner.database.fetchval("SELECT paused FROM worker_pool")

    async def resume(db: Connection) -> bool:
        return await pauses.resume(db, "linux", reason="over", by="op")

    assert sorted(await asyncio.gather(*(in_transaction(provisioner, resume) for _ in range(3)))) == [0, 0, 1]
    assert len(await provisioner.published(PoolResumed)) == 1


@locking("store.pauses.FREEZE", "store.pauses.UNFREEZE", "store.pauses.DELETE_FORGIVEN")
async def test_a_pool_is_unfrozen_once(provisioner: Provisioner) -> None:
    """Concurrent freezes and unfreezes count once each; the last unfreeze decides which failures are forgiven."""
    await provisioner.declare()
    seen = SharedWindow(kind="image", id="simulated/linux-1", stage="boot", version=1, window=8, unconfirmed=7)
    await provisioner.weights(weight(shared=(seen,)))

    async def freeze(db: Connection) -> bool:
        return await pauses.freeze(db, "linux", reason="drill", by="op")

    async def unfreeze(db: Connection) -> bool:
        return await freezing.unfreeze(db, "linux", reason="over", by="op")

    for act in (freeze, unfreeze) * 2:
        assert sorted(await asyncio.gather(*(in_transaction(provisioner, act) for _ in range(3)))) == [0, 0, 1]
    assert len(await provisioner.published(PoolUnfrozen)) == 2
    rows = await provisioner.database.fetch("SELECT key, stage, unconfirmed FROM forgiven")
    assert [tuple(row) for row in rows] == [("image/simulated%2Flinux-1", "boot", 7)]


@locking("store.weights.DELETE_FORGIVEN", "store.pauses.DELETE_FORGIVEN")
async def test_records_while_a_pool_is_unfrozen(provisioner: Provisioner) -> None:
    """There is no deadlock, and never more is forgiven than has failed by the newest record."""
    await provisioner.declare()

    def record(version: int, unconfirmed: int) -> Awaitable[Any]:
        shared = tuple(
            SharedWindow(
                kind="image", id="simulated/linux-1", stage=stage, version=version, window=8, unconfirmed=unconfirmed
            )
            for stage in ("boot", "claim", "launch")
        )
        return provisioner.weights(weight(shared=shared), revision=version)

    async def unfreeze(db: Connection) -> bool:
        return await freezing.unfreeze(db, "linux", reason="over", by="op")

    for version in range(1, 25, 3):
        await record(version, 7)
        await provisioner.database.execute("UPDATE worker_pool SET frozen = true, frozen_by = 'op'")
        await asyncio.gather(record(version + 1, 0), in_transaction(provisioner, unfreeze), record(version + 2, 1))
    await record(25, 2)
    assert await provisioner.database.fetchval("SELECT count(*) FROM forgiven WHERE unconfirmed > 2") == 0


@locking("store.pauses.PAUSE", "store.functions.CLAIM_DIRTY")
async def test_a_pause_that_waited_for_a_plan(provisioner: Provisioner) -> None:
    """It is seen by the next plan, which cancels the first one's intents."""
    await provisioner.declare()
    await provisioner.demand(report(2))
    async with stopped_at(provisioner, "outbox", provisioner.plan_step()) as planning:
        pausing = provisioner.start(in_transaction(provisioner, FORBID["pause of the pool"]))
        await provisioner.until_waiting(planning, pausing)
    await asyncio.gather(planning, pausing)
    assert await provisioner.states() == {"requested": 2}
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 2}


@locking("store.configs.LOCK")
async def test_configs_are_locked_in_one_order(provisioner: Provisioner) -> None:
    """Requests that name configs in descending order do not deadlock with others, nor with a declaration."""
    await provisioner.declare(declared("zone-a", "zone-b", "zone-c"))

    def signals(kind: str, *names: str) -> list[SignalRaised]:
        return [
            SignalRaised(source="s", target_kind="config", target_id=name, kind=kind, reason="r", observed_at=after(0))
            for name in names
        ]

    for price in range(1, 9):
        body = declared("zone-b", "zone-a", "zone-c")
        for config in body["worker_pools"][0]["launch_configs"]:
            config["price_factor"] = float(price)
        await asyncio.gather(
            provisioner.signals(*signals("pause_request", "zone-a", "zone-b", "zone-c")),
            provisioner.signals(*signals("resume_request", "zone-c", "zone-b", "zone-a")),
            provisioner.declare(body),
        )
    assert await provisioner.database.fetchval("SELECT min(price_factor) FROM launch_config_name") == 8


@locking("store.weights.UPSERT", "store.weights.UPSERT_SHARED", "store.weights.DELETE")
async def test_weight_views_of_two_replicas(provisioner: Provisioner) -> None:
    """In any order of reading, the highest revision and the highest version of a share stay, without a deadlock."""
    names = [f"zone-{letter}" for letter in "abcdef"]
    await provisioner.declare(declared(*names))
    for round_ in range(1, 9):
        newer, older = (
            tuple(
                SharedWindow(kind="image", id=f"simulated/{name}", stage="boot", version=version, window=version)
                for name in names
            )
            for version in (2 * round_, 2 * round_ - 1)
        )
        await asyncio.gather(
            provisioner.weights(*(weight(n, weight=2.0, shared=newer[::-1]) for n in names), revision=2 * round_),
            provisioner.weights(*(weight(n, shared=older) for n in reversed(names)), revision=2 * round_ - 1),
        )
        sizes = "SELECT min(size) FROM shared_window WHERE key LIKE 'image/simulated%zone-%'"
        assert await provisioner.database.fetchval(sizes) == 2 * round_
    assert await provisioner.database.fetchval("SELECT min(record ->> 'weight') FROM weight") == "2.0"
    gone = [received(weight(name))[0] for name in names]
    tombstones = [type(r)(**{f: getattr(r, f) for f in r.__struct_fields__} | {"event": None}) for r in gone]
    view = WeightView()
    await asyncio.gather(
        view.apply(provisioner.database, tombstones), view.apply(provisioner.database, tombstones[::-1])
    )
    assert await provisioner.database.fetchval("SELECT count(*) FROM weight") == 0


@locking("store.weights.UPSERT_SHARED")
async def test_a_record_that_waited_for_a_plan(provisioner: Provisioner) -> None:
    """It trips a config that the plan saw as healthy, and marks the pool dirty: the next plan cancels waiting
    intents."""
    await provisioner.declare()
    await provisioner.demand(report(3))
    tripped = SharedWindow(kind="image", id="simulated/linux-1", stage="boot", version=1, window=8, state="tripped")
    async with stopped_at(provisioner, "outbox", provisioner.plan_step()) as planning:
        telling = provisioner.start(provisioner.weights(weight(shared=(tripped,))))
        await provisioner.until_waiting(telling)
    await asyncio.gather(planning, telling)
    assert await provisioner.states() == {"requested": 3}
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 3}


@locking("store.weights.UPSERT_SHARED")
async def test_a_plan_that_waited_for_a_record(provisioner: Provisioner) -> None:
    """The plan uses the record's values."""
    await provisioner.declare()
    await provisioner.demand(report(30))
    narrow = SharedWindow(kind="image", id="simulated/linux-1", stage="boot", version=1, window=2)
    telling = provisioner.weights(weight(shared=(narrow,)))
    async with stopped_at(provisioner, "dirty_pool", telling) as view:
        planning = provisioner.start(provisioner.plan())
        await provisioner.until_waiting(planning)
    await asyncio.gather(planning, view)
    assert await provisioner.states() == {"requested": 2}


# All loops concurrently


async def test_all_loops_concurrently(provisioner: Provisioner) -> None:
    """Two replicas plan, launch, request, admit, register and stop workers concurrently: the maximum holds, each
    request is answered once, each unit released once, and nothing is left at the end."""
    names = ["zone-a", "zone-b", "zone-c"]
    await provisioner.declare(declared(*names, max_capacity=12))
    await provisioner.trust()
    launchers = [Launcher(provisioner.settings, provisioner.providers) for _ in range(2)]
    serving = f"SELECT count(*) FROM worker WHERE state IN ({states(SERVING)})"
    granted, released, answered, seen = 0, 0, set[str](), 0
    demand = [9, 30, 2, 15, 0]

    async def broker() -> None:
        nonlocal granted, released, seen
        rows = await provisioner.database.fetch("SELECT id, type, value FROM outbox WHERE id > $1 ORDER BY id", seen)
        for row in rows:
            seen = row["id"]
            if row["type"] == LeaseRequested.type:
                asked = DECODE[LeaseRequested](row["value"])
                if asked.request_id not in answered:
                    answered.add(asked.request_id)
                    granted += asked.units
                    await provisioner.leases(provisioner.granted(asked))
            elif row["type"] == LeaseReleaseRequested.type:
                released += DECODE[LeaseReleaseRequested](row["value"]).units

    async def machines() -> None:
        for worker in await provisioner.workers():
            if worker.state is State.STARTING:
                await provisioner.register(worker.instance_id or "", worker.batch_id)
            elif worker.state is State.RUNNING and int(worker.id[-2:], 16) % 3 == 0:
                await gone(provisioner, [worker.id])

    async def replica(launcher: Launcher) -> None:
        for _ in range(3):
            await provisioner.plan_step()
            await launcher.launch_next(provisioner.database)
            await plan.resend_requests(provisioner.database, resend_seconds=30)
            assert await provisioner.database.fetchval(serving) <= 12

    for at, pending in enumerate(demand):
        await provisioner.demand(report(pending, at=at, valid_for_seconds=900))
        await asyncio.gather(*(replica(launcher) for launcher in launchers), broker(), machines(), machines())
    await provisioner.set_clock(121)
    for _ in range(4):
        await asyncio.gather(*(replica(launcher) for launcher in launchers), broker(), machines())
        calls = [call for launcher in launchers for call in launcher.calls]
        await asyncio.gather(*calls)
    for worker in await provisioner.workers():
        if worker.instance_id is not None:
            await gone(provisioner, [worker.id])
    await broker()
    assert await provisioner.states() == {"stopped": len(await provisioner.workers())}
    assert granted == released >= 12
    assert await provisioner.database.fetchval("SELECT count(*) FROM lease WHERE state <> 'ended'") == 0
    assert await provisioner.database.fetchval("SELECT count(*) FROM lease_request") == 0


def _decoder(kind: type[Any]) -> Callable[[bytes], Any]:
    from slipway_common.events.topics import DECODERS

    return DECODERS[kind.type].decode


DECODE: Final = {kind: _decoder(kind) for kind in (LeaseRequested, LeaseReleaseRequested, WorkerRequested)}


@locking("store.ageing.SET_ALERTED")
async def test_an_alert_on_ages_is_recorded_under_the_lock_of_the_pool(provisioner: Provisioner) -> None:
    """It waits for a plan that holds the pool."""
    await provisioner.declare()
    async with provisioner.database.acquire() as db, db.transaction():
        await db.execute("SELECT FROM worker_pool WHERE id = 'linux' FOR UPDATE")
        setting = provisioner.start(
            in_transaction(provisioner, partial(ageing.set_alerted, pool_id="linux", alerted=True))
        )
        await provisioner.until_waiting(setting)
    await setting
    assert await provisioner.database.fetchval("SELECT age_alerted FROM worker_pool WHERE id = 'linux'") is True
