"""Surplus of a pool whose workers are busy, or idle for a short time only: each input as it was seen, over HTTP."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import pytest

from slipway_api.events.lease import LeaseRequested
from slipway_api.events.worker import WorkerRequested, WorkerStopped, WorkerStopping
from tests.support.provisioner import Provisioner, after, declared, report

WORKERS: Final = 10
STEP_SECONDS: Final = 10


class Machine:
    """A machine that repeats a task of `busy_seconds` every `period_seconds`, and leaves when it is asked to."""

    def __init__(self, provisioner: Provisioner, path: str, token: str, *, busy: float, period: float, offset: float):
        self.provisioner = provisioner
        self.path = path
        self.token = token
        self.busy_seconds = busy
        self.period_seconds = period
        self.offset_seconds = offset
        self.has_task = False
        self.left = False
        self.interrupted = False

    async def act(self, at: float) -> None:
        """Report the begin or end of a task, or poll."""
        due = (at - self.offset_seconds) % self.period_seconds < self.busy_seconds and at >= self.offset_seconds
        if self.left:
            return
        if due and not self.has_task:
            await self._post("claimed", at, task_id=f"{self.path}-{at}", source="q")
        elif self.has_task and not due:
            await self._post("idle", at)
        self.has_task = due
        async with self.provisioner.client(token=self.token) as client:
            asked = (await client.get(f"{self.path}/should-terminate")).json()["terminate"]
        if asked and not self.has_task:
            await self._post("stopped", at)
            self.left = True
        self.interrupted |= bool(asked and self.has_task and not await self._may_finish())

    async def _may_finish(self) -> bool:
        row = await self.provisioner.database.fetchval(
            "SELECT may_finish FROM worker WHERE id = $1::uuid", self.path.removeprefix("/workers/")
        )
        return bool(row)

    async def _post(self, event: str, at: float, **body: str) -> None:
        await _reported(self.provisioner, self.path, self.token, event, at, **body)


async def machines(provisioner: Provisioner, *, busy: float, period: float, stagger: float) -> list[Machine]:
    """Ten registered machines of a pool whose maximum is ten, which begin one after another."""
    await provisioner.declare(declared(max_capacity=WORKERS))
    await provisioner.trust()
    await demand(provisioner, pending=WORKERS, at=0)
    await provisioner.plan()
    for request in await provisioner.published(LeaseRequested):
        await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    made = []
    for number, worker in enumerate(await provisioner.workers()):
        answer = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()
        made.append(
            Machine(
                provisioner,
                f"/workers/{answer['worker_id']}",
                answer["token"],
                busy=busy,
                period=period,
                offset=number * stagger,
            )
        )
    await provisioner.events()
    return made


async def demand(provisioner: Provisioner, *, at: float, pending: int = 0, claimed: int = 0) -> None:
    await provisioner.demand(report(pending, claimed, at=at, valid_for_seconds=86_400))


async def live(provisioner: Provisioner, made: Sequence[Machine], begin: int, end: int, claimed: int) -> list[Any]:
    """Let the machines work while so many tasks are claimed; returns the events."""
    events: list[Any] = []
    for at in range(begin, end, STEP_SECONDS):
        await provisioner.set_clock(at)
        for machine in made:
            await machine.act(at)
        await demand(provisioner, at=at, claimed=claimed)
        await provisioner.plan()
        events += await provisioner.events()
    return events


async def test_a_lowered_maximum_with_short_gaps_between_tasks(provisioner: Provisioner) -> None:
    """Tasks of 100 s with gaps of 20 s: within one task and the idle timeout four of ten workers are left."""
    made = await machines(provisioner, busy=100, period=120, stagger=12)
    await live(provisioner, made, 0, 240, claimed=10)
    assert await provisioner.states() == {"running": WORKERS}
    await provisioner.declare(declared(max_capacity=4))
    events = await live(provisioner, made, 240, 240 + 100 + 120, claimed=9)
    assert await provisioner.states() == {"running": 4, "stopped": 6}
    assert not any(machine.interrupted for machine in made)
    assert [type(event) for event in events if isinstance(event, WorkerRequested)] == []


async def test_three_tasks_that_ten_workers_share(provisioner: Provisioner) -> None:
    """Each of them is idle for 100 of every 110 s, and so never for the idle timeout of 120 s."""
    made = await machines(provisioner, busy=10, period=110, stagger=10)
    await live(provisioner, made, 0, 120, claimed=3)
    assert await provisioner.states() == {"running": WORKERS}
    events = await live(provisioner, made, 120, 260, claimed=3)
    assert await provisioner.states() == {"running": 3, "stopped": 7}
    assert {event.reason for event in events if isinstance(event, WorkerStopping)} == {"more workers than wanted"}
    assert not any(machine.interrupted for machine in made)


async def test_demand_that_returns_finds_every_worker(provisioner: Provisioner) -> None:
    """Ten tasks of 30 minutes, of which a monitor sees four for three minutes: nobody leaves, nothing is launched."""
    made = await machines(provisioner, busy=1800, period=3600, stagger=0)
    events = await live(provisioner, made, 0, 200, claimed=10)
    events += await live(provisioner, made, 200, 380, claimed=4)
    marked = "SELECT count(*) FROM worker WHERE leave_after_task"
    assert await provisioner.database.fetchval(marked) == 6
    events += await live(provisioner, made, 380, 500, claimed=10)
    assert await provisioner.database.fetchval(marked) == 0
    events += await live(provisioner, made, 1790, 1830, claimed=10)
    assert await provisioner.states() == {"running": WORKERS}
    assert [event for event in events if isinstance(event, WorkerRequested | WorkerStopping)] == []


async def test_a_worker_with_a_mark_leaves_after_its_task(provisioner: Provisioner) -> None:
    """It serves until then, and the answer to its report says that it leaves: no plan is needed for it."""
    made = await machines(provisioner, busy=1800, period=3600, stagger=0)
    await live(provisioner, made, 0, 300, claimed=10)
    await live(provisioner, made, 300, 500, claimed=4)
    assert await provisioner.states() == {"running": WORKERS}
    await provisioner.set_clock(1800)
    for machine in made:
        await machine.act(1800)
    assert await provisioner.states() == {"running": 4, "stopped": 6}
    events = await provisioner.events()
    assert {event.reason for event in events if isinstance(event, WorkerStopping)} == {"more workers than wanted"}


@pytest.mark.parametrize("task_slots", [1, 2])
async def test_a_worker_that_is_never_idle_leaves_too(provisioner: Provisioner, task_slots: int) -> None:
    """Its tasks overlap, or it reports the next one instead of an end. The end of a task has it leave after the others,
    and the answer says so."""
    body = declared(max_capacity=2)
    body["worker_pools"][0]["launch_configs"][0]["task_slots"] = task_slots
    await provisioner.declare(body)
    await provisioner.demand(report(2))
    await provisioner.plan()
    await provisioner.leases(*(provisioner.granted(each) for each in await provisioner.published(LeaseRequested)))
    await provisioner.launch()
    sent = {}
    for worker in await provisioner.workers():
        token = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()["token"]
        sent[worker.id] = partial(_reported, provisioner, f"/workers/{worker.id}", token)
    for post in sent.values():
        await post("claimed", 0, task_id="a", source="q")
    await provisioner.demand(report(0, 2, at=1))
    await provisioner.declare(body | declared(max_capacity=1))
    await provisioner.plan()
    marked = await provisioner.database.fetchval("SELECT id::text FROM worker WHERE leave_after_task")
    await provisioner.set_clock(60)
    assert (await sent[marked]("claimed", 50, task_id="b", source="q"))["terminate"] == (task_slots == 1)
    if task_slots == 2:
        end = {"task_id": "a", "source": "q", "claimed_at": after(0).isoformat()}
        assert (await sent[marked]("idle", 60, **end))["reason"] == "more workers than wanted"
    assert await provisioner.states() == {"running": 1, "stopping": 1}
    (leaving,) = [worker for worker in await provisioner.workers() if worker.id == marked]
    assert leaving.is_finishing


async def _reported(provisioner: Provisioner, path: str, token: str, event: str, at: float, **body: str) -> Any:
    async with provisioner.client(token=token) as client:
        answer = await client.post(f"{path}/{event}", json={"at": after(at).isoformat()} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_pool_that_only_observes_records_surplus(provisioner: Provisioner) -> None:
    """Nobody is marked, and no worker leaves before its own idle timeout."""
    made = await machines(provisioner, busy=10, period=110, stagger=10)
    await provisioner.declare(declared(max_capacity=4, mode="observe"))
    await live(provisioner, made, 0, 300, claimed=3)
    assert await provisioner.states() == {"running": WORKERS}
    details = await provisioner.database.fetchval("SELECT details FROM decision ORDER BY at DESC, id DESC LIMIT 1")
    assert details["lasting_surplus"] == 7


async def test_a_cancelled_worker_says_why_it_was_not_launched(provisioner: Provisioner) -> None:
    """The numbers of the decision are not about one worker."""
    await provisioner.requested(3)
    await provisioner.demand(report(1, at=1))
    await provisioner.plan()
    reasons = [each.reason for each in await provisioner.published(WorkerStopped)]
    assert reasons == ["more workers than wanted"] * 2
    decided = "SELECT count(*) FROM decision WHERE details ->> 'reason' = '2 cancelled: more workers than wanted'"
    assert await provisioner.database.fetchval(decided) == 1
