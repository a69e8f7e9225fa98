"""Sweep that verifies each lease pool once per round: its counters are compared with its rows and repaired, and one
more decision is made in case a wake-up was missed."""

import math
from typing import Final

from slipway_common.database.postgres import Connection, Database
from slipway_common.observability.telemetry import logger
from slipway_lease_broker.domain.drift import repaired
from slipway_lease_broker.metrics import DRIFTED
from slipway_lease_broker.store import history, pools

LOG = logger(__name__)
SWEEP_SECONDS: Final = 5.0
ROUND_SECONDS: Final = 600.0


async def sweep(database: Database) -> bool:
    """Verify the pools that were verified longest ago: as many as are due in SWEEP_SECONDS if a round is spread evenly,
    so that those that are declared together do not take all processors at once."""
    async with database.acquire() as db:
        share = math.ceil(await pools.number(db) * SWEEP_SECONDS / ROUND_SECONDS)
        for _ in range(share):
            if not await _verify_next(db):
                break
    return False


async def _verify_next(db: Connection) -> bool:
    """Verify one pool; False if each was verified within the round."""
    async with db.transaction():
        pool = await pools.claim_unverified(db, not_for_seconds=ROUND_SECONDS)
        if pool is None:
            return False
        now = await pools.clock(db)
        after, entry = repaired(pool, await pools.counted(db, pool.id), now)
        if entry is not None:
            await history.add(db, [entry])
        await pools.verify(db, after, now)
    if entry is not None:
        DRIFTED.labels(pool.id).inc()
        LOG.error(
            "counters of a lease pool differed from its rows and were repaired", lease_pool=pool.id, reason=entry.reason
        )
    return True
