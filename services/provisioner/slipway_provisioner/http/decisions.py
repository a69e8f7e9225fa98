"""Why: the decisions of a pool, and its workers."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from slipway_common.postgres import Pool
from slipway_common.runtime import database
from slipway_provisioner.http.pools import no_pool
from slipway_provisioner.store import decisions, pools, workers

router = APIRouter(tags=["decisions"])
Database = Annotated[Pool, Depends(database)]
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/pools/{pool_id}/decisions")
async def list_decisions(pool_id: str, db: Database, limit: Limit = 20) -> dict[str, Any]:
    """Newest first; each with weights, windows, who got what, and why the others did not."""
    if pool_id not in await pools.known(db, [pool_id]):
        raise no_pool(pool_id)
    return {"items": await decisions.recent(db, pool_id, limit)}


@router.get("/workers")
async def list_workers(
    db: Database, pool: str | None = None, state: str | None = None, limit: Limit = 100
) -> dict[str, Any]:
    found = await workers.listed(db, pool_id=pool, state=state, limit=limit)
    return {"items": [workers.described(worker) for worker in found]}
