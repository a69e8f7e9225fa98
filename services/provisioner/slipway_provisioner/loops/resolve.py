"""Resolves provider calls of unknown outcome: repeats them with the same token if the provider honours it, else looks
up their instances by tag.

A repeat may be the call that takes effect, so it is made only where a call may start now: not after a pause, a freeze,
a drain, a launch stop or the end of its lease. Then the call is looked up as well.

No new call is made for an intent before the old call's outcome is certain: the call's deadline and the visibility
delay, after which the provider must list its instances, have both passed.
"""

import asyncio
import contextlib

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.apply import launches
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.loops import contact
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.providers.port import OutcomeUnknown
from slipway_provisioner.store import accounts, batches
from slipway_provisioner.store.batches import Batch

LOG = logger(__name__)


async def resolve_next(database: Database, *, launcher: Launcher) -> bool:
    """Try to resolve all overdue batches concurrently, so that an account that hangs does not block others."""
    settings = launcher.settings
    began = monotonic_seconds()
    async with database.acquire() as db:
        overdue = await batches.take_overdue(
            db, visibility_seconds=settings.visibility_seconds, attempt_seconds=settings.call_timeout_seconds
        )
        by_id = {batch.account_id: await accounts.get(db, batch.account_id) for batch in overdue}
    await asyncio.gather(*(_resolve(database, launcher, batch, by_id[batch.account_id], began) for batch in overdue))
    return bool(overdue)


async def _resolve(database: Database, launcher: Launcher, batch: Batch, account: Account, began: float) -> None:
    """Resolve one batch, in an attempt that `began` when its deadline was set. Never raises: a failure is retried
    later."""
    provider = launcher.providers[account.provider]
    try:
        if provider.honours_tokens(account) and await _may_repeat(database, launcher, batch, began):
            await launcher.call(database, batch, account, began=began, repeated=True)
            return
        found = await provider.instances(account, batch_id=batch.id)
        metrics.LOOKED_UP.labels(account.id).inc()
        if found:
            await launcher.record(database, batch, [instance.id for instance in found], looked_up=True)
        else:
            await launcher.put_back(database, batch, "looked up: the call had no effect")
        await contact.answered(database, account.id)
    except OutcomeUnknown as error:
        LOG.info("looking up the call failed", batch=batch.id, account=account.id, error=str(error))
        with contextlib.suppress(Exception):  # the next attempt records it
            await contact.unanswered(database, account.id, launcher.settings, began=began)
    except Exception as error:
        LOG.warning("the call's outcome is still unknown", batch=batch.id, account=account.id, error=repr(error))


async def _may_repeat(database: Database, launcher: Launcher, batch: Batch, began: float) -> bool:
    """True if the call may be repeated now; else nothing is in flight, and it may be looked up."""
    if not launcher.settings.launching:
        return False
    async with database.acquire() as db, db.transaction():
        allowed = await launches.may_repeat(db, batch, launcher.terms)
    return allowed and monotonic_seconds() - began <= launcher.settings.send_within_seconds
