"""Gangs that had their turn in one lease pool are tried, until all their pools have room: then they start in all of
them at once."""

from collections.abc import Callable

import msgspec

from slipway_common.postgres import Pool, is_infrastructure
from slipway_common.telemetry import logger
from slipway_lease_broker.admission import RETRY_SECONDS, decide_gang, tell
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.metrics import UNDECIDED
from slipway_lease_broker.store import gangs

LOG = logger(__name__)


class GangLoop(msgspec.Struct, frozen=True):
    lost_linger_seconds: float
    committed: Callable[[Decision], None] = tell  # called after each commit

    async def step(self, database: Pool) -> bool:
        """Try each once; True when one started, since what it no longer keeps may be another's.

        One that no decision can be made for stops none but itself: it is tried again later.
        """
        async with database.acquire() as db:
            started = False
            for gang_id in await gangs.ready(db):
                try:
                    async with db.transaction():
                        decisions = await decide_gang(db, gang_id, lost_linger_seconds=self.lost_linger_seconds)
                except Exception as error:
                    if is_infrastructure(error):
                        raise
                    LOG.exception("no decision could be made for a gang", gang=gang_id)
                    for lease_pool_id in await gangs.pools_of(db, gang_id):
                        UNDECIDED.labels(lease_pool_id).inc()
                    await gangs.put_off(db, gang_id, seconds=RETRY_SECONDS)
                    continue
                for decision in decisions:
                    self.committed(decision)
                started = started or bool(decisions)
        return started
