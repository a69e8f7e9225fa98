"""Route for safety limits: what counts towards them, and what they leave."""

from decimal import Decimal
from typing import Annotated

from fastapi import Depends, Request

from slipway_api.http.pages import Items
from slipway_api.http.provisioner.accounts import LaunchLimit
from slipway_common.database.postgres import Database
from slipway_common.web.access import READ
from slipway_common.web.answers import Answer
from slipway_common.web.router import Router
from slipway_common.web.runtime import database
from slipway_provisioner.domain.limits import Level
from slipway_provisioner.store import limits

router = Router(prefix="/launch-limits", tags=["accounts"])
DatabaseDep = Annotated[Database, Depends(database)]


@router.get("", dependencies=[READ])
async def list_limits(request: Request, db: DatabaseDep) -> Answer[Items[LaunchLimit]]:
    """List the safety limits of accounts and pools: scope (account or pool), scope_id, launches_per_hour with
    `launches` in the last hour and `launches_left`, spend_per_day with `spend`, the estimate for the last day, and
    `spend_left`, `waiting` launches, and `reached`: the limit that stops launches (launches, spend or price), empty if
    none does. `launches_free_at` and `spend_free_at` are the next times at which some of each no longer counts."""
    async with db.acquire() as connection:
        found = await limits.listed(connection, request.app.state.settings.tariff())
    return Answer(Items(items=[_shown(level, reached) for level, reached in found]))


def _shown(level: Level, reached: str) -> LaunchLimit:
    limit, usage, waiting = level.limit, level.usage, sum(level.waiting.values())
    return LaunchLimit(
        scope=limit.scope,
        scope_id=limit.scope_id,
        launches_per_hour=limit.launches_per_hour,
        launches=usage.launches,
        launches_left=(
            None if limit.launches_per_hour is None else max(0, limit.launches_per_hour - usage.launches - waiting)
        ),
        launches_free_at=usage.launches_free_at,
        spend_per_day=_text(limit.spend_per_day),
        spend=None if limit.spend_per_day is None else _text(usage.spend),
        spend_left=None if limit.spend_per_day is None else _text(max(Decimal(), limit.spend_per_day - usage.spend)),
        spend_free_at=usage.spend_free_at,
        unpriced=usage.unpriced,
        lifetime_seconds=limit.lifetime_seconds,
        default_price=_text(limit.default_price),
        waiting=waiting,
        reached=reached,
    )


def _text(money: Decimal | None) -> str | None:
    """Amount as a decimal number with at most six digits after its point."""
    return None if money is None else f"{round(money, 6).normalize():f}"
