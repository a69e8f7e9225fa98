"""Loop that decides for due lease pools: deadlines, and commands that were applied without a decision. Runs in every
replica; the row lock of a lease pool serializes its decisions."""

from collections.abc import Callable

import msgspec

from slipway_common.database.postgres import Database, is_infrastructure
from slipway_common.observability.telemetry import logger
from slipway_lease_broker.admission import RETRY_SECONDS, count_decision, decide_pool
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.metrics import UNDECIDED
from slipway_lease_broker.store import pools

LOG = logger(__name__)


class DecideLoop(msgspec.Struct, frozen=True):
    """Decides for one due lease pool per step.

    `caught_up(lease_pool_id)` is false until this process has read the commands of that pool up to the end seen at the
    assignment of their partition. Renewals may be waiting there, so no deadline passes; units are granted regardless.
    """

    caught_up: Callable[[str], bool]
    lost_linger_seconds: float
    waiter_ttl_seconds: float
    committed: Callable[[Decision], None] = count_decision  # called after each commit

    async def step(self, database: Database) -> bool:
        """Decide for one due lease pool and commit the decision; False when none is due.

        A failing decision affects its own pool only: the pool is postponed and tried again.
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
                LOG.exception("decision for a lease pool failed", lease_pool=pool.id)
                UNDECIDED.labels(pool.id).inc()
                await pools.put_off(db, pool.id, f"decision failed: {error!r}", seconds=RETRY_SECONDS)
                return True
        self.committed(decision)
        return True
