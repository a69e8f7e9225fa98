"""Every lease pool is proved now and then: its counters against its rows, and once more by a decision. A counter that
drifted is repaired and told; whatever missed a wake-up is decided for."""

from typing import Final

from slipway_common.postgres import Pool
from slipway_common.telemetry import logger
from slipway_lease_broker.domain.drift import repaired
from slipway_lease_broker.metrics import DRIFTED
from slipway_lease_broker.store import history, pools

LOG = logger(__name__)
ROUND_SECONDS: Final = 600.0


async def sweep(database: Pool) -> bool:
    """Prove the pool that was proved longest ago; False when each was within the round."""
    async with database.acquire() as db, db.transaction():
        pool = await pools.claim_unproved(db, not_for_seconds=ROUND_SECONDS)
        if pool is None:
            return False
        now = await pools.clock(db)
        after, entry = repaired(pool, await pools.counted(db, pool.id), now)
        if entry is not None:
            await history.add(db, [entry])
        await pools.prove(db, after, now)
    if entry is not None:
        DRIFTED.labels(pool.id).inc()
        LOG.error("counters of a lease pool had drifted", lease_pool=pool.id, reason=entry.reason)
    return True
