"""Calls of unknown outcome: repeated with the same token where the cloud honours it, else looked up by their tag.

Nothing new is tried for an intent before the old call's outcome is certain: the deadline of the call and the time
after which the cloud must list its instances have both passed.
"""

import asyncio

from slipway_common.clock import monotonic_seconds
from slipway_common.postgres import Pool
from slipway_common.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.store import accounts, batches
from slipway_provisioner.store.batches import Batch

LOG = logger(__name__)


async def resolve_next(pool: Pool, *, launcher: Launcher) -> bool:
    """Try to settle every batch that is overdue, all at once: an account that hangs holds up no other."""
    settings = launcher.settings
    async with pool.acquire() as db:
        overdue = await batches.take_overdue(
            db, visibility_seconds=settings.visibility_seconds, attempt_seconds=settings.call_timeout_seconds
        )
        owners = {batch.account_id: await accounts.get(db, batch.account_id) for batch in overdue}
    await asyncio.gather(*(_resolve(pool, launcher, batch, owners[batch.account_id]) for batch in overdue))
    return bool(overdue)


async def _resolve(pool: Pool, launcher: Launcher, batch: Batch, account: Account) -> None:
    """Never raises: what fails here is tried again later."""
    provider = launcher.providers[account.provider]
    try:
        if provider.honours_tokens(account):
            await launcher.call(pool, batch, account, began=monotonic_seconds(), repeated=True)
            return
        found = await provider.instances(account, batch_id=batch.id)
        metrics.LOOKED_UP.labels(account.id).inc()
        if found:
            await launcher.record(pool, batch, instance_ids=[instance.id for instance in found], looked_up=True)
        else:
            await launcher.record(pool, batch, put_back="looked up: the call had no effect")
    except Exception as error:
        LOG.warning("outcome is still unknown", batch=batch.id, account=account.id, error=repr(error))
