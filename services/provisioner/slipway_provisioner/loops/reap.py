"""Rows against the cloud's own listing, account by account: ends surplus instances, finds workers that are gone, and
those that run where no agent says so."""

from collections.abc import Mapping, Sequence
from typing import Final

from slipway_common import outbox
from slipway_common.events.alert import Alert, AlertRaised, AlertResolved
from slipway_common.lifecycle import State
from slipway_common.postgres import Pool
from slipway_common.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.reaping import Findings, judge
from slipway_provisioner.domain.workers import Worker, lost, seen_running, stopped
from slipway_provisioner.providers.port import OutcomeUnknown, Provider
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import accounts, batches, demand, leases, pools, workers

LOG = logger(__name__)
# Those that ended too, if their instance was listed: they may have ended since.
WITH_INSTANCE: Final = f"""
{workers.SELECT} WHERE account_id = $1 AND instance_id IS NOT NULL
    AND (state <> 'stopped' OR instance_id = ANY($2::text[])) ORDER BY id"""
# Whose pools take the provider's word for a boot.
BOOTED: Final = """
SELECT w.id::text FROM worker w JOIN launch_config c ON c.id = w.launch_config_id
WHERE w.account_id = $1 AND w.instance_id = ANY($2::text[]) AND w.state = 'starting'
    AND c.boot_evidence = 'provider_running' ORDER BY w.id"""
PASSED: Final = "UPDATE account SET passes = passes + 1, passed_at = slipway_clock() WHERE id = $1"
ENDED_PER_PASS: Final = 100  # a mistaken reaper may not empty an account at once


async def reap_next(pool: Pool, *, settings: Settings, providers: Mapping[str, Provider]) -> bool:
    """One pass over the account that is due; False when none is."""
    async with pool.acquire() as db:
        account = await accounts.due_for_reaping(db, settings.reap_seconds)
        if account is None:
            return False
        provider = providers[account.provider]
        now = await pools.now(db)
    try:
        matches = await provider.identity(account) == account.identity
        listed = await provider.instances(account)
    except OutcomeUnknown as error:
        LOG.warning("account cannot be listed", account=account.id, error=str(error))
        return True
    async with pool.acquire() as db:
        # States first: an instance whose batch is known by now has been bound by the time the workers are read.
        states = await batches.states(db, sorted({i.batch_id for i in listed}))
        found = await db.fetch(WITH_INSTANCE, account.id, [i.id for i in listed])
        rows = [workers.from_row(row) for row in found]
    findings = judge(
        listed,
        rows,
        states,
        listed_at=now,
        identity_matches=matches,
        settled_seconds=settings.call_timeout_seconds + settings.visibility_seconds,
    )
    await _end_surplus(account, provider, findings.surplus)
    missing = [worker for worker in rows if worker.id in set(findings.missing)]
    await _tell_doubt(pool, account, findings)
    if matches:
        await _mark_running(pool, account, [i.id for i in listed if i.running])
    gone = await _confirmed(account, provider, missing) if matches else []
    if gone:
        await mark_gone(pool, [worker.id for worker in gone], "instance is gone")
    await pool.execute(PASSED, account.id)
    return True


async def _end_surplus(account: Account, provider: Provider, surplus: Sequence[str]) -> None:
    for instance_id in list(surplus)[:ENDED_PER_PASS]:
        try:
            await provider.terminate(account, instance_id)
        except OutcomeUnknown as error:
            LOG.warning("surplus will be ended in the next pass", instance=instance_id, error=str(error))
            continue
        metrics.REAPED.labels(account.id, "surplus").inc()
        LOG.info("ended an instance nobody asked for", instance=instance_id, account=account.id)


async def _confirmed(account: Account, provider: Provider, missing: Sequence[Worker]) -> list[Worker]:
    """Those of the missing that the cloud, asked by id, says are gone. A listing alone marks nothing lost."""
    gone = []
    for worker in missing:
        try:
            if not await provider.exists(account, worker.instance_id or ""):
                gone.append(worker)
        except OutcomeUnknown as error:
            LOG.warning("cannot confirm", instance=worker.instance_id, error=str(error))
    metrics.REAPED.labels(account.id, "missing").inc(len(gone))
    return gone


async def mark_gone(pool: Pool, ids: Sequence[str], reason: str) -> None:
    """Workers whose instance is proven gone: stopped if they were told to leave, else lost. Units come back."""
    async with pool.acquire() as db, db.transaction():
        live = [w for w in await workers.lock(db, sorted(ids)) if w.state is not State.STOPPED]
        now = await pools.now(db)
        await demand.close_claims(db, [w.id for w in live], now)
        freed = await leases.release(db, live, "gone")
        changes = [(stopped if worker.state is State.STOPPING else lost)(worker, reason, now) for worker in freed]
        await workers.save(db, changes)


async def _mark_running(pool: Pool, account: Account, instance_ids: Sequence[str]) -> None:
    """Boots that the provider confirms, of pools that ask for no more. Units come back as with a registration."""
    async with pool.acquire() as db, db.transaction():
        ids = [row["id"] for row in await db.fetch(BOOTED, account.id, instance_ids)]
        booted = [worker for worker in await workers.lock(db, ids) if worker.state is State.STARTING]
        now = await pools.now(db)
        changes = [seen_running(worker, now) for worker in await leases.release(db, booted, "registered")]
        await workers.save(db, changes)
    for worker, event in changes:
        metrics.BOOT_SECONDS.labels(worker.pool_id).observe(event.boot_seconds)


async def _tell_doubt(pool: Pool, account: Account, findings: Findings) -> None:
    """Tell of a listing that cannot be believed, once while the reason stays, and of the first that can be again."""
    doubt = findings.implausible
    belief = f"cannot be believed: {doubt}" if doubt else "can be believed again"
    alert: Alert = (AlertRaised if doubt else AlertResolved)(
        dedup_key=f"provisioner/listing/{account.id}",
        subject_id=account.id,
        kind="implausible-listing",
        summary=f"the listing of {account.id} {belief}",
        effect=f"{len(findings.missing)} workers are in doubt",
        doing="marks none of them lost unless the cloud, asked by id, says that it is gone",
        command=f"slipway worker ls --state running  # those of account {account.id}",
    )
    async with pool.acquire() as db, db.transaction():
        if await accounts.doubt(db, account.id, doubt):
            await outbox.enqueue(db, [alert])
