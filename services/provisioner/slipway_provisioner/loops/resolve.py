"""Calls of unknown outcome: repeated with the same token where the cloud honours it, else looked up by their tag.

Nothing new is tried for an intent before the old call's outcome is certain: the deadline of the call and the time
after which the cloud must list its instances have both passed.
"""

from slipway_common.postgres import Pool
from slipway_common.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.registration import batch_secret
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.providers.port import CreateRequest, OutcomeUnknown
from slipway_provisioner.store import accounts, batches
from slipway_provisioner.store.batches import Batch

LOG = logger(__name__)


async def resolve_next(pool: Pool, *, launcher: Launcher) -> bool:
    """Settle every batch that is overdue."""
    settings = launcher.settings
    async with pool.acquire() as db:
        overdue = await batches.unknown(db, settings.visibility_seconds)
        owners = {batch.account_id: await accounts.get(db, batch.account_id) for batch in overdue}
    settled = False
    for batch in overdue:
        try:
            await _resolve(pool, launcher, batch, owners[batch.account_id])
            settled = True
        except OutcomeUnknown as error:
            LOG.warning("cannot look up yet", batch=batch.id, error=str(error))
    return settled


async def _resolve(pool: Pool, launcher: Launcher, batch: Batch, account: Account) -> None:
    provider = launcher.providers[account.provider]
    if provider.honours_tokens(account):
        request = CreateRequest(
            batch_id=batch.id, token=batch.token, count=batch.units, config=batch.body,
            secret=batch_secret(launcher.settings.registration_key, batch.id),
        )  # fmt: skip
        await launcher.call(pool, batch, account, request)
        return
    found = await provider.instances(account, batch_id=batch.id)
    metrics.LOOKED_UP.labels(account.id).inc()
    if found:
        await launcher.record(pool, batch, instance_ids=[instance.id for instance in found], looked_up=True)
    else:
        await launcher.record(pool, batch, put_back="looked up: the call had no effect")
