"""Task queues of all pools: pending and running tasks, and the counts that are reported. Pure.

Tasks come from sources (demand.py). In addition, a pool may have a *level*: units of demand without a length, which
machines hold until the level drops. Simulated machines *take* tasks, which end on time; external workers *claim* tasks
and report their end. Independent of Kafka, of HTTP, and of what a machine does between two tasks.
"""

from collections import deque

import msgspec
from msgspec.structs import replace

from slipway_simulator.demand import Demand
from slipway_simulator.facts import (
    DemandSet,
    Fact,
    Registered,
    ScenarioLoaded,
    TaskArrived,
    TaskClaimed,
    TaskEnded,
    TaskRenewed,
    TasksAdded,
    TaskStarted,
)
from slipway_simulator.scenario import Scenario


class Source(msgspec.Struct):
    """Source of a pool's tasks, of which `taken` have arrived. Offsets start at `at` and are divided by `speed`."""

    pool_id: str
    demand: Demand
    at: float
    speed: float
    taken: int = 0


class Task(msgspec.Struct, frozen=True):
    task_id: str
    duration_seconds: float


class Run(msgspec.Struct, frozen=True):
    """A running task. `ends_at` is set if a simulated machine took it, unless it is a `unit` of a level; `worker_id`
    and `expires_at` are set if an external worker claimed it."""

    task: Task
    pool_id: str
    instance_id: str
    unit: bool
    ends_at: float | None = None
    worker_id: str = ""
    expires_at: float | None = None


class ClaimLost(Exception):
    """The worker has no claim on the task, or has lost it. The message has the task's state."""


class Counts(msgspec.Struct, frozen=True):
    """Counts of a demand report."""

    pending: int
    claimed: int


class PoolQueue(msgspec.Struct):
    """Queue of one pool. `finished` maps tasks that external workers have finished to the worker."""

    pending: deque[Task] = msgspec.field(default_factory=deque)
    running: dict[str, Run] = {}
    finished: dict[str, str] = {}
    level: DemandSet | None = None
    arrived: int = 0
    done: int = 0
    units: int = 0

    @property
    def held(self) -> list[Run]:
        """Units of the level that machines hold, oldest first."""
        return [run for run in self.running.values() if run.unit]


class Queue(msgspec.Struct):
    """Queues of all pools."""

    pools: dict[str, PoolQueue] = {}
    sources: dict[str, Source] = {}
    source_count: int = 0
    workers: set[str] = set()
    claim_seconds: float = Scenario().claim_seconds
    speed: float = 1.0

    def fold(self, fact: Fact) -> None:
        match fact:
            case ScenarioLoaded():
                self.sources.clear()
                self.speed, self.claim_seconds = fact.scenario.speed, fact.scenario.claim_seconds
                for pool_id, demand in fact.scenario.pools.items():
                    self._add_source(pool_id, demand, fact.at)
            case TasksAdded():
                self._add_source(fact.pool_id, fact.demand, fact.at)
            case TaskArrived():
                pool = self._pool(fact.pool_id)
                pool.pending.append(Task(fact.task_id, fact.duration_seconds))
                pool.arrived += 1
                if source := self.sources.get(fact.source_id):
                    source.taken += 1
            case TaskStarted():
                self._begun(Run(_task(fact), fact.pool_id, fact.instance_id, fact.ends_at is None, fact.ends_at))
            case TaskClaimed():
                run = Run(_task(fact), fact.pool_id, fact.instance_id, fact.unit)
                self._begun(replace(run, worker_id=fact.worker_id, expires_at=fact.expires_at))
            case TaskRenewed():
                running = self._pool(fact.pool_id).running
                running[fact.task_id] = replace(running[fact.task_id], expires_at=fact.expires_at)
            case TaskEnded():
                self._ended(fact)
            case DemandSet():
                self._pool(fact.pool_id).level = fact
            case Registered():
                self.workers.add(fact.worker_id)
            case _:
                pass

    def _add_source(self, pool_id: str, demand: Demand, at: float) -> None:
        self._pool(pool_id)
        self.source_count += 1
        self.sources[f"source-{self.source_count}"] = Source(pool_id, demand, at, self.speed)

    def _begun(self, run: Run) -> None:
        pool = self._pool(run.pool_id)
        if run.unit:
            pool.units += 1
        else:
            pool.pending.remove(run.task)
        pool.running[run.task.task_id] = run

    def _ended(self, fact: TaskEnded) -> None:
        pool = self._pool(fact.pool_id)
        run = pool.running.pop(fact.task_id)
        if fact.result == "done":
            pool.done += 1
            if run.worker_id:
                pool.finished[fact.task_id] = run.worker_id
        elif not run.unit:
            pool.pending.appendleft(run.task)

    def _pool(self, pool_id: str) -> PoolQueue:
        return self.pools.setdefault(pool_id, PoolQueue())

    def counts(self, pool_id: str) -> Counts:
        """Pending and claimed tasks, as reported."""
        pool = self.pools.get(pool_id, PoolQueue())
        pending, claimed = len(pool.pending), len(pool.running)
        if pool.level is None:
            return Counts(pending, claimed)
        held = len(pool.held)
        if pool.level.claimed is not None:
            return Counts(pending + pool.level.pending, claimed - held + pool.level.claimed)
        return Counts(pending + max(0, pool.level.pending - held), claimed)


