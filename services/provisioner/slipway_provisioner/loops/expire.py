"""Deadlines of workers: boots that took too long, workers that idle in vain, leave-takings that need help."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_common.lifecycle import State
from slipway_common.postgres import Connection, Pool
from slipway_common.telemetry import logger
from slipway_provisioner.domain.workers import Worker, stopping
from slipway_provisioner.providers.port import Provider
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import accounts, configs, leases, pauses, pools, workers

LOG = logger(__name__)

OVERDUE_BOOTS: Final = """
SELECT id::text FROM worker WHERE state = 'starting' AND launched_at < slipway_clock() - $1 * interval '1 s'
ORDER BY id LIMIT 200"""
# Idle although a source of its pool has had tasks pending for as long; `throughout`: for all of its idle time. Where
# workers tell nothing of their claims it may be busy, unless no source has seen a claimed task in that time.
IDLE_IN_VAIN: Final = """
SELECT w.id::text, w.idle_since, bool_or(d.pending_since <= w.idle_since) AS throughout
FROM worker w JOIN launch_config c ON c.id = w.launch_config_id JOIN demand d ON d.pool_id = w.pool_id
WHERE w.state = 'running' AND w.idle_since < slipway_clock() - $1 * interval '1 s'
    AND d.pending_since < slipway_clock() - $1 * interval '1 s'
    AND d.observed_at + d.valid_for_seconds * interval '1 s' > slipway_clock()
    AND (c.claim_evidence = 'hook' OR (c.claim_evidence = 'queue' AND NOT EXISTS (
        SELECT FROM demand q WHERE q.pool_id = w.pool_id AND q.claimed_seen_at >= w.idle_since)))
GROUP BY w.id ORDER BY w.id LIMIT 200"""
# Where the provider's word is enough nobody may be there to speak.
UNHEARD: Final = """
SELECT w.id::text, w.heard_at FROM worker w JOIN launch_config c ON c.id = w.launch_config_id
WHERE w.state = 'running' AND w.heard_at < slipway_clock() - $1 * interval '1 s' AND c.boot_evidence = 'register'
ORDER BY w.id LIMIT 200"""
# One that never registered cannot hear us; the others may end by themselves first. Whoever is taken goes to the end of
# the queue, whatever becomes of the call: an account that fails holds up no other.
TAKE: Final = """
UPDATE worker SET termination_asked_at = slipway_clock() WHERE id IN (
    SELECT id FROM worker WHERE state = 'stopping' AND instance_id IS NOT NULL
        AND (registered_at IS NULL OR stopping_at < slipway_clock() - $1 * interval '1 s')
        AND (termination_asked_at IS NULL OR termination_asked_at < slipway_clock() - $2 * interval '1 s')
    ORDER BY termination_asked_at NULLS FIRST, id LIMIT 50 FOR UPDATE SKIP LOCKED)
RETURNING account_id, instance_id"""


async def expire_next(pool: Pool, *, settings: Settings, providers: Mapping[str, Provider]) -> bool:
    """Tell overdue workers to leave, with the outcome that says what failed."""
    async with pool.acquire() as db:
        async with db.transaction():
            ids = [row["id"] for row in await db.fetch(OVERDUE_BOOTS, settings.boot_timeout_seconds)]
            boots = [w for w in await workers.lock(db, ids) if w.state is State.STARTING]
            told = await _consoles(db, boots, providers)
            now = await pools.now(db)
            failed = [stopping(w, "did not register in time", now, _boot_failed(w), told[w.id]) for w in boots]
            await workers.save(db, failed)
        async with db.transaction():
            vain = {row["id"]: row for row in await db.fetch(IDLE_IN_VAIN, settings.give_up_idle_seconds)}
            locked = await workers.lock(db, sorted(vain))
            # Whoever claimed a task before the lock, and is idle again, is idle since then.
            idle = [w for w in locked if w.state is State.RUNNING and w.idle_since == vain[w.id]["idle_since"]]
            told = await _consoles(db, idle, providers)
            now = await pools.now(db)
            given_up = [
                stopping(
                    w, "idle while tasks wait", now, _claim_failed(w, evidence=vain[w.id]["throughout"]), told[w.id]
                )
                for w in idle
            ]
            await workers.save(db, given_up)
        async with db.transaction():
            silent = {row["id"]: row["heard_at"] for row in await db.fetch(UNHEARD, settings.heard_timeout_seconds)}
            locked = await workers.lock(db, sorted(silent))
            unheard = [w for w in locked if w.state is State.RUNNING and w.heard_at == silent[w.id]]
            now = await pools.now(db)
            await workers.save(db, [stopping(w, "not heard from", now) for w in unheard])
        async with db.transaction():
            await pauses.resume_overdue(db)
        async with db.transaction():
            await configs.resume_overdue(db)
        async with db.transaction():
            await leases.renew(db)
    return bool(boots or idle or unheard)


async def _consoles(db: Connection, overdue: Sequence[Worker], providers: Mapping[str, Provider]) -> dict[str, str]:
    """Worker id → where to read what its machine has printed; a person will ask why it came to nothing."""
    owners = {id_: await accounts.get(db, id_) for id_ in sorted({worker.account_id for worker in overdue})}
    return {
        worker.id: providers[owners[worker.account_id].provider].console(
            owners[worker.account_id], worker.batch_id or "", worker.instance_id or ""
        )
        for worker in overdue
    }


def _boot_failed(worker: Worker) -> Outcome:
    return Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, worker.image_revision, "boot_timeout")


def _claim_failed(worker: Worker, *, evidence: bool) -> Outcome | None:
    """A worker that never claimed ends its claim stage; it is evidence only if there was work all the while."""
    if worker.first_claimed_at is not None:
        return None
    if not evidence:
        return Outcome(Stage.CLAIM, Result.FAILED, Scope.NOTHING, "", "never_claimed")
    return Outcome(Stage.CLAIM, Result.FAILED, Scope.IMAGE, worker.image_revision, "never_claimed")


async def end_instances(pool: Pool, *, settings: Settings, providers: Mapping[str, Provider]) -> bool:
    """End the instances of workers that leave and do not end by themselves. The reaper proves them gone."""
    async with pool.acquire() as db:
        rows = await db.fetch(TAKE, settings.stop_grace_seconds, settings.reap_seconds)
        owners = {row["account_id"]: await accounts.get(db, row["account_id"]) for row in rows}

    async def end(row: Any) -> None:
        account = owners[row["account_id"]]
        try:
            await providers[account.provider].terminate(account, row["instance_id"])
        except Exception as error:
            LOG.warning("terminate will be tried again", instance=row["instance_id"], error=repr(error))

    await asyncio.gather(*(end(row) for row in rows))
    return False
