"""Loop that decides for due lease pools: deadlines, and commands that were applied without a decision. Runs in every
replica; the row lock of a lease pool serializes its decisions."""

from collections.abc import Callable
from math import inf
from typing import Final

import msgspec

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.redaction import described
from slipway_common.database.postgres import Database, is_infrastructure
from slipway_common.observability.telemetry import logger
from slipway_lease_broker.admission import RETRY_SECONDS, Admissions
from slipway_lease_broker.metrics import UNDECIDED
from slipway_lease_broker.store import pools

LOG = logger(__name__)

PARTIAL_SECONDS: Final = 5.0  # between decisions for a pool in which deadlines are held back


class DecideLoop(msgspec.Struct, frozen=True):
    """Decides for one due lease pool per step. A pool that only its deadlines make due is left to the process that
    reads its commands; if no process does, to any."""

    admissions: Admissions
    clock: Callable[[], float] = monotonic_seconds
    partial: dict[str, float] = {}
    """Lease pools in which not all deadlines could pass, and when they were decided (monotonic)."""

    async def step(self, database: Database) -> bool:
        """Decide for one due lease pool and commit the decision; False when none is due.

        A failing decision affects its own pool only: the pool is postponed and tried again.
        """
        async with database.acquire() as db:
            wanted = [pool.id for pool in await pools.due(db) if pool.dirty or self._lets_pass(pool)]
            if not wanted:
                return False
            admission, pool = self.admissions.begin(db), None
            try:
                async with db.transaction():
                    pool = await admission.claim(wanted)
                    if pool is None:
                        return False
                    self.partial.pop(pool.id, None)
                    if not self.admissions.receiving(pool.id).both:
                        self.partial[pool.id] = self.clock()
                    await admission.decide([pool.id])
            except Exception as error:
                if pool is None or is_infrastructure(error):
                    raise
                LOG.exception("decision for a lease pool failed", lease_pool=pool.id)
                UNDECIDED.labels(pool.id).inc()
                await pools.put_off(db, pool.id, f"decision failed: {described(error)}", seconds=RETRY_SECONDS)
                return True
        admission.committed()
        return True

    def _lets_pass(self, due: pools.DuePool) -> bool:
        """True if this process now lets deadlines of the pool pass. While it does not receive the commands
        of all holders some of them are held back, and the pool stays due."""
        receiving = self.admissions.receiving(due.id)
        if receiving.both:
            return True
        is_recent = self.clock() - self.partial.get(due.id, -inf) < PARTIAL_SECONDS
        return receiving.either and (receiving.reads or due.late) and not is_recent
