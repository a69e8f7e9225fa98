"""Replay of a run under the rule of Taskcluster's RFC 191: same cloud, faults and tasks, on a virtual clock. Pure.

At every poll each missing worker is drawn independently, by its weight under the rule; there are no windows, no trips
and no probes. The cloud is the simulator's core, so capacity, quotas, images, latency and boots follow the same rules
as in the run.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import ceil
from random import Random
from typing import Final

import msgspec

from slipway_common.declaration.identity import config_name
from slipway_common.declaration.models import Declaration, WorkerPool
from slipway_local.demo.deployment import PRODUCT_SECONDS
from slipway_local.demo.rfc191 import EVENTS_SECONDS, ErrorRates
from slipway_simulator import cloud, queue, world
from slipway_simulator import facts as recorded
from slipway_simulator.facts import Fact

# Times in product seconds. Boot and idle time-outs are those of Slipway.
POLL_SECONDS: Final = 10.0
BOOT_SECONDS: Final = PRODUCT_SECONDS["provisioner"]["boot_timeout_seconds"]
IDLE_SECONDS: Final = PRODUCT_SECONDS["provisioner"]["idle_timeout_seconds"]
OUTSIDE: Final = (
    recorded.ScenarioLoaded,
    recorded.FaultSet,
    recorded.FaultCleared,
    recorded.TaskArrived,
    recorded.DemandSet,
)


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """Launches in a ledger until some time, and how many of them were wasted.

    `launches` counts machines requested in answered create calls; throttled calls are repeated and count once they are
    accepted. `failed` counts machines that the cloud refused or that ended without registering; `unused` counts those
    that registered and ended without a task. Machines that boot, work or wait at that time are not wasted.
    `waited_seconds` is the mean time between a task's arrival and its first start (or that time), in real seconds; it
    belongs to the comparison because a rule that launches nothing wastes nothing.
    """

    launches: int
    failed: int
    unused: int
    waited_seconds: float

    @property
    def share(self) -> float:
        return (self.failed + self.unused) / self.launches if self.launches else 0.0

    def __str__(self) -> str:
        wasted = f"{self.failed} failed and {self.unused} unused of {self.launches} launches"
        return f"{wasted} ({self.share:.1%}); tasks waited {self.waited_seconds:.1f} s on average"


def waste(ledger: Iterable[Fact], *, until: float) -> Waste:
    """Count the facts up to `until` (epoch seconds)."""
    requested: dict[str, int] = {}
    launches = failed = unused = 0
    registered: set[str] = set()
    worked: set[str] = set()
    arrived: dict[str, float] = {}
    started: dict[str, float] = {}
    for fact in ledger:
        if fact.at > until:
            continue
        match fact:
            case recorded.Call():
                requested[fact.call_id] = fact.count
            case recorded.Reply() if not fact.repeated and fact.code != "RequestLimitExceeded":
                launches += requested[fact.call_id]
                failed += requested[fact.call_id] - len(fact.instance_ids)
            case recorded.Registered():
                registered.add(fact.instance_id)
            case recorded.TaskArrived():
                arrived[fact.task_id] = fact.at
            case recorded.TaskStarted() | recorded.TaskClaimed():
                worked.add(fact.instance_id)
                started.setdefault(fact.task_id, fact.at)
            case recorded.Terminated() if fact.instance_id not in worked:
                unused += fact.instance_id in registered
                failed += fact.instance_id not in registered
            case _:
                pass
    waits = [started.get(task, until) - at for task, at in arrived.items()]
    waited = sum(waits) / len(waits) if waits else 0.0
    return Waste(launches=launches, failed=failed, unused=unused, waited_seconds=waited)


def compared(ledger: Sequence[Fact], declared: Declaration, *, until: float) -> str:
    """Waste of the run and of RFC 191's rule on the same cloud, as text."""
    ours, theirs = waste(ledger, until=until), waste(play(ledger, declared, until=until), until=until)
    return (
        "Wasted launches, compared with RFC 191's rule (weights by the last hour's errors, no windows, no probes)\n"
        "replayed on the same cloud with the same faults and tasks:\n"
        f"  Slipway         {ours}\n"
        f"  RFC 191's rule  {theirs}\n"
        "  Counted from the cloud's ledger until demand ended, refused launches included; `launched` above counts\n"
        "  accepted launches until all of them had settled."
    )


