"""A run on a virtual clock: the simulated cloud, its machines and tasks, and launches within the lease limits. Pure.

A launch goes the way that it goes in a deployment: it requests a lease of its account's lease pool, one create call
starts what a lease grants, and the unit is released when the machine registers, fails, or is gone. The cloud is the
simulator's core, and the lease pools decide by the core of the lease-broker. A rule only decides what to launch.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import ceil
from random import Random
from typing import Final

import msgspec

from slipway_common.declaration.identity import config_name
from slipway_common.declaration.models import Declaration, LaunchConfig, WorkerPool
from slipway_lease_broker.domain.ledger import Lease
from slipway_local.demo.deployment import PRODUCT_SECONDS
from slipway_local.demo.replay.leases import LeasePools
from slipway_simulator import cloud, queue, world
from slipway_simulator import facts as recorded
from slipway_simulator.facts import Fact

# Times in product seconds, as in the demo's deployment.
BOOT_SECONDS: Final = PRODUCT_SECONDS["provisioner"]["boot_timeout_seconds"]
IDLE_SECONDS: Final = PRODUCT_SECONDS["provisioner"]["idle_timeout_seconds"]
CALL_SECONDS: Final = PRODUCT_SECONDS["provisioner"]["call_timeout_seconds"]
VISIBILITY_SECONDS: Final = PRODUCT_SECONDS["provisioner"]["visibility_seconds"]
THROTTLED: Final = "RequestLimitExceeded"
OUTSIDE: Final = (
    recorded.ScenarioLoaded,
    recorded.FaultSet,
    recorded.FaultCleared,
    recorded.TaskArrived,
    recorded.DemandSet,
)


class Worker(msgspec.Struct, eq=False):
    """A launch, from its request until its machine is gone. It waits for admission while it has no lease; with a lease
    it holds one unit of it, until it registers."""

    id: str
    pool: "Pool"
    place: int  # of its launch config in the pool
    permit: int | None = None
    request_id: str = ""
    lease: Lease | None = None
    called: bool = False
    instance_id: str = ""
    registered: bool = False
    idle_since: float | None = None

    @property
    def config(self) -> LaunchConfig:
        return self.pool.configs[self.place]

    @property
    def waits(self) -> bool:
        """True if it waits for admission."""
        return not self.called and self.lease is None


class Pool:
    """A worker pool, its live workers in order of request, and those that may take a task, longest idle first."""

    def __init__(self, declared: WorkerPool) -> None:
        self.id = declared.id
        self.declared = declared
        self.configs = declared.launch_configs
        self.workers: dict[str, Worker] = {}
        self.free: dict[str, Worker] = {}

    def wanted(self, counts: queue.Counts) -> int:
        """Workers wanted for these tasks, within the limits of the pool."""
        tasks = ceil((counts.pending + counts.claimed) * self.declared.scaling_ratio)
        return max(self.declared.min_capacity, min(tasks, self.declared.max_capacity))

    def room(self, place: int) -> int:
        """Workers that a launch config may have beside its live ones."""
        maximum = self.configs[place].max_capacity
        if maximum is None:
            return self.declared.max_capacity
        return max(0, maximum - sum(worker.place == place for worker in self.workers.values()))


class Rule:
    """Base of launch rules: decides what a run launches, and is notified of what follows. Ignores everything."""

    def begin(self, run: "Run", now: float) -> None:
        """Begin to decide."""

    def demand(self, pool: Pool, now: float) -> None:
        """Demand of the pool has changed."""

    def requested(self, worker: Worker, now: float) -> None: ...

    def calling(self, worker: Worker, now: float) -> None: ...

    def delayed(self, worker: Worker, now: float) -> None:
        """Its call was throttled; it is requested again."""

    def launched(self, worker: Worker, now: float) -> None:
        """Its machine is known, maybe after it registered."""

    def refused(self, worker: Worker, code: str, now: float) -> None: ...

    def registered(self, worker: Worker, now: float) -> None: ...

    def unregistered(self, worker: Worker, now: float) -> None:
        """It has not registered in time and is terminated."""

    def claimed(self, worker: Worker, task_id: str, now: float) -> None: ...

    def idle(self, worker: Worker, now: float) -> None: ...

    def ended(self, worker: Worker, now: float) -> None:
        """It is gone, or was cancelled before its call."""


class Run:
    """A replay under a rule: the simulated world, its facts and pending timers, and the workers of all pools."""

    def __init__(self, declared: Declaration, rule: Rule) -> None:
        self.declared = declared
        self.rule = rule
        self.world = world.World()
        self.facts: list[Fact] = []
        self.pools = {pool.id: Pool(pool) for pool in declared.worker_pools or ()}
        self.accounts = {account.id: account for account in declared.accounts or ()}
        self.leases = LeasePools(declared.lease_pools or ())
        self._workers: dict[str, Worker] = {}  # by instance
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._calls = count(1)
        self._requests = count(1)
        self._ids = count(1)

    def at(self, when: float, what: Callable[[float], None]) -> None:
        heappush(self._due, (when, next(self._numbers), what))

    def go(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            now, _, what = heappop(self._due)
            what(now)

    def record(self, *facts: Fact) -> None:
        for fact in facts:
            self.world.fold(fact)
        self.facts.extend(facts)

    def seconds(self, product_seconds: float) -> float:
        return product_seconds / self.world.cloud.rules.speed

    def chance(self, what: str) -> Random:
        """Random numbers for `what`, as the simulator draws them: the same in every run with this seed."""
        return Random(f"{self.world.cloud.rules.seed}/{what}")  # noqa: S311 (a simulation has to be repeatable)

    def outside(self, fact: Fact, now: float) -> None:
        """Apply a fact that no rule causes."""
        if isinstance(fact, recorded.DemandSet):
            ended = [f for f in world.set_level(self.world, fact) if isinstance(f, recorded.TaskEnded)]
            self.record(fact, *ended)
            for end in ended:
                self._freed(end.instance_id, now)
        else:
            self.record(fact)
        if isinstance(fact, recorded.DemandSet | recorded.TaskArrived) and (pool := self.pools.get(fact.pool_id)):
            self._serve(pool, now)
            self.rule.demand(pool, now)

    # Admission

    def launch(self, pool: Pool, place: int, units: int, now: float, *, permit: int | None = None) -> None:
        """Request `units` workers of a launch config; `permit` if this one is a probe."""
        workers = [Worker(f"worker-{next(self._ids)}", pool, place, permit) for _ in range(units)]
        for worker in workers:
            pool.workers[worker.id] = worker
            self.rule.requested(worker, now)
        self._request(workers, now)

    def cancel(self, worker: Worker, now: float) -> None:
        """Cancel a worker that was not called yet, and withdraw its unit from the queue or release it."""
        assert not worker.called
        self._gone(worker, now)
        if worker.lease is not None:
            self._release(worker, "cancelled", now)
        elif worker.request_id:
            lease_pool = self._lease_pool(worker)
            self._admit(lease_pool, self.leases.cancel(lease_pool, worker.request_id, _time(now)), now)

    def _request(self, workers: Sequence[Worker], now: float) -> None:
        """Request a lease for the workers that were not cancelled meanwhile; all of them have one launch config."""
        live = [worker for worker in workers if worker.id in worker.pool.workers]
        if not live:
            return
        request_id, lease_pool, tenant = f"request-{next(self._requests)}", self._lease_pool(live[0]), live[0].pool.id
        for worker in live:
            worker.request_id = request_id
        granted = self.leases.request(lease_pool, request_id, len(live), _time(now), tenant=tenant)
        self._admit(lease_pool, granted, now)

    def _release(self, worker: Worker, result: str, now: float, retry_after_seconds: float | None = None) -> None:
        """Release the unit of a worker, if it still holds one."""
        lease, worker.lease = worker.lease, None
        if lease is not None:
            granted = self.leases.release(lease, result, _time(now), retry_after_seconds=retry_after_seconds)
            self._admit(lease.lease_pool_id, granted, now)

    def _admit(self, lease_pool_id: str, granted: Iterable[Lease], now: float) -> None:
        """Assign granted units to the workers that have waited longest under their requests, and call for them. Decide
        again when time alone lets more of them start, unless another decision comes before."""
        for lease in granted:
            waiting = [
                worker
                for worker in self.pools[lease.tenant].workers.values()
                if worker.request_id == lease.request_id and worker.waits
            ][: lease.units]
            for worker in waiting:
                worker.lease = lease
            self.at(now, partial(self._call, waiting))
        wake_at = self.leases.wake_at[lease_pool_id]

        def decide(now: float) -> None:
            if self.leases.wake_at[lease_pool_id] is wake_at:
                due = max(_time(now), wake_at or _time(now))  # a time as a float may be a microsecond early
                self._admit(lease_pool_id, self.leases.decide(lease_pool_id, due), now)

        if wake_at is not None:
            self.at(wake_at.timestamp(), decide)

    def _lease_pool(self, worker: Worker) -> str:
        return self.accounts[worker.config.account].lease_pool

    # Calls

    def _call(self, workers: Sequence[Worker], now: float) -> None:
        """Make one create call for the workers of a lease that were not cancelled meanwhile."""
        workers = [worker for worker in workers if worker.id in worker.pool.workers]
        if not workers:
            return
        call_id, pool, config = f"call-{next(self._calls)}", workers[0].pool, workers[0].config
        for worker in workers:
            worker.called = True
            self.rule.calling(worker, now)
        call = recorded.Call(
            at=now,
            call_id=call_id,
            account=config.account,
            token=call_id,
            deployment="replay",
            batch=call_id,
            config=config_name(pool.declared, config),
            count=len(workers),
            zone=config.zone,
            instance_type=config.instance_type,
            image=config.image,
            request=call_id,
        )
        self.record(call)
        rng = self.chance(call_id)
        latency = cloud.latency_seconds(self.world.cloud, config.account, rng)
        self.at(now + latency, partial(self._answer, workers, call, rng))

    def _answer(self, workers: Sequence[Worker], call: recorded.Call, rng: Random, now: float) -> None:
        """Let the call take effect. A lost reply is looked up once the cloud must list its machines."""
        user_data = {"settings": workers[0].config.settings}
        effects = self.world.effects(now)
        made = cloud.decide_create(self.world.cloud, call, user_data, effects=effects, now=now, rng=rng)
        self.record(*made)
        created = [fact for fact in made if isinstance(fact, recorded.InstanceCreated)]
        for worker, instance in zip(workers, created, strict=False):
            worker.instance_id = instance.instance_id
            self._workers[instance.instance_id] = worker
            if instance.boots_at is not None:
                self.at(instance.boots_at, partial(self._booted, worker))
        reply = made[-1]
        assert isinstance(reply, recorded.Reply)
        looked_up_at = call.at + self.seconds(CALL_SECONDS + VISIBILITY_SECONDS)
        self.at(max(now, looked_up_at) if reply.lost else now, partial(self._known, workers, reply))

    def _known(self, workers: Sequence[Worker], reply: recorded.Reply, now: float) -> None:
        """Handle the outcome of a call. A throttled call is repeated under a new lease."""
        live = [worker for worker in workers if worker.id in worker.pool.workers]
        if reply.code == THROTTLED:
            for worker in live:
                self._release(worker, "throttled", now, reply.retry_after_seconds)
                worker.called, worker.request_id = False, ""
                self.rule.delayed(worker, now)
            self.at(now + (reply.retry_after_seconds or 0.0), partial(self._request, live))
            return
        for worker in live:
            if worker.instance_id:
                self.rule.launched(worker, now)
                self.at(now + self.seconds(BOOT_SECONDS), partial(self._boot_timeout, worker))
            else:
                self.rule.refused(worker, "InsufficientCapacity" if reply.code == "OK" else reply.code, now)
                self._release(worker, "launch_failed", now)
                self._gone(worker, now)

    # Machines

    def _booted(self, worker: Worker, now: float) -> None:
        if worker.id not in worker.pool.workers:
            return
        worker.registered = True
        self.record(
            recorded.Registered(
                at=now,
                instance_id=worker.instance_id,
                worker_id=worker.id,
                pool_id=worker.pool.id,
                token="",
            )
        )
        self.rule.registered(worker, now)
        self._release(worker, "registered", now)
        self._idle(worker, now)

    def _boot_timeout(self, worker: Worker, now: float) -> None:
        if worker.id in worker.pool.workers and not worker.registered:
            self.rule.unregistered(worker, now)
            self.end(worker, now)

    def _idle(self, worker: Worker, now: float) -> None:
        worker.idle_since = now
        if self.world.machines[worker.instance_id].free:
            worker.pool.free[worker.id] = worker
        self._serve(worker.pool, now)
        if worker.idle_since is not None:
            self.rule.idle(worker, now)

    def _serve(self, pool: Pool, now: float) -> None:
        """Start waiting tasks on free machines, the longest idle first."""
        while pool.free:
            worker = next(iter(pool.free.values()))
            started = queue.take(self.world.queue, pool.id, worker.instance_id, now=now)
            if started is None:
                return
            del pool.free[worker.id]
            worker.idle_since = None
            claimed = recorded.Claimed(
                at=now,
                instance_id=worker.instance_id,
                worker_id=worker.id,
                pool_id=started.pool_id,
                task_id=started.task_id,
                status=200,
            )
            self.record(started, claimed)
            self.rule.claimed(worker, started.task_id, now)
            if started.ends_at is not None:
                self.at(started.ends_at, partial(self._done, started))

    def _done(self, started: recorded.TaskStarted, now: float) -> None:
        task = self.world.queue.pools[started.pool_id].running.get(started.task_id)
        if task is not None and task.instance_id == started.instance_id:
            self.record(queue.end(task, now=now))
            self._freed(started.instance_id, now)

    def _freed(self, instance_id: str, now: float) -> None:
        """After a task, one-task machines terminate themselves and others become idle."""
        worker, machine = self._workers[instance_id], self.world.machines[instance_id]
        if machine.pending_reports[0].what == "stopped":
            self.end(worker, now)
        else:
            self.record(
                recorded.Idle(at=now, instance_id=instance_id, worker_id=worker.id, pool_id=machine.pool_id, status=200)
            )
            self._idle(worker, now)
        self.rule.demand(worker.pool, now)

    def end(self, worker: Worker, now: float) -> None:
        """Terminate the machine of a worker."""
        self.record(*world.end_instance(self.world, worker.instance_id, "api", now=now))
        worker.pool.free.pop(worker.id, None)
        self._release(worker, "gone", now)
        self._gone(worker, now)

    def _gone(self, worker: Worker, now: float) -> None:
        del worker.pool.workers[worker.id]
        self.rule.ended(worker, now)


def play(ledger: Iterable[Fact], declared: Declaration, rule: Rule, *, until: float) -> list[Fact]:
    """Replay the external facts of `ledger` (scenario, faults, demand) with launches by a rule; returns its ledger."""
    outside = [fact for fact in ledger if isinstance(fact, OUTSIDE) and fact.at <= until]
    run = Run(declared, rule)
    for number, fact in enumerate(outside):
        run.at(fact.at, partial(run.outside, fact))
        if number == 0:  # the scenario, by whose speed the rule counts
            run.at(fact.at, partial(rule.begin, run))
    run.go(until)
    return run.facts


def _time(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)
