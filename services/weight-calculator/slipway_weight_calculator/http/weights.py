"""Read access to the published weights over HTTP, on every replica."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response

from slipway_common.database.postgres import Database
from slipway_common.web.runtime import database
from slipway_weight_calculator.store import weights

router = APIRouter(tags=["weights"])


@router.get("/weights")
async def list_weights(
    db: Annotated[Database, Depends(database)], pool: str | None = None, config: str | None = None
) -> Response:
    """List the newest weight record of each launch config, of one worker pool or of one config."""
    records = await weights.listed(db, pool, config)
    return Response(msgspec.json.encode({"items": records}), media_type="application/json")