def play(ledger: Iterable[Fact], declared: Declaration, *, until: float) -> list[Fact]:
    """Replay the external facts of `ledger` (scenario, faults, demand) with launches by RFC 191's rule; its ledger."""
    outside = [fact for fact in ledger if isinstance(fact, OUTSIDE) and fact.at <= until]
    run = _Run(declared)
    for fact in outside:
        run.at(fact.at, partial(run.outside, fact))
    if outside:
        run.at(outside[0].at, run.poll)
    run.go(until)
    return run.facts


class _Pool:
    """A worker pool under the rule. `serving` counts live and requested machines."""

    def __init__(self, declared: WorkerPool) -> None:
        self.declared = declared
        self.configs = declared.launch_configs
        self.rates = ErrorRates([config.base_weight * config.price_factor for config in self.configs])
        self.serving = 0
        self.free: dict[str, None] = {}

    def wanted(self, counts: queue.Counts) -> int:
        tasks = ceil((counts.pending + counts.claimed) * self.declared.scaling_ratio)
        return max(self.declared.min_capacity, min(tasks, self.declared.max_capacity))


class _Run:
    """A replay: the simulated world, its pending timers, and the state of the rule."""

    def __init__(self, declared: Declaration) -> None:
        self.world = world.World()
        self.facts: list[Fact] = []
        self.pools = {pool.id: _Pool(pool) for pool in declared.worker_pools or ()}
        self.origin: dict[str, tuple[_Pool, int]] = {}  # instance → its pool, and the index of its config there
        self.idle_since: dict[str, float] = {}
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._calls = count(1)
        self._polls = count(1)

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
        if isinstance(fact, recorded.DemandSet):
            ended = [f for f in world.set_level(self.world, fact) if isinstance(f, recorded.TaskEnded)]
            self.record(fact, *ended)
            for end in ended:
                self.freed(end.instance_id, now)
        else:
            self.record(fact)
        if isinstance(fact, recorded.DemandSet | recorded.TaskArrived) and fact.pool_id in self.pools:
            self.serve(self.pools[fact.pool_id], now)

    # The rule

    def poll(self, now: float) -> None:
        rng = self.chance(f"poll-{next(self._polls)}")
        since = now - self.seconds(EVENTS_SECONDS)
        for pool_id, pool in self.pools.items():
            missing = pool.wanted(self.world.queue.counts(pool_id)) - pool.serving
            if missing > 0:
                drawn = rng.choices(range(len(pool.configs)), pool.rates.weights(since), k=missing)
                for place, units in Counter(drawn).items():
                    self.call(pool, place, units, now)
        self.at(now + self.seconds(POLL_SECONDS), self.poll)

    def call(self, pool: _Pool, place: int, units: int, now: float) -> None:
        call_id, config = f"call-{next(self._calls)}", pool.configs[place]
        call = recorded.Call(
            at=now,
            call_id=call_id,
            account=config.account,
            token=call_id,
            deployment="rfc191",
            batch=call_id,
            config=config_name(pool.declared, config),
            count=units,
            zone=config.zone,
            instance_type=config.instance_type,
            image=config.image,
            request=call_id,
        )
        self.record(call)
        pool.serving += units
        rng = self.chance(call_id)
        latency = cloud.latency_seconds(self.world.cloud, config.account, rng)
        self.at(now + latency, partial(self.answered, pool, place, call, rng))

    def answered(self, pool: _Pool, place: int, call: recorded.Call, rng: Random, now: float) -> None:
        """Handle the cloud's answer. A lost reply changes no rates, but its machines still start."""
        user_data = {"settings": pool.configs[place].settings}
        effects = self.world.effects(now)
        made = cloud.decide_create(self.world.cloud, call, user_data, effects=effects, now=now, rng=rng)
        self.record(*made)
        created = [fact for fact in made if isinstance(fact, recorded.InstanceCreated)]
        pool.serving -= call.count - len(created)
        reply = made[-1]
        assert isinstance(reply, recorded.Reply)
        if not reply.lost and reply.code != "RequestLimitExceeded":
            pool.rates.add(now, place, failures=call.count - len(created), others=len(created))
        for instance in created:
            self.origin[instance.instance_id] = pool, place
            if instance.boots_at is not None:
                self.at(instance.boots_at, partial(self.booted, instance.instance_id))
            self.at(now + self.seconds(BOOT_SECONDS), partial(self.overdue, instance.instance_id))

    def overdue(self, instance_id: str, now: float) -> None:
        """Terminate a machine that has not registered by now, and count it as a failure."""
        machine = self.world.machines.get(instance_id)
        if machine is not None and not machine.pool_id:
            pool, place = self.origin[instance_id]
            pool.rates.add(now, place, failures=1)
            self.end(instance_id, now)

    # Machines

    def booted(self, instance_id: str, now: float) -> None:
        if instance_id in self.world.machines:
            pool, _ = self.origin[instance_id]
            self.record(
                recorded.Registered(
                    at=now, instance_id=instance_id, worker_id=instance_id, pool_id=pool.declared.id, token=""
                )
            )
            self.idle(instance_id, now)

    def idle(self, instance_id: str, now: float) -> None:
        pool, _ = self.origin[instance_id]
        if self.world.machines[instance_id].free:
            pool.free[instance_id] = None
        self.idle_since[instance_id] = now
        self.at(now + self.seconds(IDLE_SECONDS), partial(self.idle_timeout, instance_id, now))
        self.serve(pool, now)

    def serve(self, pool: _Pool, now: float) -> None:
        """Start waiting tasks on free machines, the longest idle first."""
        while pool.free and (started := self._take(pool, next(iter(pool.free)), now)):
            del pool.free[started.instance_id]
            del self.idle_since[started.instance_id]
            claimed = recorded.Claimed(
                at=now,
                instance_id=started.instance_id,
                worker_id=started.instance_id,
                pool_id=started.pool_id,
                task_id=started.task_id,
                status=200,
            )
            self.record(started, claimed)
            if started.ends_at is not None:
                self.at(started.ends_at, partial(self.done, started))

    def _take(self, pool: _Pool, instance_id: str, now: float) -> recorded.TaskStarted | None:
        return queue.take(self.world.queue, pool.declared.id, instance_id, now=now)

    def done(self, started: recorded.TaskStarted, now: float) -> None:
        self.record(queue.end(self.world.queue.pools[started.pool_id].running[started.task_id], now=now))
        self.freed(started.instance_id, now)

    def freed(self, instance_id: str, now: float) -> None:
        """After a task, one-task machines terminate themselves and others become idle."""
        machine = self.world.machines[instance_id]
        if machine.pending_reports[0].what == "stopped":
            self.end(instance_id, now)
        else:
            self.record(
                recorded.Idle(
                    at=now, instance_id=instance_id, worker_id=instance_id, pool_id=machine.pool_id, status=200
                )
            )
            self.idle(instance_id, now)

    def idle_timeout(self, instance_id: str, since: float, now: float) -> None:
        pool, _ = self.origin[instance_id]
        if self.idle_since.get(instance_id) == since and pool.serving > pool.declared.min_capacity:
            self.end(instance_id, now)

    def end(self, instance_id: str, now: float) -> None:
        pool, _ = self.origin[instance_id]
        self.record(*world.end_instance(self.world, instance_id, "api", now=now))
        pool.free.pop(instance_id, None)
        self.idle_since.pop(instance_id, None)
        pool.serving -= 1
