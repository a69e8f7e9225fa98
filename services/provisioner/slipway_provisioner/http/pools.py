"""Pools, launch configs, demand and brakes, for people and monitors."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from slipway_common.access import Credentials, check, require
from slipway_common.declaration import Invalid, parse
from slipway_common.events.pool import DemandReported
from slipway_common.postgres import Connection, Pool
from slipway_common.problem import Problem
from slipway_common.runtime import database, ring
from slipway_provisioner.domain.demand import TASKS_MAX, problem
from slipway_provisioner.store import brakes, configs, declarations, demand, pauses, pools, summaries

router = APIRouter(tags=["pools"])
Database = Annotated[Pool, Depends(database)]
Caller = Annotated[str, Depends(require("launch-configs:write"))]
PoolCaller = Annotated[str, Depends(require("pools:write"))]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DemandBody(Body):
    """Tasks of one source. `claimed` counts tasks on this pool's own workers only."""

    pending: int = Field(ge=0, le=TASKS_MAX)
    claimed: int = Field(0, ge=0, le=TASKS_MAX)
    observed_at: AwareDatetime
    valid_for_seconds: float = Field(300.0, gt=0, le=86_400)
    source: str = Field(min_length=1, max_length=200)


class ReasonBody(Body):
    reason: str = Field(min_length=1, max_length=500)


class PauseBody(ReasonBody):
    until: AwareDatetime | None = None


class BrakeBody(PauseBody):
    scope: str = Field(pattern="^(all|account|pool)$")
    scope_id: str = ""


def no_pool(pool_id: str) -> Problem:
    return Problem(404, "unknown-pool", "No such pool", f"no pool {pool_id!r} is declared; see `slipway pool ls`")


