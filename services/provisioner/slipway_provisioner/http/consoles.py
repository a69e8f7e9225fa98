"""Route for the console output of machines that never registered."""

from typing import Annotated

from fastapi import Depends

from slipway_api.http.pages import Page
from slipway_api.http.provisioner.workers import ConsoleOutput
from slipway_common.database.postgres import Database
from slipway_common.web import pages
from slipway_common.web.access import READ
from slipway_common.web.answers import Answer
from slipway_common.web.router import Router
from slipway_common.web.runtime import database
from slipway_common.web.text import Name
from slipway_provisioner.store import consoles

router = Router(tags=["workers"])
DatabaseDep = Annotated[Database, Depends(database)]


@router.get("/console-outputs", dependencies=[READ])
async def list_console_outputs(
    db: DatabaseDep, image: Name | None = None, limit: pages.Limit = 100, cursor: pages.Cursor = None
) -> Answer[Page[ConsoleOutput]]:
    """List console outputs, newest first, one per image revision, redacted, or the reason why there is none.
    `settled_at` is null while it is being fetched."""
    after = pages.after(cursor, consoles.FIRST)
    async with db.acquire() as connection:
        rows = await consoles.listed(connection, image, limit + 1, after=after)
    return pages.page(rows, limit, lambda row: consoles.ConsolePlace(row.requested_at, row.image_revision))
