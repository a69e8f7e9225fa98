"""Stop workers past a deadline, with the outcome of the failed stage.

Candidates are read first; a transaction begins only if there are any, since most passes find none.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from slipway_api.events.lifecycle import IN_FLIGHT, REGISTERED
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_provisioner.apply.consoles import request as request_consoles
from slipway_provisioner.domain.deadlines import DefaultDeadlines
from slipway_provisioner.domain.unresponsiveness import alert
from slipway_provisioner.domain.workers import Worker, hastened, stopping, stopping_idle
from slipway_provisioner.providers.port import Provider
from slipway_provisioner.store import accounts, deadlines, pools, workers

UNRESPONSIVE: Final = "unresponsive"
OVERDUE: Final = "did not register in time"


async def stop_overdue_boots(db: Connection, defaults: DefaultDeadlines, providers: Mapping[str, Provider]) -> bool:
    """Stop workers whose instance did not register in time; False if there are none."""
    ids = await deadlines.overdue_boots(db, defaults)
    if not ids:
        return False
    async with db.transaction():
        boots = [worker for worker in await workers.lock(db, ids) if worker.state in IN_FLIGHT["boot"]]
        consoles = await _consoles(db, boots, providers)
        now = await pools.now(db)
        outcomes: dict[str, Outcome | None] = {w.id: _boot_failed(w) for w in boots}
        await workers.save(db, [stopping(w, OVERDUE, now, outcomes[w.id], consoles[w.id]) for w in boots])
        await request_consoles(db, boots, OVERDUE, outcomes)
    return bool(boots)


async def stop_idle(db: Connection, defaults: DefaultDeadlines, providers: Mapping[str, Provider]) -> bool:
    """Stop workers that were idle while tasks waited; False if there are none."""
    despite_demand = await deadlines.idle_despite_demand(db, defaults)
    if not despite_demand:
        return False
    async with db.transaction():
        locked = await workers.lock(db, sorted(despite_demand))
        # A worker that claimed and finished a task before the lock was taken has a newer `idle_since`.
        idle = [w for w in locked if w.state in REGISTERED and w.idle_since == despite_demand[w.id].since]
        consoles = await _consoles(db, idle, providers)
        now, reason = await pools.now(db), "idle while tasks wait"
        outcomes = {w.id: _claim_failed(w, evidence=despite_demand[w.id].throughout) for w in idle}
        await workers.save(db, [stopping_idle(w, reason, now, outcomes[w.id], consoles[w.id]) for w in idle])
    return bool(idle)


async def stop_unresponsive(db: Connection, defaults: DefaultDeadlines) -> bool:
    """Stop unresponsive workers, except in accounts with mass unresponsiveness; False if there are none."""
    account_ids = await deadlines.unresponsive_accounts(db, defaults)
    if not account_ids:
        return False
    async with db.transaction():
        by_account = await deadlines.unresponsiveness(db, defaults, account_ids)
        for each in by_account:
            if each.is_mass != each.kept and await accounts.record_mass_unresponsive(
                db, each.account_id, mass_unresponsive=each.is_mass
            ):
                await outbox.enqueue(db, [alert(each)])
        plausible = [each.account_id for each in by_account if not each.is_mass]
        last_contact = await deadlines.unresponsive(db, defaults, plausible)
        return await _stop_unresponsive(db, last_contact, UNRESPONSIVE) > 0


async def stop_confirmed(tx: Connection, account_id: str, defaults: DefaultDeadlines, reason: str) -> int:
    """Stop unresponsive workers of an account that a person has confirmed to be dead; returns their number."""
    return await _stop_unresponsive(tx, await deadlines.unresponsive(tx, defaults, [account_id]), reason)


async def _stop_unresponsive(tx: Connection, last_contact: Mapping[str, datetime], reason: str) -> int:
    """Stop those that have had no contact since; returns their number."""
    locked = await workers.lock(tx, sorted(last_contact))
    unresponsive = [w for w in locked if w.last_seen_at == last_contact[w.id]]
    if not unresponsive:
        return 0
    now = await pools.now(tx)
    await workers.save(tx, [stopping(w, reason, now) for w in unresponsive if w.state in REGISTERED])
    await workers.save_without_events(tx, [hastened(w, reason, now) for w in unresponsive if w.is_finishing])
    return len(unresponsive)


async def _consoles(tx: Connection, overdue: Sequence[Worker], providers: Mapping[str, Provider]) -> dict[str, str]:
    """Worker id → location of the instance's console output, shown with the failure."""
    by_id = {id_: await accounts.get(tx, id_) for id_ in sorted({worker.account_id for worker in overdue})}
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
