"""Read access to the published weights over HTTP, on every replica."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response

from slipway_common.database.postgres import Database
from slipway_common.web.access import READ
from slipway_common.web.runtime import database
from slipway_common.web.text import Name
from slipway_weight_calculator.store import weights

router = APIRouter(tags=["weights"])


@router.get("/weights", dependencies=[READ])
async def list_weights(
    db: Annotated[Database, Depends(database)], pool: Name | None = None, config: Name | None = None, all: bool = False
) -> Response:
    """List the newest weight record of each launch config's revision, of one worker pool, name or revision.

    Archived revisions are listed with `all`, or by their own id.
    """
    records = await weights.listed(db, pool, config, archived=all)
    return Response(msgspec.json.encode({"items": records}), media_type="application/json")
