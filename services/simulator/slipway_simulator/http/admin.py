"""HTTP API for operators: load a scenario, add tasks, set demand and faults, read the state."""

import asyncio
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from slipway_common.web import openapi
from slipway_simulator import demand, faults, notation, queue, scenario, world
from slipway_simulator.facts import DemandSet, FaultCleared, FaultSet, ScenarioLoaded, TasksAdded
from slipway_simulator.http.accounts import Simulated
from slipway_simulator.runtime import Simulator

router = APIRouter()
Seconds = Annotated[float, Field(allow_inf_nan=False)]
# An amount of demand that one deployment could hold.
UNITS_MAX: Final = 1_000_000


class Tasks(BaseModel):
    """Tasks to add. `at`: arrival of each in product seconds from now [default: all now]."""

    pool_id: str
    count: int = Field(default=1, ge=1, le=100_000)
    duration_seconds: Seconds = Field(ge=0)
    at: list[Annotated[Seconds, Field(ge=0)]] | None = None


class NewFault(BaseModel):
    name: str
    arg: str = ""
    from_seconds: Seconds | None = None
    until_seconds: Seconds | None = None


class Level(BaseModel):
    pending: int = Field(ge=0, le=UNITS_MAX)
    claimed: int | None = Field(default=None, ge=0, le=UNITS_MAX)


SCENARIO: Final = openapi.body(
    "A scenario. Tasks that are a list need no `kind`; `faults` may be text, whose percentages refer to a field "
    "`duration_seconds`.",
    json=openapi.struct_schema(scenario.Scenario),
)


@router.post("/scenario", openapi_extra=SCENARIO)
async def load(request: Request, simulation: Simulated) -> Response:
    """Load a scenario in place of the present one."""
    loaded = scenario.decode(await request.body())
    for source in loaded.pools.values():
        if isinstance(source, demand.Trace):
            await asyncio.to_thread(demand.read_trace, source)
    fact = ScenarioLoaded(at=simulation.now(), scenario=loaded)
    simulation.record([fact])
    return _json(200, {"started_at": fact.at, "seed": loaded.seed, "speed": loaded.speed})


@router.post("/tasks", status_code=202)
async def add_tasks(body: Tasks, simulation: Simulated) -> Response:
    """Add tasks of one length to a pool."""
    offsets = [0.0] * body.count if body.at is None else body.at
    arrivals = demand.Arrivals(tuple((offset, body.duration_seconds) for offset in offsets))
    simulation.record([TasksAdded(at=simulation.now(), pool_id=body.pool_id, demand=arrivals)])
    return _json(202, {"pool_id": body.pool_id, "count": len(offsets)})


@router.put("/demand/{pool_id:id}")
async def set_demand(pool_id: str, body: Level, simulation: Simulated) -> Response:
    """Set the demand of a pool to a level that lasts until it is set again."""
    level = DemandSet(at=simulation.now(), pool_id=pool_id, pending=body.pending, claimed=body.claimed)
    simulation.record(world.set_level(simulation.world, level))
    return _json(200, {"pool_id": pool_id, "at": level.at, **_counts(simulation, pool_id)})


@router.post("/faults")
async def set_fault(body: NewFault, simulation: Simulated) -> Response:
    """Set a fault, for a span of product time or until it is cleared."""
    fault = notation.Fault(body.name, body.arg, body.from_seconds, body.until_seconds)
    for parsed in faults.parsed([fault]):
        simulation.record([FaultSet(at=simulation.now(), fault=parsed)])
    return _json(200, {"faults": msgspec.to_builtins(simulation.world.faults)})


@router.delete("/faults/{name:id}")
async def clear_fault(name: str, simulation: Simulated) -> Response:
    """Clear all faults of a name."""
    simulation.record([FaultCleared(at=simulation.now(), name=name)])
    return _json(200, {"faults": msgspec.to_builtins(simulation.world.faults)})


@router.post("/instances/{instance_id:id}/crash", status_code=204)
async def crash(instance_id: str, simulation: Simulated) -> Response:
    """Terminate a machine without any report, like a crash."""
    simulation.end_instance(instance_id, "fault")
    return Response(status_code=204)


@router.get("/ledger")
async def ledger(simulation: Simulated) -> Response:
    """Show where the ledger is, and its size."""
    return _json(200, {"path": str(simulation.ledger.path.resolve()), "size_bytes": simulation.ledger.size_bytes})


@router.get("/livez")
async def livez() -> Response:
    """Answer while the process runs."""
    return _json(200, {"live": True})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Ready once the ledger is read; the state of the Kafka connection is reported, but not required."""
    reporter = request.app.state.reporter
    return _json(200, {"ready": True, "kafka": bool(reporter and reporter.connected)})


@router.get("/state")
async def state(simulation: Simulated) -> Response:
    """Show accounts, zones, pools, faults and the numbers of calls and instances."""
    now, cloud, machines = simulation.now(), simulation.world.cloud, simulation.world.machines.values()
    tally = msgspec.to_builtins
    zones = sorted({zone for _, zone, _ in cloud.tallies} | set(cloud.rules.zones))
    accounts = sorted({account for account, _, _ in cloud.tallies} | set(cloud.rules.accounts) - {"*"})
    effects = simulation.world.effects(now)
    pools: dict[str, dict[str, Any]] = {}
    for pool_id, pool in sorted(simulation.world.queue.pools.items()):
        mine = [machine for machine in machines if machine.pool_id == pool_id]
        pools[pool_id] = {
            **_counts(simulation, pool_id),
            "registered": len(mine),
            "busy": len(pool.running),
            "available": queue.available(simulation.world.queue, pool_id),
            "tasks_arrived": pool.arrived,
            "tasks_done": pool.done,
        }
    return _json(
        200,
        {
            "at": now,
            "started_at": cloud.started_at,
            "speed": cloud.rules.speed,
            "product_seconds": simulation.world.product_seconds(now) if cloud.started_at else 0.0,
            "calls": {
                "total": cloud.calls,
                "in_flight": simulation.calls_in_flight,
                "lost_replies": cloud.lost_replies,
                "replies": cloud.replies,
            },
            "instances": {
                **tally(cloud.count()),
                "registered": sum(1 for machine in machines if machine.pool_id),
                "refused": sum(1 for machine in machines if machine.refused),
            },
            "accounts": {name: tally(cloud.count(account=name)) for name in accounts},
            "zones": {name: tally(cloud.count(zone=name)) | {"out": name in effects.zones_out} for name in zones},
            "pools": pools,
            "faults": tally(simulation.world.faults),
        },
    )


def _counts(simulation: Simulator, pool_id: str) -> dict[str, Any]:
    counts = simulation.world.queue.counts(pool_id)
    return {"pending": counts.pending, "claimed": counts.claimed}


def _json(status: int, body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")
