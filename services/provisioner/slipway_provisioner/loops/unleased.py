"""Unleased launches: while the lease-broker is unavailable, admits intents without a lease at the last granted pace.

Each is reported to the broker in the same transaction, so that it is charged once the broker reads the topic.
"""

from collections.abc import Callable

from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.apply.unleased import admit
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import unleased

LOG = logger(__name__)


async def admit_unleased(
    database: Database, *, settings: Settings, broker_unavailable_seconds: Callable[[], float]
) -> bool:
    """Admit one intent of each lease pool whose pace allows it; False if none was admitted."""
    if settings.broker_unavailable_mode != "safe" or not settings.launching or not broker_unavailable_seconds():
        return False
    admitted = False
    async with database.acquire() as db:
        for lease_pool_id in await unleased.waiting(db):
            async with db.transaction():
                lease_id = await admit(db, lease_pool_id)
            if lease_id is not None:
                admitted = True
                metrics.UNLEASED.labels(lease_pool_id).inc()
                LOG.warning("admitted an unleased launch", lease_pool=lease_pool_id, lease=lease_id)
    return admitted
