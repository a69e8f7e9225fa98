"""Record of the accounts that answer, to which every kind of call but a termination reports."""

import asyncio

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.apply import reachability
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.port import OutcomeUnknown, Provider, Refused
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import throttling
from slipway_provisioner.store.reachability import unanswered_since

LOG = logger(__name__)


async def probe(database: Database, provider: Provider, account: Account, settings: Settings) -> bool:
    """Make a cheap call in an account that has left a call unanswered; True if it answers."""
    began = monotonic_seconds()
    try:
        async with asyncio.timeout(account.request_timeout_seconds or settings.call_timeout_seconds):
            await provider.health(account)
    except (OutcomeUnknown, Refused, TimeoutError) as error:
        LOG.warning("the account does not answer", account=account.id, error=str(error))
        await failed(database, account.id, settings, error, began=began)
        return False
    return True


async def answered(database: Database, account_id: str) -> None:
    """Record an answer of an account, if a call was left unanswered since the last one: a transaction for nothing would
    follow each call."""
    async with database.acquire() as db:
        if await unanswered_since(db, account_id) is None:
            return
        async with db.transaction():
            await reachability.answered(db, account_id)


async def throttled(database: Database, account_id: str, settings: Settings) -> None:
    """Record that an account has throttled a call, which is an answer."""
    metrics.THROTTLED.labels(account_id).inc()
    async with database.acquire() as db, db.transaction():
        await throttling.record(db, account_id, within_seconds=settings.throttled_after_seconds)
        await reachability.answered(db, account_id)


async def failed(
    database: Database, account_id: str, settings: Settings, error: BaseException, *, began: float
) -> None:
    """Record that a call that `began` then was not answered, or that it was throttled, which is an answer."""
    if isinstance(error, OutcomeUnknown) and error.throttled:
        await throttled(database, account_id, settings)
        return
    async with database.acquire() as db, db.transaction():
        await reachability.unanswered(
            db,
            account_id,
            after_seconds=monotonic_seconds() - began,
            unreachable_seconds=settings.unreachable_after_seconds,
        )
