"""Route that shows the user data of a pool's machines."""

from typing import Annotated, Final

from fastapi import Depends, Query, Request

from slipway_api.http.provisioner.pools import UserDataPreview
from slipway_common.database.postgres import Database
from slipway_common.declaration.user_data import BYTES_MAX
from slipway_common.web.access import READ_SETTINGS
from slipway_common.web.answers import Answer
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database
from slipway_common.web.text import Name
from slipway_provisioner.domain import user_data
from slipway_provisioner.http.pools import check_pool
from slipway_provisioner.store import accounts, configs, demand

router = Router(tags=["pools"])
DatabaseDep = Annotated[Database, Depends(database)]
Config = Annotated[Name | None, Query(description="Launch config of the pool [default: the first one].")]
BATCH: Final = "00000000-0000-0000-0000-000000000000"


@router.get("/pools/{pool_id:id}/user-data", dependencies=[READ_SETTINGS])
async def show_user_data(
    pool_id: Name, request: Request, db: DatabaseDep, config: Config = None
) -> Answer[UserDataPreview]:
    """Show the user data of the next machines of a launch config, with a batch id of zeros and secrets masked, and
    their maximum size."""
    async with db.acquire() as connection:
        await check_pool(connection, pool_id)
        revision = await configs.current(connection, pool_id, config)
        if revision is None:
            detail = f"worker pool {pool_id} has no launch config {config!r}; see `slipway lc ls --pool {pool_id}`"
            raise Problem(404, "unknown-config", "No such launch config", detail)
        account = await accounts.get(connection, revision["account_id"])
        source = await demand.only_source(connection, pool_id)
    settings = request.app.state.settings
    url, ca = settings.url_for_machines, settings.authorities_for_machines()
    template = revision["user_data"]
    values = user_data.values_of(revision, account, register_url=url, batch_id=BATCH, source=source, ca=ca)
    return Answer(
        UserDataPreview(
            config=revision["id"],
            user_data=user_data.preview(template, values),
            bytes=user_data.longest_bytes(template, values),
            bytes_max=BYTES_MAX,
        )
    )
