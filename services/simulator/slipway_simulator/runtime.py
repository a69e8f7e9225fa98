"""Runtime of the simulation: records facts in the ledger, folds them into the world, and starts what follows from them.

Holds the World, an asyncio task per live machine, a timer per running task or claim, and a feeder per source of tasks.
Decisions are made in the pure modules. Everything runs on one event loop, so deciding and recording is one step.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from random import Random
from typing import Any

import httpx2

from slipway_common.observability.telemetry import logger
from slipway_simulator import cloud, demand, queue, world
from slipway_simulator.facts import (
    Call,
    DemandSet,
    EndedBy,
    Fact,
    InstanceCreated,
    Refused,
    Registered,
    Reply,
    ScenarioLoaded,
    TaskArrived,
    TaskClaimed,
    TaskEnded,
    TaskRenewed,
    TasksAdded,
    TaskStarted,
    Terminated,
)
from slipway_simulator.ledger import Ledger
from slipway_simulator.machine_loop import Driver, run_machine
from slipway_simulator.machines import Machine
from slipway_simulator.queue import Run

log = logger(__name__)


class Simulator(Driver):
    """A simulation, which continues the run in its ledger when it is started."""

    def __init__(self, ledger: Ledger, client: httpx2.AsyncClient, now: Callable[[], float]) -> None:
        self.ledger = ledger
        self.client = client
        self.now = now
        self.world = world.rebuild(ledger.facts())
        self.calls_in_flight = 0
        self.changed = asyncio.Event()
        self._machine_tasks: dict[str, asyncio.Task[None]] = {}
        self._feeders: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._wake_events: dict[str, asyncio.Event] = {}
        self._waiting: dict[str, dict[asyncio.Event, None]] = {}

    def start(self) -> None:
        """Continue all machines, tasks and sources that were live at the end of the ledger."""
        for machine in self.world.machines.values():
            self._start_machine(machine)
        for pool in self.world.queue.pools.values():
            for run in pool.running.values():
                self._start_timer(run)
        self._start_feeders()
        log.info("resumed", machines=len(self.world.machines), ledger=str(self.ledger.path))

    async def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._machine_tasks.values(), *self._feeders.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.ledger.close()

    def record(self, facts: Iterable[Fact]) -> None:
        """Append facts to the ledger, then fold them, then start what follows from them."""
        batch = tuple(facts)
        if not batch:
            return
        self.ledger.append(batch)
        for fact in batch:
            self.world.fold(fact)
        pools = {pool for fact in batch if (pool := self._react(fact))}
        for pool_id in pools:
            self.wake(pool_id)
        if pools:
            self.changed.set()

    def wake(self, pool_id: str) -> None:
        """Wake as many waiting workers as there is work for, the longest waiting first."""
        for wake in islice(self._waiting.get(pool_id, {}), queue.available(self.world.queue, pool_id)):
            wake.set()

    def _react(self, fact: Fact) -> str:
        """Start or stop what follows from a fact; returns the pool whose queue has changed, or an empty string."""
        match fact:
            case ScenarioLoaded():
                self._start_feeders()
                self.changed.set()
            case TasksAdded():
                self._start_feeders()
            case InstanceCreated():
                self._start_machine(self.world.machines[fact.instance_id])
            case Terminated():
                self._stop_machine(fact.instance_id)
            case TaskStarted() | TaskClaimed():
                self._start_timer(self.world.queue.pools[fact.pool_id].running[fact.task_id])
                return fact.pool_id
            case TaskRenewed():
                self._timers.pop(fact.task_id).cancel()
                self._start_timer(self.world.queue.pools[fact.pool_id].running[fact.task_id])
            case TaskEnded():
                if timer := self._timers.pop(fact.task_id, None):
                    timer.cancel()
                if wake := self._wake_events.get(fact.instance_id):
                    wake.set()
                return fact.pool_id
            case TaskArrived() | DemandSet():
                return fact.pool_id
            case _:
                pass
        return ""

    # Accounts

    async def create(self, call: Call, user_data: dict[str, Any]) -> Reply:
        """Execute a create call after the account's latency, even if the caller has disconnected."""
        self.record([call])
        rng = self._chance(call.call_id)
        self.calls_in_flight += 1
        try:
            await asyncio.sleep(cloud.latency_seconds(self.world.cloud, call.account, rng))
            now = self.now()
            effects = self.world.effects(now)
            facts = cloud.decide_create(self.world.cloud, call, user_data, effects=effects, now=now, rng=rng)
            self.record(facts)
        finally:
            self.calls_in_flight -= 1
        reply = facts[-1]
        assert isinstance(reply, Reply)
        return reply

    def end_instance(self, instance_id: str, by: EndedBy) -> None:
        self.record(world.end_instance(self.world, instance_id, by, now=self.now()))

    # Machines

    def work(self, machine: Machine) -> bool:
        return queue.available(self.world.queue, machine.pool_id) > 0

    def take(self, machine: Machine) -> None:
        if started := queue.take(self.world.queue, machine.pool_id, machine.instance_id, now=self.now()):
            self.record([started])

    def refuse(self, machine: Machine, status: int) -> None:
        now = self.now()
        dropped = world.interrupt(self.world, machine, now=now)
        self.record([*dropped, Refused(at=now, instance_id=machine.instance_id, status=status)])

    async def rest(self, machine: Machine, until: float | None) -> None:
        wake = self._wake_events[machine.instance_id]
        waiting = self._waiting.setdefault(machine.pool_id, {})
        if machine.free:
            waiting[wake] = None
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until - self.now())):
                await wake.wait()
        except TimeoutError:
            pass
        finally:
            wake.clear()
            waiting.pop(wake, None)

    def _start_machine(self, machine: Machine) -> None:
        self._wake_events[machine.instance_id] = asyncio.Event()
        self._machine_tasks[machine.instance_id] = spawn(run_machine(machine, self, self._chance(machine.instance_id)))

    def _stop_machine(self, instance_id: str) -> None:
        self._wake_events.pop(instance_id, None)
        task = self._machine_tasks.pop(instance_id, None)
        if task and task is not asyncio.current_task():
            task.cancel()

    # External workers

    def claim(self, pool_id: str, worker_id: str, instance_id: str) -> Run | None:
        """Claim a task for an external worker: the one that it has already claimed, else the next one, if any."""
        now, waiting = self.now(), self.world.queue
        if worker_id not in waiting.workers:
            first = Registered(at=now, instance_id=instance_id, worker_id=worker_id, pool_id=pool_id, token="")
            self.record([first])
        if run := queue.claimed_by(waiting, pool_id, worker_id):
            self.renew(pool_id, run.task.task_id, worker_id)
        elif claimed := queue.claim(waiting, pool_id, worker_id, instance_id, now=now):
            self.record([claimed])
        return queue.claimed_by(waiting, pool_id, worker_id)

    def renew(self, pool_id: str, task_id: str, worker_id: str) -> None:
        """Renew a claim. Raises ClaimLost."""
        self.record([queue.renew(self.world.queue, pool_id, task_id, worker_id, now=self.now())])

    def finish(self, pool_id: str, task_id: str, worker_id: str, exit_code: int) -> None:
        """Finish a claimed task. Raises ClaimLost."""
        ended = queue.finish(self.world.queue, pool_id, task_id, worker_id, exit_code, now=self.now())
        self.record([ended] if ended else [])

    async def work_in(self, pool_id: str, disconnected: asyncio.Event, *, until: float) -> bool:
        """Wait for work in a pool; False if there is none until `until`, or if the caller has disconnected."""
        wake = asyncio.Event()
        waiting = self._waiting.setdefault(pool_id, {})
        waiting[wake] = None
        events = [asyncio.ensure_future(wake.wait()), asyncio.ensure_future(disconnected.wait())]
        try:
            left_seconds = max(0.0, until - self.now())
            await asyncio.wait(events, timeout=left_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.pop(wake)
            for event in events:
                event.cancel()
        if wake.is_set() and disconnected.is_set():
            self.wake(pool_id)  # the work goes to the next caller
        return wake.is_set() and not disconnected.is_set()

    # Tasks

    def _start_timer(self, run: Run) -> None:
        """Start the timer that ends a machine's task on time, or that expires a claim."""
        end, at = (self._end_task, run.ends_at) if run.ends_at is not None else (self._end_claim, run.expires_at)
        if at is not None:
            delay = max(0.0, at - self.now())
            self._timers[run.task.task_id] = asyncio.get_running_loop().call_later(delay, end, run)

    def _end_task(self, run: Run) -> None:
        self.record([queue.end(run, now=self.now())])

    def _end_claim(self, run: Run) -> None:
        ended = queue.expire(self.world.queue, run.pool_id, run.task.task_id, now=self.now())
        if ended:
            self.record([ended])
        else:
            self._start_timer(run)  # the wall clock was set back

    def _start_feeders(self) -> None:
        """Start a feeder per source, and stop those of an earlier scenario."""
        for source_id in self._feeders.keys() - self.world.queue.sources.keys():
            self._feeders.pop(source_id).cancel()
        for source_id in self.world.queue.sources.keys() - self._feeders.keys():
            self._feeders[source_id] = spawn(self._feed(source_id))

    async def _feed(self, source_id: str) -> None:
        """Let the tasks of a source arrive on time, skipping those that arrived before a restart."""
        source = self.world.queue.sources[source_id]
        tasks = demand.arrivals(source.demand, self._chance(source_id))
        for offset, length in islice(tasks, source.taken, None):
            due = source.at + offset / source.speed
            if (wait := due - self.now()) > 0:
                await asyncio.sleep(wait)
            self.record(
                [
                    TaskArrived(
                        at=self.now(),
                        task_id=queue.next_task_id(self.world.queue, source.pool_id),
                        pool_id=source.pool_id,
                        source_id=source_id,
                        duration_seconds=length / source.speed,
                    )
                ]
            )

    def _chance(self, what: str) -> Random:
        """Random numbers for `what`, the same in every run with this seed."""
        return Random(f"{self.world.cloud.rules.seed}/{what}")  # noqa: S311 (a simulation has to be repeatable)


def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start an asyncio task whose failure is logged."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("a part of the simulation failed", exc_info=error)