@router.put("/declaration")
async def put_declaration(
    request: Request, db: Database, _: Annotated[str, Depends(require("declaration:write"))], dry_run: bool = False
) -> dict[str, Any]:
    """Apply a whole declaration, or tell what would change. Atomic and idempotent."""
    try:
        body = msgspec.json.decode(await request.body())
        declared = parse(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem(400, "not-json", "The body is not JSON", str(error)) from error
    except Invalid as error:
        problems = [msgspec.to_builtins(problem) for problem in error.problems]
        detail = "; ".join(f"{p.path}: {p.reason}" for p in error.problems)
        raise Problem(422, "invalid-declaration", "The declaration is not valid", detail, errors=problems) from error
    async with db.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            changes = await declarations.apply(
                connection, declared, providers=request.app.state.providers, times=request.app.state.times
            )
        except declarations.Refused as error:
            await transaction.rollback()
            raise Problem(409, "declaration-refused", "The declaration cannot be applied", str(error)) from error
        except BaseException:
            await transaction.rollback()
            raise
        await (transaction.rollback() if dry_run else transaction.commit())
    ring(request)
    return {"items": [msgspec.to_builtins(change) for change in changes], "applied": not dry_run}


@router.get("/pools")
async def list_pools(db: Database) -> dict[str, Any]:
    return {"items": await summaries.pools(db)}


@router.get("/pools/{pool_id}")
async def get_pool(pool_id: str, db: Database) -> dict[str, Any]:
    found = await summaries.pools(db, pool_id)
    if not found:
        raise no_pool(pool_id)
    return found[0]


@router.put("/pools/{pool_id}/demand")
async def put_demand(
    pool_id: str, body: DemandBody, request: Request, db: Database, credentials: Credentials
) -> dict[str, Any]:
    """Report demand without Kafka. Older than what is known: accepted, changes nothing (`stored` says so)."""
    check(request, credentials, f"demand:write:{pool_id}")
    report = DemandReported(pool_id=pool_id, **body.model_dump())
    async with db.acquire() as connection, connection.transaction():
        now = await pools.now(connection)
        if reason := problem(report, now):
            raise Problem(422, "demand-refused", "The report cannot be believed", reason)
        if pool_id not in await pools.known(connection, [pool_id]):
            raise no_pool(pool_id)
        trace = request.headers.get("traceparent", "")
        stored = await demand.store(connection, [(report, trace)])
    ring(request)
    return {"stored": stored}


@router.post("/pools/{pool_id}/pause")
async def pause_pool(pool_id: str, body: PauseBody, request: Request, db: Database, by: PoolCaller) -> dict[str, Any]:
    """No start commits for the pool after this has answered. Intents that wait are cancelled; workers stay."""
    async with db.acquire() as connection, connection.transaction():
        await _check_until(connection, body.until)
        if not await pauses.pause(connection, pool_id, reason=body.reason, by=by, until=body.until):
            raise no_pool(pool_id)
    ring(request)
    return {"id": pool_id, "paused": True, "until": body.until}


@router.post("/pools/{pool_id}/resume")
async def resume_pool(pool_id: str, body: PauseBody, request: Request, db: Database, by: PoolCaller) -> dict[str, Any]:
    async with db.acquire() as connection, connection.transaction():
        if pool_id not in await pools.known(connection, [pool_id]):
            raise no_pool(pool_id)
        if not await pauses.resume(connection, pool_id, reason=body.reason, by=by):
            raise _wrong_state(pool_id, "is not paused")
    ring(request)
    return {"id": pool_id, "paused": False}


@router.post("/pools/{pool_id}/freeze")
async def freeze_pool(pool_id: str, body: ReasonBody, request: Request, db: Database, by: PoolCaller) -> dict[str, Any]:
    """Like a pause that only `unfreeze` ends. No start commits for the pool after this has answered."""
    async with db.acquire() as connection, connection.transaction():
        if pool_id not in await pools.known(connection, [pool_id]):
            raise no_pool(pool_id)
        if not await pauses.freeze(connection, pool_id, reason=body.reason, by=by):
            raise _wrong_state(pool_id, "is frozen already")
    ring(request)
    return {"id": pool_id, "frozen": True}


@router.post("/pools/{pool_id}/unfreeze")
async def unfreeze_pool(
    pool_id: str, body: ReasonBody, request: Request, db: Database, by: PoolCaller
) -> dict[str, Any]:
    """Launch again. An image that is still bad freezes the pool again only after `freeze_after` starts more."""
    async with db.acquire() as connection, connection.transaction():
        if pool_id not in await pools.known(connection, [pool_id]):
            raise no_pool(pool_id)
        if not await pauses.unfreeze(connection, pool_id, reason=body.reason, by=by):
            raise _wrong_state(pool_id, "is not frozen")
    ring(request)
    return {"id": pool_id, "frozen": False}


@router.get("/launch-configs")
async def list_configs(db: Database, pool: str | None = None) -> dict[str, Any]:
    found = await summaries.configs(db, pool)
    if pool is not None and not found and pool not in await pools.known(db, [pool]):
        raise no_pool(pool)
    return {"items": found}


@router.get("/launch-configs/{config_id}")
async def get_config(config_id: str, db: Database) -> dict[str, Any]:
    """One launch config, with its settings, its whole weight record and the newest failures."""
    found = await summaries.config(db, config_id)
    if found is None:
        detail = f"no launch config {config_id!r} was ever declared; see `slipway lc ls`"
        raise Problem(404, "unknown-config", "No such launch config", detail)
    return found


@router.post("/launch-configs/{config_id}/pause")
async def pause(config_id: str, body: PauseBody, request: Request, db: Database, by: Caller) -> dict[str, Any]:
    """No start commits for the config after this has answered. Intents that wait are cancelled."""
    async with db.acquire() as connection, connection.transaction():
        paused = await configs.pause(connection, config_id, reason=body.reason, by=by, until=body.until, command=True)
        if not paused:
            raise _no_config(config_id, "active, or `until` has passed")
    ring(request)
    return {"id": config_id, "state": "paused"}


@router.post("/launch-configs/{config_id}/resume")
async def resume(config_id: str, body: PauseBody, request: Request, db: Database, by: Caller) -> dict[str, Any]:
    async with db.acquire() as connection, connection.transaction():
        if not await configs.resume(connection, config_id, reason=body.reason, by=by):
            raise _no_config(config_id, "paused")
    ring(request)
    return {"id": config_id, "state": "active"}


@router.get("/brakes")
async def list_brakes(db: Database) -> dict[str, Any]:
    """What stops launching now: everywhere, in an account, or in a pool."""
    return {"items": await brakes.in_force(db)}


@router.post("/stop-launching")
async def stop_launching(
    body: BrakeBody, request: Request, db: Database, by: Annotated[str, Depends(require("launching:stop"))]
) -> dict[str, Any]:
    """The brake: works without Kafka; no start commits after this has answered."""
    async with db.acquire() as connection, connection.transaction():
        await _check_target(connection, body)
        await _check_until(connection, body.until)
        await brakes.pull(connection, body.scope, body.scope_id, reason=body.reason, by=by, until=body.until)
    ring(request)
    return {"scope": body.scope, "scope_id": body.scope_id, "stopped": True}


@router.post("/start-launching")
async def start_launching(
    body: BrakeBody, request: Request, db: Database, _: Annotated[str, Depends(require("launching:stop"))]
) -> dict[str, Any]:
    async with db.acquire() as connection, connection.transaction():
        released = await brakes.release(connection, body.scope, body.scope_id)
    ring(request)
    return {"scope": body.scope, "scope_id": body.scope_id, "stopped": False, "was_stopped": released}


async def _check_target(db: Connection, body: BrakeBody) -> None:
    """A brake on a name that is misspelt would stop nothing and say that it did."""
    if not await brakes.has_target(db, body.scope, body.scope_id):
        raise Problem(404, "unknown-target", "No such account or pool", f"{body.scope} {body.scope_id!r}")


async def _check_until(db: Connection, until: datetime | None) -> None:
    if until is not None and until <= await pools.now(db):
        detail = f"until {until.isoformat()} has passed: nothing would be stopped"
        raise Problem(422, "until-passed", "The time has passed", detail)


def _wrong_state(pool_id: str, why: str) -> Problem:
    return Problem(409, "wrong-pool-state", "The pool is not in that state", f"{pool_id} {why}")


def _no_config(config_id: str, wanted: str) -> Problem:
    return Problem(
        409, "wrong-config-state", "The launch config is not in that state", f"{config_id} is unknown or not {wanted}"
    )
