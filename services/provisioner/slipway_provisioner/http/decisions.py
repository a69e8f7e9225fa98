"""Routes that list the planning decisions of a pool with their reasons."""

from typing import Annotated

from fastapi import Depends

from slipway_api.http.pages import Page
from slipway_api.http.provisioner.decisions import Decision
from slipway_common.database.postgres import Database
from slipway_common.web import pages
from slipway_common.web.access import READ
from slipway_common.web.answers import Answer
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database
from slipway_common.web.text import Name
from slipway_provisioner.domain.recovery import UUID
from slipway_provisioner.http.pools import check_pool
from slipway_provisioner.store import decisions

router = Router(tags=["decisions"])
DatabaseDep = Annotated[Database, Depends(database)]


@router.get("/pools/{pool_id:id}/decisions", dependencies=[READ])
async def list_decisions(
    pool_id: Name, db: DatabaseDep, limit: pages.Limit = 100, cursor: pages.Cursor = None
) -> Answer[Page[Decision]]:
    """List decisions, newest first, each with weights, windows, and launches or a reason per config."""
    await check_pool(db, pool_id)
    after = pages.after(cursor, decisions.FIRST)
    rows = await decisions.recent(db, pool_id, limit + 1, after=after)
    return pages.page(
        rows, limit, lambda row: decisions.DecisionPlace(row["at"], row["id"]), lambda row: Decision(**row)
    )


@router.get("/decisions/{decision_id:id}", dependencies=[READ])
async def get_decision(decision_id: Name, db: DatabaseDep) -> Answer[Decision]:
    """Show one decision with its reasons."""
    found = await decisions.get(db, decision_id) if UUID.fullmatch(decision_id) else None
    if found is None:
        detail = f"no decision {decision_id!r}; decisions are deleted after 7 days"
        raise Problem(404, "unknown-decision", "No such decision", detail)
    return Answer(Decision(**found))
