"""Routes for errors that workers have reported."""

from typing import Annotated

from fastapi import Depends

from slipway_api.http.pages import Page
from slipway_api.http.provisioner.workers import ErrorTotal, WorkerError
from slipway_common.database.places import NEWEST, Newest
from slipway_common.database.postgres import Database
from slipway_common.web import pages
from slipway_common.web.access import READ
from slipway_common.web.answers import Answer
from slipway_common.web.moment import Moment
from slipway_common.web.router import Router
from slipway_common.web.runtime import database
from slipway_common.web.text import Name
from slipway_provisioner.domain.recovery import UUID
from slipway_provisioner.http.fleet import no_worker
from slipway_provisioner.store import errors

router = Router(prefix="/errors", tags=["workers"])
DatabaseDep = Annotated[Database, Depends(database)]


@router.get("", dependencies=[READ])
async def list_errors(
    db: DatabaseDep,
    worker: Name | None = None,
    pool: Name | None = None,
    config: Name | None = None,
    code: Name | None = None,
    since: Moment | None = None,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
) -> Answer[Page[WorkerError]]:
    """List errors that workers have reported, newest first, each with a redacted sample. They are kept for 14 days; of
    one worker at most 1,000 an hour."""
    if worker is not None and not UUID.fullmatch(worker):
        raise no_worker(worker)
    (after,) = pages.after(cursor, NEWEST)
    filters = {"worker_id": worker, "pool_id": pool, "launch_config_id": config, "code": code}
    rows = await errors.listed(db, **filters, since=since, after=after, limit=limit + 1)
    return pages.page(rows, limit, lambda row: Newest(row.id))


@router.get("/totals", dependencies=[READ])
async def list_totals(
    db: DatabaseDep,
    pool: Name | None = None,
    config: Name | None = None,
    since: Moment | None = None,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
) -> Answer[Page[ErrorTotal]]:
    """List the number of errors per launch config, code and hour, newest hours first. They are kept for 60 days."""
    after = pages.after(cursor, errors.LAST_HOUR)
    filters = {"pool_id": pool, "launch_config_id": config}
    async with db.acquire() as connection:
        rows = await errors.totals(connection, **filters, since=since, after=after, limit=limit + 1)
    return pages.page(rows, limit, lambda row: errors.HourPlace(row.hour, row.launch_config_id, row.code))
