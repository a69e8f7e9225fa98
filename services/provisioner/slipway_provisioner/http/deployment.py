"""Route for people: the identity of the deployment."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends

from slipway_common.database.postgres import Database
from slipway_common.web.runtime import database
from slipway_provisioner.store import deployment

router = APIRouter(prefix="/deployment", tags=["deployment"])


@router.get("")
async def get_deployment(db: Annotated[Database, Depends(database)]) -> dict[str, Any]:
    """Return the id with which every machine of this deployment is tagged, and the incarnation of its database."""
    return msgspec.structs.asdict(await deployment.get(db))
