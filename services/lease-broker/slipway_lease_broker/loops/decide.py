"""Loop that decides for due lease pools: deadlines, and commands that were applied without a decision. Runs in every
replica; the row lock of a lease pool serializes its decisions."""

import msgspec

from slipway_common.database.postgres import Database, is_infrastructure
from slipway_common.observability.telemetry import logger
from slipway_lease_broker.admission import RETRY_SECONDS, Admissions
from slipway_lease_broker.metrics import UNDECIDED
from slipway_lease_broker.store import pools

LOG = logger(__name__)


class DecideLoop(msgspec.Struct, frozen=True):
    """Decides for one due lease pool per step. A pool that only its deadlines make due is left to the process that is
    caught up with its commands."""

    admissions: Admissions

    async def step(self, database: Database) -> bool:
        """Decide for one due lease pool and commit the decision; False when none is due.

        A failing decision affects its own pool only: the pool is postponed and tried again.
        """
        async with database.acquire() as db:
            wanted = [name for name, dirty in await pools.due(db) if dirty or self.admissions.caught_up(name)]
            if not wanted:
                return False
            admission, pool = self.admissions.begin(db), None
            try:
                async with db.transaction():
                    pool = await admission.claim(wanted)
                    if pool is None:
                        return False
                    await admission.decide([pool.id])
            except Exception as error:
                if pool is None or is_infrastructure(error):
                    raise
                LOG.exception("decision for a lease pool failed", lease_pool=pool.id)
                UNDECIDED.labels(pool.id).inc()
                await pools.put_off(db, pool.id, f"decision failed: {error!r}", seconds=RETRY_SECONDS)
                return True
        admission.committed()
        return True
