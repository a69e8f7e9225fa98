"""Route for the console output of machines that never registered."""

from typing import Annotated

from fastapi import Depends, Query

from slipway_api.http.pages import Items
from slipway_api.http.provisioner.workers import ConsoleOutput
from slipway_common.database.postgres import Database
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
    db: DatabaseDep, image: Name | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Answer[Items[ConsoleOutput]]:
    """List the newest console outputs, one per image revision, redacted, or the reason why there is none. `settled_at`
    is null while it is being fetched."""
    async with db.acquire() as connection:
        return Answer(Items(items=await consoles.listed(connection, image, limit)))
