"""Routes for pools, demand and launch stops."""

from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request

from slipway_api.events.pool import DemandReported
from slipway_api.http.pages import Items
from slipway_api.http.provisioner.demand import DemandReport, DemandReportResult
from slipway_api.http.provisioner.pools import (
    LaunchStop,
    LaunchStopRequest,
    LaunchStopResult,
    Pause,
    Pool,
    PoolFreezeResult,
    PoolPauseResult,
    ReasonGiven,
)
from slipway_common.database.postgres import Connection, Database
from slipway_common.observability.telemetry import current_trace
from slipway_common.web.access import READ, Caller, Needs, NeedsCaller, NeedsOwner
from slipway_common.web.answers import Answer
from slipway_common.web.bodies import Body, Report
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name
from slipway_provisioner.apply import freezing
from slipway_provisioner.apply import launch_stops as apply
from slipway_provisioner.domain.demand import problem, reported
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import demand, launch_stops, pauses, pools, summaries

router = Router(tags=["pools"])
DatabaseDep = Annotated[Database, Depends(database)]
ReportCaller = Annotated[Caller, Depends(NeedsCaller("demand:write:{pool_id}"))]
PoolCaller = Annotated[str, Depends(NeedsOwner("pools:write", "pool", "pool_id"))]


def no_pool(pool_id: str) -> Problem:
    return Problem(404, "unknown-pool", "No such pool", f"no pool {pool_id!r} is declared; see `slipway pool ls`")


async def check_pool(db: Connection | Database, pool_id: str) -> None:
    """Raise Problem unless the pool is declared."""
    known, _ = await pools.known(db, [pool_id])
    if pool_id not in known:
        raise no_pool(pool_id)


@router.get("/pools", dependencies=[READ])
async def list_pools(db: DatabaseDep) -> Answer[Items[Pool]]:
    """List worker pools with their demand, their workers and their state."""
    return Answer(Items(items=await summaries.pools(db)))


@router.put("/pools/{pool_id:id}/demand")
async def put_demand(
    pool_id: Name, body: Report[DemandReport], request: Request, caller: ReportCaller, db: DatabaseDep
) -> Answer[DemandReportResult]:
    """Report demand without Kafka. A report older than the stored one has no effect (`stored` is false). A token has a
    few sources in a pool at a time, since each is demand for machines."""
    caller.permit_source(body.source)
    settings: Settings = request.app.state.settings
    report = DemandReported(
        pool_id=pool_id,
        source=body.source,
        pending=body.pending or 0,
        claimed=body.claimed,
        total=body.total,
        observed_at=body.observed_at,
        valid_for_seconds=body.valid_for_seconds,
    )
    async with db.acquire() as connection, connection.transaction():
        now = await pools.now(connection)
        if reason := problem(report, now):
            raise Problem(422, "demand-refused", "The demand report is invalid", reason)
        await check_pool(connection, pool_id)
        by, most = caller.name, settings.sources_max
        if not await demand.has_place(connection, pool_id, report.source, by=by, sources_max=most):
            detail = (
                f"{by} has {most} sources in pool {pool_id}, or has ended too many lately; see `slipway demand ls "
                f"{pool_id}`, remove those that are none by `slipway demand rm`, or raise SLIPWAY_SOURCES_MAX"
            )
            raise Problem(409, "too-many-sources", "The token has too many sources in this pool", detail)
        stored = await demand.store(connection, [reported(report, by=by, traceparent=current_trace())])
    wake(request)
    return Answer(DemandReportResult(stored=stored))


@router.post("/pools/{pool_id:id}/pause")
async def pause_pool(
    pool_id: Name, body: Body[Pause], request: Request, by: PoolCaller, db: DatabaseDep
) -> Answer[PoolPauseResult]:
    """Pause a pool. No launch starts after the response; waiting intents are cancelled, workers keep running."""
    async with db.acquire() as connection, connection.transaction():
        await check_until(connection, body.until)
        if not await pauses.pause(connection, pool_id, reason=body.reason, by=by, until=body.until):
            raise no_pool(pool_id)
    wake(request)
    return Answer(PoolPauseResult(id=pool_id, paused=True, until=body.until))


