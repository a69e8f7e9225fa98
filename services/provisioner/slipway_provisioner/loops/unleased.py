"""Unleased launches: while the lease-broker is unavailable, admits intents without a lease at the last granted pace.

Each is reported to the broker in the same transaction, so that it is charged once the broker reads the topic. A broker
that answers over HTTP is only cut off from Kafka: it could not charge unleased launches, so there are none.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import httpx2

from slipway_common.base.tls import client_context
from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.apply.unleased import admit
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import unleased

LOG = logger(__name__)

ANSWER_SECONDS: Final = 2.0


async def broker_answers(url: str) -> bool:
    """True if the lease-broker answers at `url`; False without a URL."""
    if not url:
        return False
    verify = client_context() if url.startswith("https:") else False
    try:
        async with httpx2.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False, verify=verify) as client:
            return bool((await client.get(f"{url}/livez")).is_success)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
        return False


async def admit_unleased(
    database: Database,
    *,
    settings: Settings,
    broker_unavailable_seconds: Callable[[], float],
    answers: Callable[[str], Awaitable[bool]] = broker_answers,
) -> bool:
    """Admit one intent of each lease pool whose pace allows it; False if none was admitted."""
    if settings.broker_unavailable_mode != "safe" or not settings.launching or not broker_unavailable_seconds():
        return False
    admitted = False
    async with database.acquire() as db:
        waiting = await unleased.waiting(db)
        if not waiting or await answers(settings.lease_broker_url):
            return False
        for lease_pool_id in waiting:
            async with db.transaction():
                lease_id = await admit(db, lease_pool_id)
            if lease_id is not None:
                admitted = True
                metrics.UNLEASED.labels(lease_pool_id).inc()
                LOG.warning("admitted an unleased launch", lease_pool=lease_pool_id, lease=lease_id)
    return admitted
