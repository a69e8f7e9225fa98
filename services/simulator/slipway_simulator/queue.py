"""The task queue of every pool: what waits, what runs where, and the counts that a report carries. Pure.

Tasks come from sources (demand.py); beside them a pool may have a *level*, units of demand without a length that
machines hold until the level drops. Knows nothing of Kafka and of what a machine does between two tasks.
"""

from collections import deque

import msgspec

from slipway_simulator.demand import Demand
from slipway_simulator.facts import DemandSet, Fact, ScenarioLoaded, TaskArrived, TaskEnded, TasksAdded, TaskStarted


class Source(msgspec.Struct):
    """Where tasks of a pool come from; `taken` have arrived. Offsets count from `at` and pass at `speed`."""

    pool_id: str
    demand: Demand
    at: float
    speed: float
    taken: int = 0


class Task(msgspec.Struct, frozen=True):
    task_id: str
    duration_seconds: float


class Run(msgspec.Struct, frozen=True):
    """A task on a machine. `ends_at` is None for a unit of a level."""

    task: Task
    pool_id: str
    instance_id: str
    ends_at: float | None


class Counts(msgspec.Struct, frozen=True):
    """What a report says."""

    pending: int
    claimed: int


class PoolQueue(msgspec.Struct):
    pending: deque[Task] = msgspec.field(default_factory=deque)
    running: dict[str, Run] = {}
    level: DemandSet | None = None
    arrived: int = 0
    done: int = 0
    units: int = 0

    @property
    def held(self) -> list[Run]:
        """Units of the level that machines hold, oldest first."""
        return [run for run in self.running.values() if run.ends_at is None]


class Queue(msgspec.Struct):
    """All pools."""

    pools: dict[str, PoolQueue] = {}
    sources: dict[str, Source] = {}
    source_count: int = 0
    speed: float = 1.0

    def fold(self, fact: Fact) -> None:
        match fact:
            case ScenarioLoaded():
                self.sources.clear()
                self.speed = fact.scenario.speed
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
                self._started(fact)
            case TaskEnded():
                self._ended(fact)
            case DemandSet():
                self._pool(fact.pool_id).level = fact
            case _:
                pass

    def _add_source(self, pool_id: str, demand: Demand, at: float) -> None:
        self._pool(pool_id)
        self.source_count += 1
        self.sources[f"source-{self.source_count}"] = Source(pool_id, demand, at, self.speed)

    def _started(self, fact: TaskStarted) -> None:
        pool = self._pool(fact.pool_id)
        task = Task(fact.task_id, fact.duration_seconds)
        if fact.ends_at is None:
            pool.units += 1
        else:
            pool.pending.remove(task)
        pool.running[fact.task_id] = Run(task, fact.pool_id, fact.instance_id, fact.ends_at)

    def _ended(self, fact: TaskEnded) -> None:
        pool = self._pool(fact.pool_id)
        run = pool.running.pop(fact.task_id)
        if fact.result == "done":
            pool.done += 1
        elif run.ends_at is not None:
            pool.pending.appendleft(run.task)

    def _pool(self, pool_id: str) -> PoolQueue:
        return self.pools.setdefault(pool_id, PoolQueue())

    def counts(self, pool_id: str) -> Counts:
        """Pending and claimed as the queue reports them."""
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
    """How many machines could start something now."""
    pool = queue.pools.get(pool_id)
    if pool is None:
        return 0
    return len(pool.pending) + (max(0, _units(pool) - len(pool.held)) if pool.level else 0)


def take(queue: Queue, pool_id: str, instance_id: str, *, now: float) -> TaskStarted | None:
    """What this machine starts now, if anything: the oldest task, else a unit of the level."""
    if not available(queue, pool_id):
        return None
    pool = queue.pools[pool_id]
    if not pool.pending:
        task_id = f"{pool_id}-unit-{pool.units + 1}"
        return TaskStarted(at=now, task_id=task_id, pool_id=pool_id, instance_id=instance_id, ends_at=None)
    task = pool.pending[0]
    return TaskStarted(
        at=now,
        task_id=task.task_id,
        pool_id=pool_id,
        instance_id=instance_id,
        ends_at=now + task.duration_seconds,
        duration_seconds=task.duration_seconds,
    )


def end(run: Run, *, now: float, interrupted: bool = False) -> TaskEnded:
    return TaskEnded(
        at=now,
        task_id=run.task.task_id,
        pool_id=run.pool_id,
        instance_id=run.instance_id,
        result="interrupted" if interrupted else "done",
    )


def surplus(queue: Queue, pool_id: str) -> list[Run]:
    """Units that end because the level has dropped: the newest."""
    pool = queue.pools.get(pool_id, PoolQueue())
    return pool.held[_units(pool) :]


def _units(pool: PoolQueue) -> int:
    """How much of the level machines may hold."""
    if pool.level is None:
        return 0
    return pool.level.pending if pool.level.claimed is None else pool.level.claimed