@router.post("/pools/{pool_id:id}/resume")
async def resume_pool(
    pool_id: Name, body: Body[Pause], request: Request, by: PoolCaller, db: DatabaseDep
) -> Answer[PoolPauseResult]:
    """Resume a paused pool."""
    async with db.acquire() as connection, connection.transaction():
        await check_pool(connection, pool_id)
        if not await pauses.resume(connection, pool_id, reason=body.reason, by=by):
            raise _wrong_state(pool_id, "is not paused")
    wake(request)
    return Answer(PoolPauseResult(id=pool_id, paused=False))


@router.post("/pools/{pool_id:id}/freeze")
async def freeze_pool(
    pool_id: Name, body: Body[ReasonGiven], request: Request, by: PoolCaller, db: DatabaseDep
) -> Answer[PoolFreezeResult]:
    """Freeze a pool until it is unfrozen. No launch starts after the response."""
    async with db.acquire() as connection, connection.transaction():
        await check_pool(connection, pool_id)
        if not await pauses.freeze(connection, pool_id, reason=body.reason, by=by):
            raise _wrong_state(pool_id, "is already frozen")
    wake(request)
    return Answer(PoolFreezeResult(id=pool_id, frozen=True))


@router.post("/pools/{pool_id:id}/unfreeze")
async def unfreeze_pool(
    pool_id: Name, body: Body[ReasonGiven], request: Request, by: PoolCaller, db: DatabaseDep
) -> Answer[PoolFreezeResult]:
    """Unfreeze a pool. An image that is still bad freezes it again after `freeze_after` more failed starts."""
    async with db.acquire() as connection, connection.transaction():
        await check_pool(connection, pool_id)
        if not await freezing.unfreeze(connection, pool_id, reason=body.reason, by=by):
            raise _wrong_state(pool_id, "is not frozen")
    wake(request)
    return Answer(PoolFreezeResult(id=pool_id, frozen=False))


@router.get("/launch-stops", dependencies=[READ])
async def list_launch_stops(db: DatabaseDep) -> Answer[Items[LaunchStop]]:
    """List the launch stops in force."""
    return Answer(Items(items=await launch_stops.in_force(db)))


@router.post("/stop-launching")
async def stop_launching(
    body: Body[LaunchStopRequest],
    request: Request,
    by: Annotated[str, Depends(Needs("launching:stop"))],
    db: DatabaseDep,
) -> Answer[LaunchStopResult]:
    """Set a launch stop. Works without Kafka; no launch starts after the response."""
    async with db.acquire() as connection, connection.transaction():
        await _check_target(connection, body)
        await check_until(connection, body.until)
        await apply.stop(connection, body.scope, body.scope_id, reason=body.reason, by=by, until=body.until)
    wake(request)
    return Answer(LaunchStopResult(scope=body.scope, scope_id=body.scope_id, stopped=True))


@router.post("/start-launching")
async def start_launching(
    body: Body[LaunchStopRequest],
    request: Request,
    by: Annotated[str, Depends(Needs("launching:stop"))],
    db: DatabaseDep,
) -> Answer[LaunchStopResult]:
    """Lift a launch stop. `was_stopped` is false if there was none."""
    async with db.acquire() as connection, connection.transaction():
        lifted = await apply.start(connection, body.scope, body.scope_id, reason=body.reason, by=by)
    wake(request)
    return Answer(LaunchStopResult(scope=body.scope, scope_id=body.scope_id, stopped=False, was_stopped=lifted))


async def _check_target(db: Connection, body: LaunchStopRequest) -> None:
    """Reject a launch stop on an unknown name, which would stop nothing."""
    if not await launch_stops.has_target(db, body.scope, body.scope_id):
        raise Problem(404, "unknown-target", "No such account or pool", f"{body.scope} {body.scope_id!r}")


async def check_until(db: Connection, until: datetime | None) -> None:
    if until is not None and until <= await pools.now(db):
        detail = f"until is {until.isoformat()}, which has passed; write a later time"
        raise Problem(422, "until-passed", "The time has passed", detail)


def _wrong_state(pool_id: str, problem: str) -> Problem:
    return Problem(409, "wrong-pool-state", "The pool is not in that state", f"pool {pool_id} {problem}")
