"""Routes for sources of demand."""

from typing import Annotated

import msgspec
from fastapi import Depends, Request

from slipway_api.http.pages import Page
from slipway_api.http.provisioner.demand import DemandSource, RemovedSource
from slipway_common.database.postgres import Database
from slipway_common.web import pages
from slipway_common.web.access import READ
from slipway_common.web.answers import Answer
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name, ReasonOrEmpty
from slipway_provisioner.apply.sources import remove_source
from slipway_provisioner.http.pools import ReportCaller, check_pool
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import sources

router = Router(tags=["pools"])
DatabaseDep = Annotated[Database, Depends(database)]


@router.get("/demand", dependencies=[READ])
async def list_sources(
    request: Request,
    db: DatabaseDep,
    pool: Name | None = None,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
) -> Answer[Page[DemandSource]]:
    """List the sources of demand with their last reports. A stale one launches nothing, and is dropped at
    `protected_until` unless it reports again."""
    settings: Settings = request.app.state.settings
    if pool is not None:
        await check_pool(db, pool)
    after = pages.after(cursor, sources.FIRST)
    rows = await sources.listed(db, pool, settings.stale_demand_seconds, after=after, limit=limit + 1)
    return pages.page(rows, limit, lambda row: sources.SourcePlace(row.pool_id, row.source))


@router.delete("/pools/{pool_id:id}/demand/{source:id}")
async def remove(
    pool_id: Name, source: Name, request: Request, caller: ReportCaller, db: DatabaseDep, reason: ReasonOrEmpty = ""
) -> Answer[RemovedSource]:
    """Remove a source of demand: its reports up to now no longer count. A later report brings it back. A token removes
    sources that it may report for."""
    caller.permit_source(source)
    async with db.acquire() as connection, connection.transaction():
        await check_pool(connection, pool_id)
        removed = await remove_source(connection, pool_id, source, by=caller.name, reason=reason)
    if removed is None:
        detail = f"pool {pool_id} has no source {source!r}; see `slipway demand ls {pool_id}`"
        raise Problem(404, "unknown-source", "No such source of demand", detail)
    wake(request)
    return Answer(RemovedSource(pool_id=pool_id, source=source, **msgspec.structs.asdict(removed)))
