"""Terminations of instances as their provider accepts or refuses them: stuck workers, accounts that refuse, and the one
alert of each account. An account is locked before its workers."""

from collections.abc import Collection, Mapping

from slipway_api.events.lifecycle import ASKED_TO_STOP
from slipway_common.database.postgres import Connection, Database
from slipway_common.messaging import outbox
from slipway_provisioner.domain.cloud import Protected
from slipway_provisioner.domain.refused_terminations import alert
from slipway_provisioner.domain.workers import termination_accepted, termination_refused
from slipway_provisioner.store import accounts, marks, pools, reachability, terminations, workers


async def record_refused(tx: Connection, account_id: str, instances: Mapping[str, Protected]) -> None:
    """Store instances that their provider refuses to terminate, and raise the alert if any of them is new."""
    if (now := await accounts.protect(tx, account_id, instances)) is not None:
        await _publish(tx, account_id, now)


async def count_refusals(
    tx: Connection, account_id: str, worker_ids: Collection[str], stuck_after_seconds: float
) -> None:
    """Count definite refusals to terminate the instances of workers, each of which was asked for alone. The alert is
    raised again when one of them becomes stuck."""
    known = await accounts.protected(tx, account_id)
    locked = [worker for worker in await workers.lock(tx, sorted(worker_ids)) if worker.state in ASKED_TO_STOP]
    now = await pools.now(tx)
    after = [termination_refused(worker, now, stuck_after_seconds=stuck_after_seconds) for worker in locked]
    await workers.save_without_events(tx, after)
    stuck = {new.pool_id for old, new in zip(locked, after, strict=True) if new.stuck_at and not old.stuck_at}
    if stuck:
        await marks.dirty(tx, stuck, reason="stuck worker")
        await _publish(tx, account_id, known)


async def forget_refusals(tx: Connection, worker_ids: Collection[str]) -> None:
    """Forget the refusals of workers whose termination was accepted."""
    locked = await workers.lock(tx, sorted(worker_ids))
    await workers.save_without_events(tx, [termination_accepted(worker) for worker in locked])
    await marks.dirty(tx, {worker.pool_id for worker in locked if worker.stuck_at}, reason="stuck worker")


async def forget_gone(tx: Connection, account_id: str, instance_ids: Collection[str]) -> None:
    """Forget those of these instances that their provider has refused to terminate, since they are gone, and resolve
    the alert once none is left."""
    if (left := await accounts.unprotect(tx, account_id, sorted(instance_ids))) is not None:
        await _publish(tx, account_id, left)


async def settle(database: Database, hour_seconds: float) -> None:
    """Decide which accounts refuse so many terminations that nothing is launched there."""
    async with database.acquire() as db:
        for each in await terminations.refusing(db, hour_seconds):
            if each.refuses == each.refusing:
                continue
            async with db.transaction():
                if await terminations.record_refusing(db, each.account_id, refusing=each.refuses):
                    await reachability.mark(db, each.account_id)
                    if known := await accounts.protected(db, each.account_id):
                        await _publish(db, each.account_id, known)


async def _publish(tx: Connection, account_id: str, instances: Mapping[str, Protected]) -> None:
    """Publish the alert on the instances that an account refuses to terminate, or its resolution."""
    stuck = await terminations.stuck(tx, account_id)
    refusing = await terminations.is_refusing(tx, account_id)
    await outbox.enqueue(tx, [alert(account_id, instances, stuck, refusing=refusing)])
