"""The published weights, for those without Kafka. Reads only."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response

from slipway_common.postgres import Pool
from slipway_common.runtime import database
from slipway_weight_calculator.store import configs

router = APIRouter()


@router.get("/weights")
async def list_weights(db: Annotated[Pool, Depends(database)], pool: str | None = None) -> Response:
    """The newest record of each launch config, as on the topic; `pool` selects one worker pool's."""
    records = await configs.published(db, pool)
    return Response(msgspec.json.encode({"items": records}), media_type="application/json")
