"""Routes for launch configs: their revisions, and pause and resume by name."""

from typing import Annotated

import msgspec
from fastapi import Depends, Query, Request

from slipway_api.http.pages import Items
from slipway_api.http.provisioner.launch_configs import LaunchConfig, LaunchConfigDetails, LaunchConfigPauseResult
from slipway_api.http.provisioner.pools import Pause
from slipway_common.base.revisions import hash_of, name_of
from slipway_common.database.postgres import Connection, Database
from slipway_common.web.access import READ, NeedsOwner, Reader
from slipway_common.web.answers import Answer
from slipway_common.web.bodies import Body
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name
from slipway_provisioner.http.pools import check_pool, check_until
from slipway_provisioner.store import configs, summaries

router = Router(prefix="/launch-configs", tags=["launch configs"])
DatabaseDep = Annotated[Database, Depends(database)]
Caller = Annotated[str, Depends(NeedsOwner("launch-configs:write", "config", "config"))]
Names = Annotated[list[Name] | None, Query(alias="name", description="List these launch configs only.")]
Archived = Annotated[bool, Query(alias="all", description="List archived revisions too.")]


@router.get("", dependencies=[READ])
async def list_configs(
    db: DatabaseDep, pool: Name | None = None, names: Names = None, archived: Archived = False
) -> Answer[Items[LaunchConfig]]:
    """List the revisions of launch configs, archived ones only with `all`."""
    found = await summaries.configs(db, pool, names, archived=archived)
    if pool is not None and not found:
        await check_pool(db, pool)
    return Answer(Items(items=found))


@router.get("/{config:id}")
async def get_config(config: Name, request: Request, reader: Reader, db: DatabaseDep) -> Answer[LaunchConfigDetails]:
    """Show one revision of a launch config, for a name the current one, with its weight record, newest failures, the
    deadlines in force and settings (null unless the token has the scope read:settings)."""
    own = request.app.state.settings
    found = await summaries.config(db, config, own.deadlines(), own.day_seconds)
    if found is None:
        raise _unknown(config)
    return Answer(found if reader.may("read:settings") else msgspec.structs.replace(found, settings=None))


@router.post("/{config:id}/pause")
async def pause(
    config: Name, body: Body[Pause], request: Request, by: Caller, db: DatabaseDep
) -> Answer[LaunchConfigPauseResult]:
    """Pause a launch config with all its revisions. No launch starts after the response; waiting intents are
    cancelled."""
    async with db.acquire() as connection, connection.transaction():
        await check_until(connection, body.until)
        name = await _name(connection, config, "pause")
        if not await configs.pause(connection, name, reason=body.reason, by=by, until=body.until, command=True):
            raise _wrong_state(name, "is no longer declared")
    wake(request)
    return Answer(LaunchConfigPauseResult(id=name, state="paused"))


@router.post("/{config:id}/resume")
async def resume(
    config: Name, body: Body[Pause], request: Request, by: Caller, db: DatabaseDep
) -> Answer[LaunchConfigPauseResult]:
    """Resume a paused launch config."""
    async with db.acquire() as connection, connection.transaction():
        name = await _name(connection, config, "resume")
        if not await configs.resume(connection, name, reason=body.reason, by=by):
            raise _wrong_state(name, "is not paused")
    wake(request)
    return Answer(LaunchConfigPauseResult(id=name, state="active"))


async def _name(db: Connection, config: str, verb: str) -> str:
    """Name of a launch config. Raises a Problem for the id of a revision, since all of them are paused and resumed."""
    if hash_of(config):
        detail = f"{config} is a revision, and pauses belong to the launch config: slipway lc {verb} {name_of(config)}"
        raise Problem(422, "not-a-name", "A revision cannot be paused", detail)
    if (name := (await configs.found(db, [config])).get(config)) is None:
        raise _unknown(config)
    return name


def _unknown(config: str) -> Problem:
    detail = f"no launch config {config!r} has been declared; see `slipway lc ls`"
    return Problem(404, "unknown-config", "No such launch config", detail)


def _wrong_state(name: str, problem: str) -> Problem:
    return Problem(
        409, "wrong-config-state", "The launch config is not in that state", f"launch config {name} {problem}"
    )
