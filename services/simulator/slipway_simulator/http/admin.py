"""HTTP API for operators: load a scenario, add tasks, set demand and faults, read the state."""

import asyncio
from typing import Final

import msgspec
from fastapi import Request

from slipway_api.http.simulator import (
    AddedTasks,
    CallCounts,
    DemandLevel,
    FaultsInForce,
    InstanceCounts,
    LedgerFile,
    LoadedScenario,
    MachineCounts,
    NewFault,
    NewTasks,
    SetDemand,
    SimulatedFault,
    SimulatedPool,
    SimulatorLive,
    SimulatorReady,
    SimulatorState,
    ZoneCounts,
)
from slipway_common.web import openapi
from slipway_common.web.answers import Accepted, Answer, NoContent
from slipway_common.web.bodies import Body
from slipway_common.web.router import Router
from slipway_simulator import demand, faults, notation, queue, scenario, world
from slipway_simulator.facts import DemandSet, FaultCleared, FaultSet, ScenarioLoaded, TasksAdded
from slipway_simulator.http.accounts import Simulated
from slipway_simulator.runtime import Simulator

router = Router()
SCENARIO: Final = openapi.body(
    "A scenario. Tasks that are a list need no `kind`; `faults` may be text, whose percentages refer to a field "
    "`duration_seconds`.",
    json=openapi.struct_schema(scenario.Scenario),
)


@router.post("/scenario", openapi_extra=SCENARIO)
async def load(request: Request, simulation: Simulated) -> Answer[LoadedScenario]:
    """Load a scenario in place of the present one."""
    loaded = scenario.decode(await request.body())
    for source in loaded.pools.values():
        if isinstance(source, demand.Trace):
            await asyncio.to_thread(demand.read_trace, source)
    fact = ScenarioLoaded(at=simulation.now(), scenario=loaded)
    simulation.record([fact])
    return Answer(LoadedScenario(started_at=fact.at, seed=loaded.seed, speed=loaded.speed))


@router.post("/tasks")
async def add_tasks(body: Body[NewTasks], simulation: Simulated) -> Accepted[AddedTasks]:
    """Add tasks of one length to a pool."""
    offsets = [0.0] * body.count if body.at is None else body.at
    arrivals = demand.Arrivals(tuple((offset, body.duration_seconds) for offset in offsets))
    simulation.record([TasksAdded(at=simulation.now(), pool_id=body.pool_id, demand=arrivals)])
    return Accepted(AddedTasks(pool_id=body.pool_id, count=len(offsets)))


@router.put("/demand/{pool_id:id}")
async def set_demand(pool_id: str, body: Body[DemandLevel], simulation: Simulated) -> Answer[SetDemand]:
    """Set the demand of a pool to a level that lasts until it is set again."""
    level = DemandSet(at=simulation.now(), pool_id=pool_id, pending=body.pending, claimed=body.claimed)
    simulation.record(world.set_level(simulation.world, level))
    counts = simulation.world.queue.counts(pool_id)
    return Answer(SetDemand(pool_id=pool_id, at=level.at, pending=counts.pending, claimed=counts.claimed))


@router.post("/faults")
async def set_fault(body: Body[NewFault], simulation: Simulated) -> Answer[FaultsInForce]:
    """Set a fault, for a span of product time or until it is cleared."""
    fault = notation.Fault(body.name, body.arg, body.from_seconds, body.until_seconds)
    for parsed in faults.parsed([fault]):
        simulation.record([FaultSet(at=simulation.now(), fault=parsed)])
    return Answer(FaultsInForce(faults=_faults(simulation)))


@router.delete("/faults/{name:id}")
async def clear_fault(name: str, simulation: Simulated) -> Answer[FaultsInForce]:
    """Clear all faults of a name."""
    simulation.record([FaultCleared(at=simulation.now(), name=name)])
    return Answer(FaultsInForce(faults=_faults(simulation)))


@router.post("/instances/{instance_id:id}/crash")
async def crash(instance_id: str, simulation: Simulated) -> NoContent:
    """Terminate a machine without any report, like a crash."""
    simulation.end_instance(instance_id, "fault")
    return NoContent()


@router.get("/ledger")
async def ledger(simulation: Simulated) -> Answer[LedgerFile]:
    """Show where the ledger is, and its size."""
    return Answer(LedgerFile(path=str(simulation.ledger.path.resolve()), size_bytes=simulation.ledger.size_bytes))


@router.get("/livez")
async def livez() -> Answer[SimulatorLive]:
    """Answer while the process runs."""
    return Answer(SimulatorLive(live=True))


@router.get("/readyz")
async def readyz(request: Request) -> Answer[SimulatorReady]:
    """Ready once the ledger is read; the state of the Kafka connection is reported, but not required."""
    reporter = request.app.state.reporter
    return Answer(SimulatorReady(ready=True, kafka=bool(reporter and reporter.connected)))


@router.get("/state")
async def state(simulation: Simulated) -> Answer[SimulatorState]:
    """Show accounts, zones, pools, faults and the numbers of calls and instances."""
    now, cloud, machines = simulation.now(), simulation.world.cloud, simulation.world.machines.values()
    zones = sorted({zone for _, zone, _ in cloud.tallies} | set(cloud.rules.zones))
    accounts = sorted({account for account, _, _ in cloud.tallies} | set(cloud.rules.accounts) - {"*"})
    zones_out = simulation.world.effects(now).zones_out
    pools: dict[str, SimulatedPool] = {}
    for pool_id, pool in sorted(simulation.world.queue.pools.items()):
        counts = simulation.world.queue.counts(pool_id)
        pools[pool_id] = SimulatedPool(
            pending=counts.pending,
            claimed=counts.claimed,
            registered=sum(1 for machine in machines if machine.pool_id == pool_id),
            busy=len(pool.running),
            available=queue.available(simulation.world.queue, pool_id),
            tasks_arrived=pool.arrived,
            tasks_done=pool.done,
        )
    every = cloud.count()
    state = SimulatorState(
        at=now,
        started_at=cloud.started_at,
        speed=cloud.rules.speed,
        product_seconds=simulation.world.product_seconds(now) if cloud.started_at else 0.0,
        calls=CallCounts(
            total=cloud.calls,
            in_flight=simulation.calls_in_flight,
            lost_replies=cloud.lost_replies,
            replies=cloud.replies,
        ),
        instances=MachineCounts(
            live=every.live,
            launched=every.launched,
            registered=sum(1 for machine in machines if machine.pool_id),
            refused=sum(1 for machine in machines if machine.refused),
        ),
        accounts={
            name: InstanceCounts(live=tally.live, launched=tally.launched)
            for name in accounts
            for tally in [cloud.count(account=name)]
        },
        zones={
            name: ZoneCounts(live=tally.live, launched=tally.launched, out=name in zones_out)
            for name in zones
            for tally in [cloud.count(zone=name)]
        },
        pools=pools,
        faults=_faults(simulation),
    )
    return Answer(state)


def _faults(simulation: Simulator) -> list[SimulatedFault]:
    return msgspec.convert(simulation.world.faults, list[SimulatedFault], from_attributes=True)
