"""Due lease pools are decided for: what time alone changes, and what was not decided upon where it was said. Runs in
every replica; a lease pool's row lock makes one decision at a time of it."""

from collections.abc import Callable

import msgspec

from slipway_common.postgres import Pool, is_infrastructure
from slipway_common.telemetry import logger
from slipway_lease_broker.admission import RETRY_SECONDS, decide_pool, tell
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.metrics import UNDECIDED
from slipway_lease_broker.store import pools

LOG = logger(__name__)


class DecideLoop(msgspec.Struct, frozen=True):
    """`caught_up(lease_pool_id)` is false until this process has read that pool's requests to the end it saw when it
    took them over: until then renewals may be waiting there, so no deadline passes; units are granted all the same."""

    caught_up: Callable[[str], bool]
    lost_linger_seconds: float
    waiter_ttl_seconds: float
    committed: Callable[[Decision], None] = tell  # called after each commit

    async def step(self, database: Pool) -> bool:
        """Decide for one due lease pool and commit the decision; False when none is due.

        A pool that no decision can be made for stops none but itself: it is put behind the others, and tried again.
        """
        async with database.acquire() as db:
            wanted = [name for name, dirty in await pools.due(db) if dirty or self.caught_up(name)]
            if not wanted:
                return False
            pool = None
            try:
                async with db.transaction():
                    pool = await pools.claim(db, wanted)
                    if pool is None:
                        return False
                    decision = await decide_pool(
                        db,
                        pool,
                        await pools.clock(db),
                        expire=self.caught_up(pool.id),
                        lost_linger_seconds=self.lost_linger_seconds,
                        waiter_ttl_seconds=self.waiter_ttl_seconds,
                    )
            except Exception as error:
                if pool is None or is_infrastructure(error):
                    raise
                LOG.exception("no decision could be made for a lease pool", lease_pool=pool.id)
                UNDECIDED.labels(pool.id).inc()
                await pools.put_off(db, pool.id, f"no decision could be made: {error!r}", seconds=RETRY_SECONDS)
                return True
        self.committed(decision)
        return True
