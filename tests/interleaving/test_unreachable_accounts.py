"""Accounts that stop answering, answer and are retired, beside each other and beside replies: two sessions for every
locking statement."""

from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.worker import WorkerLaunched, WorkerLaunchFailed, WorkerLost, WorkerStopping
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import reachability
from slipway_provisioner.domain.reachability import machine
from slipway_provisioner.store import reachability as store
from slipway_provisioner.store.batches import Batch
from tests.support.provisioner import Provisioner, in_transaction, stopped_at
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
CALLS: Final = ("store.reachability._UNKNOWN", "store.reachability.OPEN_CALLS")
RETIRED: Final = ("store.reachability._UNKNOWN", "store.reachability.RETIRED_CALLS", "store.reachability.RECORD")


async def in_flight(provisioner: Provisioner) -> Batch:
    """An unknown call for two workers, past its deadline. The account has not answered since."""
    (grant,) = await provisioner.admitted(2)
    async with provisioner.database.acquire() as db:
        ((batch, _),) = await provisioner.launcher._start(db, [grant.lease_id])
    await in_transaction(provisioner, unanswered)
    await provisioner.set_clock(200)
    await provisioner.events()
    return batch


async def answered(db: Connection) -> None:
    await reachability.answered(db, "sim-a")


async def unanswered(db: Connection) -> None:
    await reachability.unanswered(db, "sim-a", after_seconds=0, unreachable_seconds=120)


async def retire(db: Connection) -> None:
    await reachability.retire(db, "sim-a", reason="closed", by="op")


async def account(provisioner: Provisioner) -> dict[str, Any]:
    return dict(await provisioner.database.fetchrow("SELECT unreachable, retired, unanswered_since FROM account"))


@locking(
    "store.reachability.UNANSWERED",
    "store.reachability.ANSWERED",
    "store.reachability.SET_UNREACHABLE",
    "store.reachability.LOCK",
)
async def test_an_answer_that_waited_for_an_unanswered_call(provisioner: Provisioner) -> None:
    """It ends what the call has begun."""
    await in_flight(provisioner)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await unanswered(db)
            answer = provisioner.start(in_transaction(provisioner, answered))
            await provisioner.until_waiting(answer)
        await answer
    assert await account(provisioner) == {"unreachable": False, "retired": False, "unanswered_since": None}
    events = await provisioner.events()
    alerts = [type(event) for event in events if isinstance(event, AlertRaised | AlertResolved)]
    assert alerts == [AlertRaised, AlertResolved]


@locking("store.reachability.UNANSWERED", "store.reachability.LOCK", *CALLS)
async def test_two_unanswered_calls_make_an_account_unreachable_once(provisioner: Provisioner) -> None:
    """One alert is raised, and each worker is given up once."""
    await in_flight(provisioner)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await unanswered(db)
            second = provisioner.start(in_transaction(provisioner, unanswered))
            await provisioner.until_waiting(second)
        await second
    events = await provisioner.events()
    assert sum(isinstance(event, AlertRaised) for event in events) == 1
    assert sum(isinstance(event, WorkerStopping) for event in events) == 2


@locking(*CALLS)
async def test_workers_whose_reply_comes_first_are_not_given_up(provisioner: Provisioner) -> None:
    """A batch with a reply in progress is left to it."""
    batch = await in_flight(provisioner)
    launcher = provisioner.launcher
    async with stopped_at(
        provisioner, "launch_config_outcomes", launcher.record(provisioner.database, batch, ["i-a", "i-b"])
    ) as reply:
        await in_transaction(provisioner, unanswered)
    await reply
    assert await provisioner.states() == {"starting": 2}


@locking(*CALLS)
async def test_a_reply_that_waited_for_its_workers_to_be_given_up(provisioner: Provisioner) -> None:
    """They leave with their instances."""
    batch = await in_flight(provisioner)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await unanswered(db)
            reply = provisioner.start(provisioner.launcher.record(provisioner.database, batch, ["i-a", "i-b"]))
            await provisioner.until_waiting(reply)
        await reply
    assert await provisioner.states() == {"stopping": 2}
    assert [event.leaving for event in await provisioner.published(WorkerLaunched)] == [True, True]


@locking("store.reachability.LOCK", "store.reachability.ANSWERED")
async def test_a_retirement_that_waited_for_an_answer(provisioner: Provisioner) -> None:
    """It is refused."""
    await in_flight(provisioner)
    await in_transaction(provisioner, unanswered)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await answered(db)
            retirement = provisioner.start(in_transaction(provisioner, retire))
            await provisioner.until_waiting(retirement)
        with pytest.raises(reachability.StillReachable):
            await retirement
    assert (await account(provisioner))["retired"] is False


@locking("store.reachability.LOCK", "store.reachability.SET_RETIRED")
async def test_an_answer_that_waited_for_a_retirement(provisioner: Provisioner) -> None:
    """The account stays retired."""
    await in_flight(provisioner)
    await in_transaction(provisioner, unanswered)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await retire(db)
            answer = provisioner.start(in_transaction(provisioner, answered))
            await provisioner.until_waiting(answer)
        await answer
    assert (await account(provisioner))["retired"] is True


@locking(*RETIRED)
async def test_two_replicas_settle_a_call_once(provisioner: Provisioner) -> None:
    """The second leaves it to the first."""
    await in_flight(provisioner)
    await in_transaction(provisioner, unanswered)
    await in_transaction(provisioner, retire)
    async with provisioner.database.acquire() as db, db.transaction():
        assert await reachability.settle_calls(db) is True
        assert await in_transaction(provisioner, reachability.settle_calls) is False
    assert await provisioner.states() == {"stopped": 2}
    assert len(await provisioner.published(WorkerLaunchFailed)) == 2


@locking(*RETIRED)
async def test_a_reply_that_waited_for_its_call_to_be_settled(provisioner: Provisioner) -> None:
    """It comes too late: the machines are listed as what may still run."""
    batch = await in_flight(provisioner)
    await in_transaction(provisioner, unanswered)
    await in_transaction(provisioner, retire)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await reachability.settle_calls(db)
            reply = provisioner.start(provisioner.launcher.record(provisioner.database, batch, ["i-a", "i-b"]))
            await provisioner.until_waiting(reply)
        await reply
    assert await provisioner.states() == {"stopped": 2}
    assert await provisioner.database.fetchval("SELECT count(*) FROM unreachable_machine") == 2


@locking("store.reachability.RECORD", "store.reachability.FORGET")
async def test_two_replicas_settle_a_worker_once(provisioner: Provisioner) -> None:
    """The second finds it settled. A machine that is recorded while a pass forgets it stays until the next pass."""
    (worker,) = await provisioner.starting()
    await provisioner.set_clock(901)
    await provisioner.expire()
    await provisioner.database.execute("UPDATE account SET unreachable = true, retired = true")

    async def settle(db: Connection) -> bool:
        return await reachability.settle_workers(db, 0)

    async with provisioner.database.acquire() as db:
        async with db.transaction():
            assert await settle(db) is True
            second = provisioner.start(in_transaction(provisioner, settle))
            await provisioner.until_waiting(second)
        assert await second is False
    assert len(await provisioner.published(WorkerLost)) == 1
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await store.forget(db, "sim-a", instance_ids=[], batch_ids=[])
            record = provisioner.start(
                in_transaction(provisioner, lambda other: store.record(other, [machine(worker)]))
            )
            await provisioner.until_waiting(record)
        await record
    assert await provisioner.database.fetchval("SELECT count(*) FROM unreachable_machine") == 1
