"""Worker deadlines: boot timeouts, idle and unresponsive workers.

Deadlines of workers count only time in which their reports could be received: each pass records itself, and the time
between two passes that are far apart is downtime, after an outage as after a jump of the database's clock.
"""

from collections.abc import Mapping
from typing import Final

from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.apply import ageing, expiry, limiting, reachability, reaping, starvation, throttling
from slipway_provisioner.apply.sources import settle_sources
from slipway_provisioner.providers.port import Provider
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import configs, deadlines, leases, limits, pauses, refused_pauses, restores

LOG = logger(__name__)
REGULAR_PASS_SECONDS: Final = 5.0
"""Longest regular time between two passes, of which there is one a second; what exceeds it is downtime."""


async def expire_next(database: Database, *, settings: Settings, providers: Mapping[str, Provider]) -> bool:
    """Stop workers that are past a deadline, drop sources of demand that no longer report, settle what retired accounts
    left open, end pauses that have expired, also refused ones, and renew leases; raise and resolve alerts on limits,
    starved pools and throttled accounts."""
    defaults = settings.deadlines()
    async with database.acquire() as db:
        if await restores.unconfirmed(db):  # what these workers did since the restored state is unknown
            async with db.transaction():
                await leases.renew(db)
            return False
        downtime_seconds = await deadlines.record_pass(db, regular_seconds=REGULAR_PASS_SECONDS)
        if downtime_seconds:
            metrics.DOWNTIME_SECONDS.inc(downtime_seconds)
            LOG.warning("deadlines of workers are extended by the time without a pass", seconds=downtime_seconds)
        await limits.redate(db)
        async with db.transaction():
            limited = await limiting.settle(db, settings.tariff())
        booting = await expiry.stop_overdue_boots(db, defaults, providers)
        idle = await expiry.stop_idle(db, defaults, providers)
        aged = await ageing.stop_overdue(db, settings.stop_grace_seconds)
        unresponsive = await expiry.stop_unresponsive(db, defaults)
        async with db.transaction():
            sources = await settle_sources(db, settings.stale_demand_seconds)
        async with db.transaction():
            refused = await refused_pauses.settle(db)
        async with db.transaction():
            calls = await reachability.settle_calls(db)
        leaving = await reachability.settle_workers(db, settings.stop_grace_seconds)
        kept = await reaping.forget_unlisted(db)
        starved = await starvation.settle(db, defaults, after_seconds=settings.starved_after_seconds)
        throttled = await throttling.settle(db, after_seconds=settings.throttled_after_seconds)
        await pauses.resume_overdue(db)
        await configs.resume_overdue(db)
        async with db.transaction():
            await leases.renew(db)
    settled = limited or sources or refused or calls or leaving or kept or starved or throttled
    return booting or idle or aged or unresponsive or settled
