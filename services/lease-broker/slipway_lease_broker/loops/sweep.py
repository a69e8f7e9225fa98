"""Sweep that verifies each lease pool once per round: its counters are compared with its rows and repaired, and one
more decision is made in case a wake-up was missed."""

from typing import Final

from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import logger
from slipway_lease_broker.domain.drift import repaired
from slipway_lease_broker.metrics import DRIFTED
from slipway_lease_broker.store import history, pools

LOG = logger(__name__)
ROUND_SECONDS: Final = 600.0


async def sweep(database: Database) -> bool:
    """Verify the pool that was verified longest ago; False when each was verified within the round."""
    async with database.acquire() as db, db.transaction():
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