def next_task_id(queue: Queue, pool_id: str) -> str:
    return f"{pool_id}-{queue.pools[pool_id].arrived + 1}"


def available(queue: Queue, pool_id: str) -> int:
    """Number of machines that could start a task now."""
    pool = queue.pools.get(pool_id)
    if pool is None:
        return 0
    return len(pool.pending) + (max(0, _units(pool) - len(pool.held)) if pool.level else 0)


def take(queue: Queue, pool_id: str, instance_id: str, *, now: float) -> TaskStarted | None:
    """Start the oldest task, or else a unit of the level, on this machine; None if there is neither."""
    if not available(queue, pool_id):
        return None
    task, unit = _next(queue.pools[pool_id], pool_id)
    return TaskStarted(
        at=now,
        task_id=task.task_id,
        pool_id=pool_id,
        instance_id=instance_id,
        ends_at=None if unit else now + task.duration_seconds,
        duration_seconds=task.duration_seconds,
    )


def claim(queue: Queue, pool_id: str, worker_id: str, instance_id: str, *, now: float) -> TaskClaimed | None:
    """Claim a task for an external worker; like `take`, but the claim expires."""
    if not available(queue, pool_id):
        return None
    task, unit = _next(queue.pools[pool_id], pool_id)
    return TaskClaimed(
        at=now,
        task_id=task.task_id,
        pool_id=pool_id,
        instance_id=instance_id,
        worker_id=worker_id,
        expires_at=now + queue.claim_seconds,
        unit=unit,
        duration_seconds=task.duration_seconds,
    )


def claimed_by(queue: Queue, pool_id: str, worker_id: str) -> Run | None:
    """Task claimed by an external worker. A worker that claims again has not received the first answer."""
    pool = queue.pools.get(pool_id, PoolQueue())
    return next((run for run in pool.running.values() if run.worker_id == worker_id), None)


def renew(queue: Queue, pool_id: str, task_id: str, worker_id: str, *, now: float) -> TaskRenewed:
    """Renew a claim. Raises ClaimLost."""
    _own(queue, pool_id, task_id, worker_id)
    return TaskRenewed(at=now, task_id=task_id, pool_id=pool_id, expires_at=now + queue.claim_seconds)


def finish(queue: Queue, pool_id: str, task_id: str, worker_id: str, exit_code: int, *, now: float) -> TaskEnded | None:
    """Finish a claimed task, successfully or not; None if this worker has already finished it. Raises ClaimLost."""
    if queue.pools.get(pool_id, PoolQueue()).finished.get(task_id) == worker_id:
        return None
    return replace(end(_own(queue, pool_id, task_id, worker_id), now=now), exit_code=exit_code)


def expire(queue: Queue, pool_id: str, task_id: str, *, now: float) -> TaskEnded | None:
    """End a claim that was not renewed in time; None if it was renewed or has ended."""
    run = queue.pools.get(pool_id, PoolQueue()).running.get(task_id)
    if run is None or run.expires_at is None or run.expires_at > now:
        return None
    return end(run, now=now, interrupted=True)


def command(run: Run) -> list[str]:
    """Command that an external worker has to run."""
    return ["sleep", "infinity" if run.unit else f"{run.task.duration_seconds:.3f}"]


def _task(fact: TaskStarted | TaskClaimed) -> Task:
    return Task(fact.task_id, fact.duration_seconds)


def _own(queue: Queue, pool_id: str, task_id: str, worker_id: str) -> Run:
    pool = queue.pools.get(pool_id, PoolQueue())
    run = pool.running.get(task_id)
    if run is None:
        if task_id in pool.finished:
            raise ClaimLost(f"task {task_id} was finished by {pool.finished[task_id]}")
        pending = any(task.task_id == task_id for task in pool.pending)
        state = "is pending again because its claim expired" if pending else "is not running"
        raise ClaimLost(f"task {task_id} {state}")
    if run.worker_id != worker_id:
        raise ClaimLost(f"task {task_id} runs on {run.worker_id or run.instance_id}")
    return run


def _next(pool: PoolQueue, pool_id: str) -> tuple[Task, bool]:
    """The oldest task, or a unit of the level, and True if it is a unit."""
    if pool.pending:
        return pool.pending[0], False
    return Task(f"{pool_id}-unit-{pool.units + 1}", 0.0), True


def end(run: Run, *, now: float, interrupted: bool = False) -> TaskEnded:
    return TaskEnded(
        at=now,
        task_id=run.task.task_id,
        pool_id=run.pool_id,
        instance_id=run.instance_id,
        result="interrupted" if interrupted else "done",
    )


def excess_units(queue: Queue, pool_id: str) -> list[Run]:
    """The newest units of a level, which end because the level has dropped."""
    pool = queue.pools.get(pool_id, PoolQueue())
    return pool.held[_units(pool) :]


def _units(pool: PoolQueue) -> int:
    """Number of units of the level that machines may hold."""
    if pool.level is None:
        return 0
    return pool.level.pending if pool.level.claimed is None else pool.level.claimed
