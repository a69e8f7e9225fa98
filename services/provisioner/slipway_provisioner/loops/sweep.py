"""Periodic sweep: plans every pool at intervals, republishes states and repairs counters.

Level-triggered: a lost wake-up, a late write of a fenced process or a bug in marking heals within one round.
"""

from collections.abc import Callable, Mapping

from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.apply import provider_keys
from slipway_provisioner.providers.port import Provider
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import marks, outcomes, spending, sweeps, usage

LOG = logger(__name__)


async def sweep_next(
    database: Database,
    *,
    settings: Settings,
    calculator_unavailable_seconds: Callable[[], float],
    providers: Mapping[str, Provider],
) -> bool:
    """Sweep one pool that is due; False if none is."""
    async with database.acquire() as db, db.transaction():
        pool_id = await sweeps.next_to_sweep(db, settings.sweep_seconds)
        if pool_id is None:
            return False
        await marks.dirty(db, {pool_id}, reason="sweep")
        await sweeps.republish(db, pool_id)
        drift = await usage.repair_shared(db) if await sweeps.is_first(db, pool_id) else 0
        drift += await usage.repair_pool(db, pool_id)  # keys are locked before workers
        drift += await spending.repair(db, pool_id)
        if drift:
            metrics.USAGE_DRIFT.inc(drift)
            LOG.error(
                "counters of starts in flight or of spend differed from the workers and were repaired", drift=drift
            )
    async with database.acquire() as db:
        await provider_keys.refresh(db, pool_id, providers)
        for config_id in await outcomes.repair(db, pool_id):
            LOG.error("a failure counter was below the number of failed workers and was repaired", config=config_id)
        available = not calculator_unavailable_seconds()
        for written in await outcomes.write_off(db, pool_id, calculator_available=available):
            if written["written_off"] > 0:
                LOG.warning(
                    "failures not folded into a weight for an hour no longer count against the window", **written
                )
    return True
