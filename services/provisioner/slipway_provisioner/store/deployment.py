"""Identity of this deployment and its database."""

from typing import Final

import sqlalchemy as sa

from slipway_api.http.provisioner.recovery import Deployment
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_provisioner.store.tables import deployment, metadata

GET: Final = Statement(
    sa.select(deployment.c.id, sa.select(metadata.tables["incarnation"].c.id).scalar_subquery().label("incarnation"))
)


async def get(db: Connection) -> Deployment:
    return Deployment(**await db.fetchrow(GET.text))
