"""Accounts that stop answering, answer again, or are retired. An account is locked before its batches and workers."""

from slipway_api.events.lifecycle import ASKED_TO_STOP, LIVE
from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_provisioner.apply import refused_terminations
from slipway_provisioner.apply.leases import release
from slipway_provisioner.domain.reachability import (
    UNREACHABLE,
    given_up,
    machine,
    raised,
    resolved,
    settled,
    waits_for_its_call,
)
from slipway_provisioner.store import accounts, batches, demand, pools, reachability, workers
from slipway_provisioner.store.batches import KnownOutcome


class UnknownAccount(Exception):
    """No account has this id; the text is the id."""


class StillReachable(Exception):
    """The account answers, so that its machines can be terminated; the text is its id."""


class NotRetired(Exception):
    """The account is not retired; the text is its id."""


async def answered(tx: Connection, account_id: str) -> None:
    """Record that an account has answered. What it left open is resolved as for any other."""
    if await reachability.answered(tx, account_id):
        await reachability.set_unreachable(tx, account_id, unreachable=False)
        await outbox.enqueue(tx, [resolved(account_id, f"account {account_id} answers again")])


async def unanswered(tx: Connection, account_id: str, *, after_seconds: float, unreachable_seconds: float) -> None:
    """Record that a call was not answered within `after_seconds`. If the account has not answered for
    `unreachable_seconds`, it is unreachable: it launches nothing, and the intents of its unknown calls are given up."""
    newly = await reachability.unanswered(
        tx, account_id, after_seconds=after_seconds, unreachable_seconds=unreachable_seconds
    )
    if newly:
        await reachability.set_unreachable(tx, account_id, unreachable=True)
    standing = await reachability.lock(tx, account_id)
    if standing is None or not standing["unreachable"]:
        return
    open_calls = await reachability.lock_open_calls(tx, account_id)
    now = await pools.now(tx)
    for batch_id in open_calls:
        waiting = [worker for worker in await workers.lock_batch(tx, batch_id) if waits_for_its_call(worker)]
        await workers.save(tx, [given_up(worker, now) for worker in waiting])
    if newly:
        await outbox.enqueue(tx, [raised(account_id, calls=len(open_calls), now=now)])


async def retire(tx: Connection, account_id: str, *, reason: str, by: str) -> bool:
    """Retire an account that does not answer: no call is made in it any more, and what it left open is settled. True if
    it was retired already: then nothing changes.

    Raises UnknownAccount and StillReachable.
    """
    standing = await reachability.lock(tx, account_id)
    if standing is None:
        raise UnknownAccount(account_id)
    if standing["retired"]:
        return True
    if not standing["unreachable"]:
        raise StillReachable(account_id)
    await reachability.set_retired(tx, account_id, retired=True)
    await audit.record_command(tx, AuditedKind.ACCOUNT, account_id, "retire", by=by, retired=True, reason=reason)
    await outbox.enqueue(tx, [resolved(account_id, f"account {account_id} is retired: {reason}")])
    await refused_terminations.forget_gone(tx, account_id, [*await accounts.protected(tx, account_id)])
    return False


async def reinstate(tx: Connection, account_id: str, *, reason: str, by: str) -> None:
    """Resume calls to a retired account. Once it answers, the instance reaper terminates what was left there. If it
    does not answer, the alert is raised again.

    Raises UnknownAccount and NotRetired.
    """
    standing = await reachability.lock(tx, account_id)
    if standing is None:
        raise UnknownAccount(account_id)
    if not standing["retired"]:
        raise NotRetired(account_id)
    await reachability.set_retired(tx, account_id, retired=False)
    await audit.record_command(tx, AuditedKind.ACCOUNT, account_id, "reinstate", by=by, retired=False, reason=reason)
    if standing["unreachable"]:
        await outbox.enqueue(tx, [raised(account_id, calls=0, now=await pools.now(tx))])


async def settle_calls(tx: Connection) -> bool:
    """Settle some unknown calls of retired accounts; False if there are none."""
    calls = await reachability.lock_retired_calls(tx)
    if not calls:
        return False
    now = await pools.now(tx)
    for batch_id in calls:
        intents = await workers.lock_batch(tx, batch_id)
        left = [worker for worker in intents if worker.instance_id is None and worker.state in LIVE]
        await reachability.record(tx, [machine(worker) for worker in left])
        changes = [settled(worker, now) for worker in await release(tx, left, UNREACHABLE)]
        await workers.save(tx, changes)
        await batches.known(tx, [KnownOutcome(batch_id, UNREACHABLE, charged=len(intents), unproven=len(left))])
    return True


async def settle_workers(db: Connection, grace_seconds: float) -> bool:
    """Settle some workers of retired accounts that were asked to stop; False, without a transaction, if there are
    none."""
    ids = await reachability.retired_workers(db, grace_seconds)
    if not ids:
        return False
    async with db.transaction():
        leaving = [w for w in await workers.lock(db, ids) if w.state in ASKED_TO_STOP and w.instance_id is not None]
        now = await pools.now(db)
        await demand.close_claims(db, [worker.id for worker in leaving], now)
        await reachability.record(db, [machine(worker) for worker in leaving])
        await workers.save(db, [settled(worker, now) for worker in await release(db, leaving, UNREACHABLE)])
    return bool(leaving)
