"""Two sessions on the instances of an account: passes of the reaper, alerts, decisions and adoptions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.http.provisioner.recovery import RecoveryConfirmed
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.messaging.incarnation import Incarnation
from slipway_provisioner.apply import recovery, refused_terminations
from slipway_provisioner.domain.cloud import Instance, InstanceState, Protected
from slipway_provisioner.domain.reaping import Kept
from slipway_provisioner.domain.recovery import Action
from slipway_provisioner.store import accounts, instances, orphans, pools
from tests.support.cloud import START
from tests.support.provisioner import Provisioner, in_transaction, report, revision_id, stopped_at
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)


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

    async def adopt(db: Connection) -> RecoveryConfirmed:
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

    async def adopt(db: Connection) -> RecoveryConfirmed:
        return await recovery.confirm(db, {("sim-a", "i-1"): Action.ADOPT}, by="me")

    await in_transaction(provisioner, lambda db: orphans.record(db, "sim-a", [Kept(instance, "unknown")], remaining=[]))
    await provisioner.demand(report(1))
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            assert await pools.claim_dirty(db, 60)
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
