"""Loop that starts gangs: a gang that had its turn in one lease pool is tried until all of its pools have free units,
then it starts in all of them at once."""

import msgspec

from slipway_common.database.postgres import Database, is_infrastructure
from slipway_common.observability.telemetry import logger
from slipway_lease_broker.admission import RETRY_SECONDS, Admissions
from slipway_lease_broker.metrics import UNDECIDED
from slipway_lease_broker.store import gangs

LOG = logger(__name__)


class GangLoop(msgspec.Struct, frozen=True):
    admissions: Admissions

    async def step(self, database: Database) -> bool:
        """Try each gang once; True when one started, since its reserved units may now let another start.

        A failing decision affects its own gang only: the gang is tried again later.
        """
        async with database.acquire() as db:
            started = False
            for gang_id in await gangs.ready(db):
                admission = self.admissions.begin(db)
                try:
                    async with db.transaction():
                        await admission.start_gang(gang_id)
                except Exception as error:
                    if is_infrastructure(error):
                        raise
                    LOG.exception("decision for a gang failed", gang=gang_id)
                    for lease_pool_id in await gangs.pools_of(db, gang_id):
                        UNDECIDED.labels(lease_pool_id).inc()
                    await gangs.put_off(db, gang_id, seconds=RETRY_SECONDS)
                    continue
                admission.committed()
                started = started or bool(admission.decisions)
        return started
