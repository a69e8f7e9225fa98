"""The published weights, for those without Kafka. Reads only; every instance answers."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response

from slipway_common.postgres import Pool
from slipway_common.runtime import database
from slipway_weight_calculator.store import weights

router = APIRouter(tags=["weights"])


@router.get("/weights")
async def list_weights(
    db: Annotated[Pool, Depends(database)], pool: str | None = None, config: str | None = None
) -> Response:
    """The newest record of each launch config, as on the topic; of one worker pool, or of one config."""
    records = await weights.listed(db, pool, config)
    return Response(msgspec.json.encode({"items": records}), media_type="application/json")
