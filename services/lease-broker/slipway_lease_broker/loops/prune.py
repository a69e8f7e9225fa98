"""Loop that prunes ended leases, done requests, history, audit, and unused groups, tenants and gangs. It never touches
leases that count or requests that wait."""

from typing import Final

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_lease_broker.store import audit, gangs, groups, history, leases, pools, requests, tenants

EVERY_SECONDS = 3600.0
DAY_SECONDS = 86_400.0
AUDIT_KEPT_SECONDS: Final = 400 * DAY_SECONDS


class PruneLoop:
    """Prunes once an hour, however often it is woken."""

    def __init__(self, ended_kept_days: float) -> None:
        self.kept_seconds = ended_kept_days * DAY_SECONDS
        self._next_at = 0.0

    async def step(self, database: Database) -> bool:
        if monotonic_seconds() < self._next_at:
            return False
        for pool in await pools.declared(database):
            async with database.acquire() as db, db.transaction():
                await pools.lock(db, [pool.id])
                await leases.prune(db, pool.id, ended_for_seconds=self.kept_seconds)
                await requests.prune(db, pool.id, done_for_seconds=self.kept_seconds)
                await groups.prune(db, pool.id, over_for_seconds=self.kept_seconds)
                await tenants.prune(db, pool.id, backed_off_for_seconds=self.kept_seconds)
                await history.prune(db, pool.id, older_than_seconds=self.kept_seconds)
        async with database.acquire() as db:
            await gangs.prune(db, unused_for_seconds=self.kept_seconds)
        while await audit.prune(database, older_than_seconds=AUDIT_KEPT_SECONDS):
            pass
        self._next_at = monotonic_seconds() + EVERY_SECONDS
        return False
