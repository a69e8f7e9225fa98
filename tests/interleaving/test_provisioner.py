"""Two sessions on the plans and starts of the provisioner, and all of its loops at once."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_api.events.lease import LeaseConfirmRequested, LeaseReleaseRequested, LeaseRequested
from slipway_api.events.lifecycle import SERVING, State
from slipway_api.events.worker import WorkerDelayed, WorkerRequested
from slipway_common.database.postgres import Connection
from slipway_provisioner.loops import plan
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.store import ageing, launch_stops, leases, marks, pools
from slipway_provisioner.store.columns import states
from tests.support.cloud import START
from tests.support.harness import until_ended_or_waiting
from tests.support.interleaving import FORBID, SHARED, gone, lost
from tests.support.provisioner import (
    Provisioner,
    declared,
    in_transaction,
    report,
    revision_id,
    stopped_at,
    uncommitted,
)
from tests.support.starts import Forbid, a_first_start_is_the_last, a_waiting_start_obeys, batch_count
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)


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
        assert await pools.claim_dirty(db, 60) == [pools.Dirty("linux", frozenset({"declared", "demand"}), START)]
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
    async with uncommitted(provisioner, report(first[0], at=first[1])):
        waiting = provisioner.start(provisioner.demand(report(second[0], at=second[1])))
        await provisioner.until_waiting(waiting)
    await waiting
    assert await provisioner.database.fetchval("SELECT pending FROM demand") == 9


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
            start = provisioner.start(provisioner.launcher._start(other, [grant.lease_id]))
            await provisioner.until_waiting(start)
        assert await start


@locking("store.functions.LOCK_STARTS", "store.starts.WRITE")
async def test_two_launchers_make_one_batch(provisioner: Provisioner) -> None:
    """One lease has one start statement and one call with all its intents."""
    await provisioner.admitted(3)
    launchers = [Launcher(provisioner.settings, provisioner.providers) for _ in range(4)]
    await asyncio.gather(*(launcher.launch_next(provisioner.database) for launcher in launchers))
    await asyncio.gather(*(call for launcher in launchers for call in launcher.calls))
    assert [call.count for call in provisioner.cloud.calls] == [3]
    assert len(await provisioner.published(LeaseConfirmRequested)) == 1


@locking("store.functions.LOCK_STARTS", "store.leases.LOCK")
async def test_a_locked_lease_does_not_block_a_launcher(provisioner: Provisioner) -> None:
    """The launcher continues with the next lease."""
    first, _second = await provisioner.admitted(2, "zone-a", "zone-b")
    async with provisioner.database.acquire() as db, db.transaction():
        await leases.lock(db, first.lease_id)
        await provisioner.launch()
        assert [call.config["id"] for call in provisioner.cloud.calls] == [revision_id("zone-b")]


@locking("store.leases.LOCK", "store.functions.LOCK_LEASES", "store.leases.END", "store.workers.BY_LEASE")
async def test_a_lease_that_ends_during_a_start(provisioner: Provisioner) -> None:
    """The call is made and recorded; its intents do not request admission again."""
    (grant,) = await provisioner.admitted()
    async with stopped_at(provisioner, "launch_batch", provisioner.launch()) as start:
        ending = provisioner.start(provisioner.leases(lost(grant)))
        await provisioner.until_waiting(start, ending)
    await asyncio.gather(start, ending)
    assert await provisioner.states() == {"starting": 1}
    assert await provisioner.published(WorkerDelayed) == []


@locking("store.functions.LOCK_STARTS", "store.starts.WRITE")
async def test_several_starts_do_not_wait_for_a_locked_pool(provisioner: Provisioner) -> None:
    """They share a transaction, in which one whose pool is locked is left out: it is started alone."""
    grants = await provisioner.admitted(2, "zone-a", "zone-b")
    lease_ids = [grant.lease_id for grant in grants]
    async with provisioner.database.acquire() as db, provisioner.database.acquire() as other:
        async with other.transaction():
            await other.execute("SELECT FROM launch_config_name WHERE name = 'zone-a' FOR UPDATE")
            ((batch, _),) = await provisioner.launcher._start(db, lease_ids)
            assert batch.launch_config_id == revision_id("zone-b")
        ((batch, _),) = await provisioner.launcher._start(db, lease_ids)
    assert batch.launch_config_id == revision_id("zone-a")
    assert len(await provisioner.published(LeaseConfirmRequested)) == 2


@locking("store.leases.FREE")
async def test_a_replica_starts_none_of_the_leases_that_another_is_starting(provisioner: Provisioner) -> None:
    """It tries none of them alone, nor those that have been started meanwhile."""
    first, second = await provisioner.admitted(2, "zone-a", "zone-b")
    async with provisioner.database.acquire() as db, db.transaction():
        await leases.lock(db, first.lease_id)
        assert await leases.free(provisioner.database, [first.lease_id, second.lease_id]) == [second.lease_id]
    await provisioner.launch()
    assert await leases.free(provisioner.database, [first.lease_id, second.lease_id]) == []


@locking("store.functions.LOCK_LEASES", "store.leases.END", "store.functions.LOCK_STARTS")
async def test_a_start_while_its_lease_ends(provisioner: Provisioner) -> None:
    """No call is made under a lease that ended first."""
    (grant,) = await provisioner.admitted()
    async with stopped_at(provisioner, "outbox", provisioner.leases(lost(grant))) as ending:
        await provisioner.launch()
    await ending
    await provisioner.launch()
    assert await batch_count(provisioner) == 0
    assert len(await provisioner.published(WorkerDelayed)) == 1


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
    from slipway_api.events.topics import DECODERS

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
