"""Worker deadlines: boot timeouts, idle and unresponsive workers, and instances that outlive the stop grace period."""

import asyncio
from collections.abc import Mapping, Sequence

from slipway_common.database.postgres import Connection, Database
from slipway_common.events.lifecycle import IN_FLIGHT, REGISTERED
from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain.workers import Worker, stopping
from slipway_provisioner.providers.port import Provider
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import accounts, configs, deadlines, leases, pauses, pools, workers
from slipway_provisioner.store.deadlines import Terminable

LOG = logger(__name__)


async def expire_next(database: Database, *, settings: Settings, providers: Mapping[str, Provider]) -> bool:
    """Stop workers that are past a deadline, with the outcome of the stage that failed."""
    async with database.acquire() as db:
        async with db.transaction():
            ids = await deadlines.overdue_boots(db, settings.boot_timeout_seconds)
            boots = [w for w in await workers.lock(db, ids) if w.state in IN_FLIGHT["boot"]]
            consoles = await _consoles(db, boots, providers)
            now = await pools.now(db)
            failed = [stopping(w, "did not register in time", now, _boot_failed(w), consoles[w.id]) for w in boots]
            await workers.save(db, failed)
        async with db.transaction():
            despite_demand = await deadlines.idle_despite_demand(db, settings.give_up_idle_seconds)
            locked = await workers.lock(db, sorted(despite_demand))
            # A worker that claimed and finished a task before the lock was taken has a newer `idle_since`.
            idle = [w for w in locked if w.state in REGISTERED and w.idle_since == despite_demand[w.id].since]
            consoles = await _consoles(db, idle, providers)
            now = await pools.now(db)
            given_up = [
                stopping(
                    w,
                    "idle while tasks wait",
                    now,
                    _claim_failed(w, evidence=despite_demand[w.id].throughout),
                    consoles[w.id],
                )
                for w in idle
            ]
            await workers.save(db, given_up)
        async with db.transaction():
            last_contact = await deadlines.unresponsive(db, settings.unresponsive_timeout_seconds)
            locked = await workers.lock(db, sorted(last_contact))
            unresponsive = [w for w in locked if w.state in REGISTERED and w.last_seen_at == last_contact[w.id]]
            now = await pools.now(db)
            await workers.save(db, [stopping(w, "unresponsive", now) for w in unresponsive])
        async with db.transaction():
            await pauses.resume_overdue(db)
        async with db.transaction():
            await configs.resume_overdue(db)
        async with db.transaction():
            await leases.renew(db)
    return bool(boots or idle or unresponsive)


async def _consoles(db: Connection, overdue: Sequence[Worker], providers: Mapping[str, Provider]) -> dict[str, str]:
    """Worker id → location of the instance's console output, for the person who looks into the failure."""
    by_id = {id_: await accounts.get(db, id_) for id_ in sorted({worker.account_id for worker in overdue})}
    return {
        worker.id: providers[by_id[worker.account_id].provider].console(
            by_id[worker.account_id], worker.batch_id or "", worker.instance_id or ""
        )
        for worker in overdue
    }


def _boot_failed(worker: Worker) -> Outcome:
    return Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, worker.image_revision, "boot_timeout")


def _claim_failed(worker: Worker, *, evidence: bool) -> Outcome | None:
    """Outcome of the claim stage; None if the worker has claimed before. `evidence`: tasks were pending throughout."""
    if worker.first_claimed_at is not None:
        return None
    if not evidence:
        return Outcome(Stage.CLAIM, Result.FAILED, Scope.NOTHING, "", "never_claimed")
    return Outcome(Stage.CLAIM, Result.FAILED, Scope.IMAGE, worker.image_revision, "never_claimed")


async def terminate_instances(database: Database, *, settings: Settings, providers: Mapping[str, Provider]) -> bool:
    """Terminate instances of stopping workers after the grace period. The instance reaper confirms it."""
    async with database.acquire() as db:
        taken = await deadlines.take_terminable(
            db, grace_seconds=settings.stop_grace_seconds, again_seconds=settings.reap_seconds
        )
        by_id = {instance.account_id: await accounts.get(db, instance.account_id) for instance in taken}

    async def terminate(instance: Terminable) -> None:
        account = by_id[instance.account_id]
        try:
            await providers[account.provider].terminate(account, instance.instance_id)
        except Exception as error:
            LOG.warning(
                "terminating the instance failed and will be retried", instance=instance.instance_id, error=repr(error)
            )

    await asyncio.gather(*(terminate(instance) for instance in taken))
    return False
