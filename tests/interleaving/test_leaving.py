"""Interleavings of two sessions at the end of workers: marks, refused terminations, and the alerts of either."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import slipway_provisioner
from slipway_api.events.alert import AlertRaised
from slipway_api.events.worker import WorkerRequested, WorkerStopping
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import refused_terminations, starvation
from slipway_provisioner.domain.cloud import Protected
from slipway_provisioner.domain.workers import Worker
from tests.support.provisioner import Provisioner, after, declared, in_transaction, report, stopped_at
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)


async def busy(provisioner: Provisioner, number: int) -> list[tuple[Worker, str]]:
    """Workers with a task each, and their tokens."""
    pairs = []
    for worker in await provisioner.starting(number):
        token = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()["token"]
        assert await send(provisioner, token, f"{worker.id}/claimed", task_id=worker.id, source="q") == 200
        pairs.append((worker, token))
    await claimed(provisioner, number, at=1)
    return pairs


async def send(provisioner: Provisioner, token: str, path: str, **body: Any) -> int:
    async with provisioner.client(token=token) as client:
        at = after(0 if "claimed" in path else 60).isoformat()
        answer = await client.post(f"/workers/{path}", json={"at": at} | body)
        status: int = answer.status_code
        return status


async def claimed(provisioner: Provisioner, number: int, *, at: float) -> None:
    await provisioner.demand(report(0, number, at=at))
    await provisioner.plan()
    await provisioner.events()


async def marked(provisioner: Provisioner) -> int:
    number: int = await provisioner.database.fetchval(
        "SELECT count(*) FROM worker WHERE leave_after_task AND state = 'running'"
    )
    return number


async def lower(provisioner: Provisioner, maximum: int) -> None:
    """Lower the maximum; the plan that follows is the test's."""
    await provisioner.declare(declared(max_capacity=maximum))


async def test_a_task_that_ends_while_its_worker_is_marked(provisioner: Provisioner) -> None:
    """The report that waited for the mark finds it: the worker leaves."""
    ((worker, token), _) = await busy(provisioner, 2)
    await lower(provisioner, 1)
    async with stopped_at(provisioner, "pool_balance", provisioner.plan()) as planning:
        ending = provisioner.start(send(provisioner, token, f"{worker.id}/idle"))
        await provisioner.until_waiting(planning, ending)
    assert (await planning, await ending) == (None, 200)
    assert await provisioner.states() == {"running": 1, "stopping": 1}
    (event,) = await provisioner.published(WorkerStopping)
    assert (event.worker_id, event.reason) == (worker.id, "more workers than wanted")


async def test_a_mark_that_waited_for_the_end_of_the_task(provisioner: Provisioner) -> None:
    """The worker is idle then: it is not marked, and the next plan stops it."""
    ((worker, token), _) = await busy(provisioner, 2)
    await lower(provisioner, 1)
    async with stopped_at(provisioner, "outbox", send(provisioner, token, f"{worker.id}/idle")) as ending:
        planning = provisioner.start(provisioner.plan_step())
        await provisioner.until_waiting(ending, planning)
    assert (await ending, await planning) == (200, True)
    assert await marked(provisioner) == 0
    await provisioner.plan()
    assert await provisioner.states() == {"running": 1, "stopping": 1}


async def test_marks_are_cleared_while_a_task_ends(provisioner: Provisioner) -> None:
    """The report that waited for the planner finds no mark: the worker stays, and nothing is launched."""
    ((worker, token), _) = await busy(provisioner, 2)
    await lower(provisioner, 1)
    await provisioner.plan()
    assert await marked(provisioner) == 1
    await lower(provisioner, 2)
    await provisioner.events()
    async with stopped_at(provisioner, "pool_balance", provisioner.plan()) as planning:
        ending = provisioner.start(send(provisioner, token, f"{worker.id}/idle"))
        await provisioner.until_waiting(planning, ending)
    assert (await planning, await ending) == (None, 200)
    assert await provisioner.states() == {"running": 2}
    assert [event for event in await provisioner.events() if isinstance(event, WorkerStopping | WorkerRequested)] == []


async def test_a_planner_that_waited_for_the_end_of_a_marked_task(provisioner: Provisioner) -> None:
    """The worker has left: the planner clears nothing there, and what is launched is for the tasks that are left."""
    ((worker, token), _) = await busy(provisioner, 2)
    await lower(provisioner, 1)
    await provisioner.plan()
    await lower(provisioner, 3)
    await provisioner.demand(report(2, 1, at=3))
    await provisioner.events()
    async with stopped_at(provisioner, "outbox", send(provisioner, token, f"{worker.id}/idle")) as ending:
        planning = provisioner.start(provisioner.plan_step())
        await provisioner.until_waiting(ending, planning)
    assert (await ending, await planning) == (200, True)
    await provisioner.plan()
    assert await provisioner.states() == {"running": 1, "stopping": 1, "requested": 1}


WHY: Final = Protected("it is protected", "unprotect it")


def refusing(worker: Worker) -> Callable[[Connection], Awaitable[None]]:
    """Transaction of a replica whose termination of the worker was refused."""

    async def record(tx: Connection) -> None:
        await refused_terminations.record_refused(tx, "sim-a", {worker.instance_id or "": WHY})
        await refused_terminations.count_refusals(tx, "sim-a", [worker.id], stuck_after_seconds=0)

    return record


async def leaving(provisioner: Provisioner, number: int) -> list[Worker]:
    """Workers that are to be terminated."""
    workers = await provisioner.starting(number)
    await provisioner.set_clock(901)
    await provisioner.expire()
    await provisioner.events()
    return workers


async def test_refusals_of_two_replicas_are_counted_once_each(provisioner: Provisioner) -> None:
    """One alert for the new instance, and one for the stuck worker."""
    (worker,) = await leaving(provisioner, 1)
    record = refusing(worker)
    for _ in range(3):
        await asyncio.gather(*(in_transaction(provisioner, record) for _ in range(2)))
    row = await provisioner.database.fetchrow("SELECT termination_refusals, stuck_at IS NOT NULL AS stuck FROM worker")
    assert tuple(row) == (6, True)
    assert len(await provisioner.published(AlertRaised)) == 2


@locking("store.terminations.SET_REFUSING")
async def test_two_replicas_decide_once_that_an_account_refuses(provisioner: Provisioner) -> None:
    """One alert says so, beside the one on the instances."""
    for worker in await leaving(provisioner, 4):
        await in_transaction(provisioner, refusing(worker))
    await provisioner.events()
    settle = partial(refused_terminations.settle, provisioner.database, 3600)
    async with stopped_at(provisioner, "outbox", settle()) as one:
        two = provisioner.start(settle())
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    raised = await provisioner.published(AlertRaised)
    assert ["launches nothing in this account" in alert.doing for alert in raised] == [True]


@locking("store.balance.SET_STARVED")
async def test_two_replicas_raise_one_alert_for_a_starved_pool(provisioner: Provisioner) -> None:
    """The one that waited finds the other's."""
    await provisioner.requested(3)
    await provisioner.set_clock(2000)

    async def settle() -> None:
        async with provisioner.database.acquire() as db:
            await starvation.settle(db, provisioner.settings.deadlines(), after_seconds=600)

    async with stopped_at(provisioner, "outbox", settle()) as one:
        two = provisioner.start(settle())
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    assert [alert.kind for alert in await provisioner.published(AlertRaised)] == ["pool-starved"]
