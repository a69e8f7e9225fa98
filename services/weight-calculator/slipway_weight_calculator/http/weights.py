"""Read access to the published weights over HTTP, on every replica."""

from typing import Annotated

from fastapi import Depends

from slipway_api.events.weight import WeightChanged
from slipway_api.http.pages import Items
from slipway_common.database.postgres import Database
from slipway_common.web.access import READ
from slipway_common.web.answers import Answer, stored
from slipway_common.web.router import Router
from slipway_common.web.runtime import database
from slipway_common.web.text import Name
from slipway_weight_calculator.store import weights

router = Router(tags=["weights"])


@router.get("/weights", dependencies=[READ])
async def list_weights(
    db: Annotated[Database, Depends(database)], pool: Name | None = None, config: Name | None = None, all: bool = False
) -> Answer[Items[WeightChanged]]:
    """List the newest weight record of each launch config's revision, of one worker pool, name or revision.

    Archived revisions are listed with `all`, or by their own id.
    """
    records = await weights.listed(db, pool, config, archived=all)
    return Answer(Items(items=stored(records, WeightChanged)))
