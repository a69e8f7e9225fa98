"""Resolves provider calls of unknown outcome: repeats them with the same token if the provider honours it, else looks
up their instances by tag. Polls those that their provider has accepted.

A repeat may be the call that takes effect, so it is made only where a call may start now: not after a pause, a freeze,
a drain, a launch stop or the end of its lease. Then the call is looked up as well.

No new call is made for an intent before the old call's outcome is certain: the last call's deadline and the visibility
delay, after which the provider must list its instances, have both passed. The deadline of an accepted call is its own;
its intents wait until a poll or, after the deadline, a look-up resolves it.
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
from slipway_provisioner.loops.launch import REJECTED_BEFORE_TOKEN_CHECK, Launcher
from slipway_provisioner.providers.port import OutcomeUnknown, PutBack, Refused
from slipway_provisioner.store import accounts, batches
from slipway_provisioner.store.batches import Batch, Overdue

LOG = logger(__name__)


async def resolve_next(database: Database, *, launcher: Launcher) -> bool:
    """Try to resolve all overdue batches concurrently, so that an account that hangs does not block others."""
    began = monotonic_seconds()
    async with database.acquire() as db:
        taken = await batches.take_overdue(db, wait_seconds=launcher.settings.visibility_seconds)
        by_id = {overdue.batch.account_id: await accounts.get(db, overdue.batch.account_id) for overdue in taken}
    await asyncio.gather(*(_resolve(database, launcher, each, by_id[each.batch.account_id], began) for each in taken))
    return bool(taken)


async def poll_next(database: Database, *, launcher: Launcher) -> bool:
    """Poll the accepted batches that are due; False if none is."""
    began = monotonic_seconds()
    async with database.acquire() as db:
        taken = await batches.take_pollable(db, poll_seconds=launcher.settings.poll_seconds)
        by_id = {batch.account_id: await accounts.get(db, batch.account_id) for batch in taken}
    await asyncio.gather(*(_poll(database, launcher, batch, by_id[batch.account_id], began) for batch in taken))
    return bool(taken)


async def _resolve(database: Database, launcher: Launcher, overdue: Overdue, account: Account, began: float) -> None:
    """Resolve one batch, in an attempt that `began` when its deadline was set. Never raises: a failure is retried
    later."""
    batch, provider = overdue.batch, launcher.providers[account.provider]
    try:
        if (
            batch.repeatable
            and await _may_repeat(database, launcher, batch, began)
            and await launcher.call(database, batch, account, began=began, repeated=True)
        ):
            return
        if not overdue.listed:
            return  # its instances may not be listed yet; a later attempt looks them up
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
            await contact.failed(database, account.id, launcher.settings, error, began=began)
    except Exception as error:
        LOG.warning("the call's outcome is still unknown", batch=batch.id, account=account.id, error=repr(error))


async def _poll(database: Database, launcher: Launcher, batch: Batch, account: Account, began: float) -> None:
    """Poll one accepted batch, and record its outcome once it is certain. Never raises: it is polled again later."""
    provider = launcher.providers[account.provider]
    try:
        try:
            async with asyncio.timeout(batch.timeout_seconds - (monotonic_seconds() - began)):
                found = await provider.poll(account, launcher.request(batch), batch.handle)
        except Refused as refused:
            if refused.outcome.scope in REJECTED_BEFORE_TOKEN_CHECK and not refused.concludes:
                LOG.info(
                    "polling the accepted call was refused", batch=batch.id, account=account.id, error=str(refused)
                )
                if refused.throttled:
                    await contact.throttled(database, account.id, launcher.settings)
            else:
                metrics.CALLS.labels(account.id, "failed", refused.outcome.scope.value).inc()
                async with database.acquire() as db, db.transaction():
                    await launches.record_refusal(db, batch, refused)
        except PutBack as error:
            metrics.CALLS.labels(account.id, "put back", "").inc()
            await launcher.put_back(database, batch, str(error))
        except (OutcomeUnknown, TimeoutError) as error:
            LOG.info("polling the accepted call failed", batch=batch.id, account=account.id, error=str(error))
            await contact.failed(database, account.id, launcher.settings, error, began=began)
        else:
            if found is not None:
                await launcher.record(database, batch, [*found])
            else:
                await contact.answered(database, account.id)
        async with database.acquire() as db:
            await batches.polled(db, batch.id, poll_seconds=launcher.settings.poll_seconds)
    except Exception as error:
        LOG.warning("the accepted call is still unresolved", batch=batch.id, account=account.id, error=repr(error))


async def _may_repeat(database: Database, launcher: Launcher, batch: Batch, began: float) -> bool:
    """True if the call may be repeated now; else nothing is in flight, and it may be looked up."""
    if not launcher.settings.launching:
        return False
    async with database.acquire() as db, db.transaction():
        allowed = await launches.may_repeat(db, batch, launcher.terms)
    return allowed and monotonic_seconds() - began <= launcher.settings.send_within_seconds
