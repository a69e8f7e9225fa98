"""The simulated world as one value: the ledger folded. Pure.

Only `fold` changes it, so live state and state rebuilt from the ledger are the same.
"""

from collections.abc import Iterable, Iterator

import msgspec

from slipway_simulator import machines, queue
from slipway_simulator.cloud import Cloud
from slipway_simulator.facts import (
    DemandSet,
    EndedBy,
    Fact,
    FaultCleared,
    FaultSet,
    InstanceCreated,
    ScenarioLoaded,
    TaskEnded,
    Terminated,
)
from slipway_simulator.faults import Effects, effects
from slipway_simulator.machines import Machine
from slipway_simulator.notation import Fault
from slipway_simulator.queue import Queue


class World(msgspec.Struct):
    cloud: Cloud = msgspec.field(default_factory=Cloud)
    queue: Queue = msgspec.field(default_factory=Queue)
    machines: dict[str, Machine] = {}
    faults: tuple[Fault, ...] = ()

    def fold(self, fact: Fact) -> None:
        self.cloud.fold(fact)
        self.queue.fold(fact)
        match fact:
            case ScenarioLoaded():
                self.faults = fact.scenario.faults
            case FaultSet():
                self.faults = (*self.faults, fact.fault)
            case FaultCleared():
                self.faults = tuple(fault for fault in self.faults if fault.name != fact.name)
            case InstanceCreated():
                self.machines[fact.instance_id] = machines.created(fact)
            case Terminated():
                self.machines.pop(fact.instance_id, None)
            case _:
                if machine := self.machines.get(getattr(fact, "instance_id", "")):
                    machine.fold(fact)

    def effects(self, now: float) -> Effects:
        return effects(self.faults, self.product_seconds(now))

    def is_undying(self, account: str, instance_id: str, now: float) -> bool:
        """True if a fault keeps an instance from being terminated."""
        return not self.effects(now).undying.isdisjoint({account, instance_id})

    def product_seconds(self, now: float) -> float:
        """Product time since the scenario began."""
        return (now - self.cloud.started_at) * self.cloud.rules.speed


def rebuild(facts: Iterable[Fact]) -> World:
    world = World()
    for fact in facts:
        world.fold(fact)
    return world


def end_instance(world: World, instance_id: str, by: EndedBy, *, now: float) -> Iterator[Fact]:
    """Terminate an instance and interrupt its task; does nothing if the instance is gone."""
    if machine := world.machines.get(instance_id):
        yield from interrupt(world, machine, now=now)
        yield Terminated(at=now, instance_id=instance_id, account=machine.account, by=by)


def interrupt(world: World, machine: Machine, *, now: float) -> Iterator[TaskEnded]:
    """Interrupt the machine's task, which becomes pending again."""
    if machine.task_id:
        run = world.queue.pools[machine.pool_id].running[machine.task_id]
        yield queue.end(run, now=now, interrupted=True)


def set_level(world: World, level: DemandSet) -> Iterator[Fact]:
    """Set a demand level, and end the units above it."""
    yield level
    before = world.queue.pools.get(level.pool_id, queue.PoolQueue())
    after = Queue(pools={level.pool_id: msgspec.structs.replace(before, level=level)})
    for run in queue.excess_units(after, level.pool_id):
        yield queue.end(run, now=level.at)
