"""Instance reaper: compares worker rows with each account's listing. Terminates orphan instances or keeps them for
a person, finds missing instances, and marks workers as running where the provider's listing is the boot evidence.

Accounts are listed side by side, so that a round lasts as long as the slowest of them. Pages and rows are streamed;
nothing is done before a listing is complete, since the limits on what a pass may do are shares of the whole.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_identity
from slipway_api.events.lifecycle import IN_FLIGHT
from slipway_api.events.worker import Outcome
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database import outage
from slipway_common.database.postgres import Database, is_infrastructure
from slipway_common.messaging import outbox
from slipway_common.observability.telemetry import LOOP_FAILURES, logger
from slipway_provisioner import metrics
from slipway_provisioner.apply import reaping, refused_terminations
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.reaping import Bound, Findings, Listing
from slipway_provisioner.loops import contact
from slipway_provisioner.providers.port import OutcomeUnknown, Provider, Refused, TerminationRefused
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import accounts, batches, deadlines, instances, orphans, pools, reachability, restores

LOG = logger(__name__)
LOOP: Final = "reap"
TERMINATIONS_PER_PASS: Final = 100  # bounds the damage that a bug could do to an account
CHUNK: Final = 200  # workers that are locked at once


class Reaper:
    """Passes over accounts, up to `accounts_listed_at_once` of them side by side in this process."""

    def __init__(self, settings: Settings, providers: Mapping[str, Provider]) -> None:
        self.settings = settings
        self.providers = providers
        self.passes: set[asyncio.Task[None]] = set()

    async def reap_due(self, database: Database) -> bool:
        """Begin a pass over an account that is due; False if none is begun. After it the next ones are passed over."""
        if len(self.passes) >= self.settings.accounts_listed_at_once:
            return False
        account = await _due(database, self.settings)
        if account is None:
            return False
        task = asyncio.create_task(self._pass_over(database, account))
        self.passes.add(task)
        task.add_done_callback(self.passes.discard)
        return True

    async def _pass_over(self, database: Database, account: Account | None) -> None:
        """Pass over accounts while one is due. Never raises: a pass that fails is repeated when it is due again."""
        try:
            while account is not None:
                await pass_over(database, account, settings=self.settings, providers=self.providers)
                account = await _due(database, self.settings)
        except Exception as error:
            LOOP_FAILURES.labels(LOOP).inc()
            if is_infrastructure(error):
                outage.warn(LOG, "the pass over an account failed", error)
            else:
                LOG.exception("the pass over an account failed")


async def reap_next(database: Database, *, settings: Settings, providers: Mapping[str, Provider]) -> bool:
    """Run one pass over an account that is due; False if none is."""
    account = await _due(database, settings)
    if account is not None:
        await pass_over(database, account, settings=settings, providers=providers)
    return account is not None


async def _due(database: Database, settings: Settings) -> Account | None:
    async with database.acquire() as db:
        return await accounts.due_for_reaping(db, settings.reap_seconds)


async def pass_over(
    database: Database, account: Account, *, settings: Settings, providers: Mapping[str, Provider]
) -> None:
    """Run one pass over an account."""
    provider = providers[account.provider]
    async with database.acquire() as db:
        own = provider.visibility_seconds(account)
        settled_seconds = account.request_timeout_seconds or settings.call_timeout_seconds
        settled_seconds += settings.visibility_seconds if own is None else own
        listed_at = await deadlines.listed_at(db, settled_seconds=settled_seconds)
        began_at = await pools.now(db)
        doubtful = await reachability.unanswered_since(db, account.id) is not None
    if doubtful and not await contact.probe(database, provider, account, settings):
        return  # a listing would only take longer to fail
    began = monotonic_seconds()
    try:
        matches = await provider.identity(account) == account.identity
        listing = Listing(listed_at=listed_at, settled_seconds=settled_seconds, identity_matches=matches)
        await _list(database, account, provider, listing)
    except OutcomeUnknown as error:
        LOG.warning("listing the account failed", account=account.id, error=str(error))
        await contact.failed(database, account.id, settings, error, began=began)
        return
    if matches:
        await contact.answered(database, account.id)
    async with database.acquire() as db:
        # Before the workers: those that a confirmation adopts are read if it has been given.
        unconfirmed = await restores.unconfirmed(db)
        asked = await orphans.of_account(db, account.id)
        # Batches before workers: the instances of a batch that is known here are bound when the workers are read.
        states = await batches.states(db, sorted({instance.batch_id for instance in listing.unowned}))
        listing.disown(await instances.owners(db, account.id, [instance.id for instance in listing.unowned]))
    async for workers in instances.bound(database, account.id):
        listing.add_workers(workers)
    findings = listing.findings(states, asked=asked, unconfirmed=unconfirmed)
    present = listing.present
    if matches:
        absent = [orphan.instance_id for orphan in asked if orphan.instance_id not in present]
        ended = set(await provider.gone(account, dict.fromkeys(absent)))
        unlisted = [id_ for id_ in absent if id_ not in ended]
        async with database.acquire() as db, db.transaction():
            await reaping.keep(db, account.id, findings, unlisted=unlisted)
            protected = await accounts.protected(db, account.id)
            await refused_terminations.forget_gone(db, account.id, protected.keys() - present)
    if not unconfirmed:
        await _terminate_orphans(database, account, provider, findings.orphans)
        await _report_listing_problem(database, account, findings)
        if matches:
            await _record_running(database, account, provider, listing.booted)
            await _record_gone(database, account, provider, findings.missing)
            await _clean_up(account, provider)
    async with database.acquire() as db:
        if not findings.implausible:
            await reachability.forget(db, account.id, instance_ids=listing.present, batch_ids=listing.tags)
        counted_at = began_at if matches else None
        await accounts.count_pass(db, account.id, listed_at=counted_at, settled_seconds=settled_seconds)


async def _list(database: Database, account: Account, provider: Provider, listing: Listing) -> None:
    """List an account, page by page. Raises OutcomeUnknown: half of a listing proves nothing."""
    async for page in provider.pages(account):
        async with database.acquire() as db:
            if listing.present:
                await accounts.pass_lasts(db, account.id)
            owners = await instances.owners(db, account.id, [instance.id for instance in page])
        listing.add_page(page, owners)


async def _record_running(database: Database, account: Account, provider: Provider, booted: Mapping[str, str]) -> None:
    """Record the boots of workers that do not register, given with their instances: those whose instances have passed
    the status checks of their provider."""
    worker_ids = list(booted)
    for start in range(0, len(worker_ids), CHUNK):
        chunk = worker_ids[start : start + CHUNK]
        ready = set(await provider.ready(account, [booted[worker_id] for worker_id in chunk]))
        async with database.acquire() as db, db.transaction():
            events = await reaping.record_running(db, [worker for worker in chunk if booted[worker] in ready])
        for event in events:
            metrics.BOOT_SECONDS.labels(event.pool_id).observe(event.boot_seconds)


async def _record_gone(database: Database, account: Account, provider: Provider, missing: Sequence[Bound]) -> None:
    for start in range(0, len(missing), CHUNK):
        if gone := await _confirmed(account, provider, missing[start : start + CHUNK]):
            endings = await _endings(database, account, provider, gone)
            async with database.acquire() as db, db.transaction():
                await reaping.record_gone(db, [worker.id for worker in gone], "instance is gone", endings)


async def _terminate_orphans(database: Database, account: Account, provider: Provider, orphans: Sequence[str]) -> None:
    ended = list(orphans)[:TERMINATIONS_PER_PASS]
    if not ended:
        return
    try:
        await provider.terminate(account, ended)
    except OutcomeUnknown as error:
        LOG.warning(
            "terminating orphan instances failed; the next pass retries those that are still listed",
            account=account.id,
            instances=ended,
            error=str(error),
        )
        if isinstance(error, TerminationRefused):
            async with database.acquire() as db, db.transaction():
                await refused_terminations.record_refused(db, account.id, error.instances)
        return
    metrics.REAPED.labels(account.id, "orphan").inc(len(ended))
    LOG.info("terminated orphan instances", account=account.id, instances=ended)


async def _confirmed(account: Account, provider: Provider, missing: Sequence[Bound]) -> list[Bound]:
    """Missing workers whose instance is gone, as the provider confirms by id. A listing alone is no proof."""
    ended = set(await provider.gone(account, {w.instance_id: w.launched_at for w in missing}))
    gone = [w for w in missing if w.instance_id in ended]
    metrics.REAPED.labels(account.id, "missing").inc(len(gone))
    return gone


async def _endings(
    database: Database, account: Account, provider: Provider, gone: Sequence[Bound]
) -> dict[str, Outcome]:
    """Outcomes of instances that died while they booted, by worker, as far as the provider knows the reason."""
    found = {}
    for worker in gone:
        if worker.state not in IN_FLIGHT["boot"] or worker.batch_id is None:
            continue
        async with database.acquire() as db:
            batch = await batches.get(db, worker.batch_id)
        if batch is None:
            continue
        try:
            outcome = await provider.ending(account, batch.body, worker.instance_id)
        except OutcomeUnknown as error:
            LOG.info("the end of an instance is unknown", instance=worker.instance_id, error=str(error))
            continue
        if outcome is not None:
            found[worker.id] = outcome
    return found


async def _clean_up(account: Account, provider: Provider) -> None:
    try:
        await provider.clean_up(account)
    except (OutcomeUnknown, Refused) as error:
        LOG.warning("cleaning up the account failed; the next pass tries again", account=account.id, error=str(error))


async def _report_listing_problem(database: Database, account: Account, findings: Findings) -> None:
    """Raise an alert when a listing is implausible, once per reason, and resolve it with the next plausible one."""
    problem = findings.implausible
    verdict = f"is implausible: {problem}" if problem else "is plausible again"
    missing = len(findings.missing)
    alert: Alert = (AlertRaised if problem else AlertResolved)(
        **alert_identity("provisioner", "implausible-listing", "account", account.id),
        summary=f"the listing of {account.id} {verdict}",
        effect=f"{missing} {'worker is' if missing == 1 else 'workers are'} not listed",
        doing="looks up each missing instance by id and marks its worker lost only if the provider confirms it is gone",
        command=f"slipway worker ls --state running  # workers of account {account.id}",
        severity="notice",
    )
    async with database.acquire() as db, db.transaction():
        if await accounts.record_listing_problem(db, account.id, problem):
            await outbox.enqueue(db, [alert])
