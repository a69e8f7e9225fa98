"""Worker deadlines: boot timeouts, idle and unresponsive workers, and instances that outlive the stop grace period."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from slipway_common.database.postgres import Connection, Database
from slipway_common.events.lifecycle import State
from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain.workers import Worker, stopping
from slipway_provisioner.providers.port import Provider
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import accounts, configs, leases, pauses, pools, workers

LOG = logger(__name__)

OVERDUE_BOOTS: Final = """
SELECT id::text FROM worker WHERE state = 'starting' AND launched_at < slipway_clock() - $1 * interval '1 s'
ORDER BY id LIMIT 200"""
# Idle although a source of its pool has had pending tasks for as long; `throughout`: during all of its idle time. Where
# claims are not reported by a hook, the worker may be busy unless no source has seen a claimed task in that time.
IDLE_DESPITE_DEMAND: Final = """
SELECT w.id::text, w.idle_since, bool_or(d.pending_since <= w.idle_since) AS throughout
FROM worker w JOIN launch_config c ON c.id = w.launch_config_id JOIN demand d ON d.pool_id = w.pool_id
WHERE w.state = 'running' AND w.idle_since < slipway_clock() - $1 * interval '1 s'
    AND d.pending_since < slipway_clock() - $1 * interval '1 s'
    AND d.observed_at + d.valid_for_seconds * interval '1 s' > slipway_clock()
    AND (c.claim_evidence = 'hook' OR (c.claim_evidence = 'queue' AND NOT EXISTS (
        SELECT FROM demand q WHERE q.pool_id = w.pool_id AND q.claimed_seen_at >= w.idle_since)))
GROUP BY w.id ORDER BY w.id LIMIT 200"""
# Only pools whose boot evidence is `register` have an agent that sends heartbeats.
UNRESPONSIVE: Final = """
SELECT w.id::text, w.last_seen_at FROM worker w JOIN launch_config c ON c.id = w.launch_config_id
WHERE w.state = 'running' AND w.last_seen_at < slipway_clock() - $1 * interval '1 s' AND c.boot_evidence = 'register'
ORDER BY w.id LIMIT 200"""
# A worker that never registered cannot be asked to stop; the others get the grace period to stop by themselves. A row
# that is taken moves to the end of the queue whatever the call's result, so a failing account does not block others.
TAKE_STOPPING: Final = """
UPDATE worker SET termination_requested_at = slipway_clock() WHERE id IN (
    SELECT id FROM worker WHERE state = 'stopping' AND instance_id IS NOT NULL
        AND (registered_at IS NULL OR stopping_at < slipway_clock() - $1 * interval '1 s')
        AND (termination_requested_at IS NULL OR termination_requested_at < slipway_clock() - $2 * interval '1 s')
    ORDER BY termination_requested_at NULLS FIRST, id LIMIT 50 FOR UPDATE SKIP LOCKED)
RETURNING account_id, instance_id"""


async def expire_next(database: Database, *, settings: Settings, providers: Mapping[str, Provider]) -> bool:
    """Stop workers that are past a deadline, with the outcome of the stage that failed."""
    async with database.acquire() as db:
        async with db.transaction():
            ids = [row["id"] for row in await db.fetch(OVERDUE_BOOTS, settings.boot_timeout_seconds)]
            boots = [w for w in await workers.lock(db, ids) if w.state is State.STARTING]
            consoles = await _consoles(db, boots, providers)
            now = await pools.now(db)
            failed = [stopping(w, "did not register in time", now, _boot_failed(w), consoles[w.id]) for w in boots]
            await workers.save(db, failed)
        async with db.transaction():
            candidates = {row["id"]: row for row in await db.fetch(IDLE_DESPITE_DEMAND, settings.give_up_idle_seconds)}
            locked = await workers.lock(db, sorted(candidates))
            # A worker that claimed and finished a task before the lock was taken has a newer `idle_since`.
            idle = [w for w in locked if w.state is State.RUNNING and w.idle_since == candidates[w.id]["idle_since"]]
            consoles = await _consoles(db, idle, providers)
            now = await pools.now(db)
            given_up = [
                stopping(
                    w,
                    "idle while tasks wait",
                    now,
                    _claim_failed(w, evidence=candidates[w.id]["throughout"]),
                    consoles[w.id],
                )
                for w in idle
            ]
            await workers.save(db, given_up)
        async with db.transaction():
            candidates = {
                row["id"]: row["last_seen_at"]
                for row in await db.fetch(UNRESPONSIVE, settings.unresponsive_timeout_seconds)
            }
            locked = await workers.lock(db, sorted(candidates))
            unresponsive = [w for w in locked if w.state is State.RUNNING and w.last_seen_at == candidates[w.id]]
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
        rows = await db.fetch(TAKE_STOPPING, settings.stop_grace_seconds, settings.reap_seconds)
        by_id = {row["account_id"]: await accounts.get(db, row["account_id"]) for row in rows}

    async def terminate(row: Any) -> None:
        account = by_id[row["account_id"]]
        try:
            await providers[account.provider].terminate(account, row["instance_id"])
        except Exception as error:
            LOG.warning(
                "terminating the instance failed and will be retried", instance=row["instance_id"], error=repr(error)
            )

    await asyncio.gather(*(terminate(row) for row in rows))
    return False
