"""Dirty pools become intents. The one place where a launch is decided."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.ids import new_id
from slipway_common.lifecycle import State
from slipway_common.postgres import Connection, Pool
from slipway_common.telemetry import child_of, logger
from slipway_provisioner import metrics
from slipway_provisioner.domain import planning
from slipway_provisioner.domain.planning import Launch, Plan
from slipway_provisioner.domain.pool import Observed
from slipway_provisioner.domain.workers import Worker, cancelled, requested, stopping
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import decisions, leases, marks, pools, workers

LOG = logger(__name__)
# Facts that arrive within this time share one decision.
COALESCE_SECONDS: Final = 0.02


class PlanRejected(Exception):
    """A plan that breaks a rule: our mistake. Nothing is launched."""


async def plan_next(pool: Pool, *, settings: Settings, calculator_silent_seconds: Callable[[], float]) -> bool:
    """Plan for one dirty pool under its lock and commit the plan; False when no pool is dirty."""
    async with pool.acquire() as db, db.transaction():
        pool_id = await pools.claim_dirty(db)
        if pool_id is None:
            return False
        observed = await pools.observe(
            db, pool_id, idle_timeout_seconds=settings.idle_timeout_seconds,
            silent_seconds=calculator_silent_seconds(), attempt_seconds=settings.silent_attempt_seconds,
        )  # fmt: skip
        now = await pools.now(db)
        plan = planning.plan(observed, now=now)
        if problems := planning.check_plan(observed, plan):
            raise PlanRejected(f"{pool_id}: {'; '.join(problems)}")
        await _execute(db, observed, plan, now)
    metrics.DECISIONS.labels(pool_id).inc()
    await asyncio.sleep(COALESCE_SECONDS)
    return True


async def _execute(db: Connection, observed: Observed, plan: Plan, now: datetime) -> None:
    """Write the plan down: a decision, intents with their lease requests, farewells. Takes no choices."""
    pool_id = observed.pool.id
    decision_id = await decisions.record(db, pool_id, plan)
    trace = next((d.traceparent for d in observed.demands if d.traceparent), "")
    for launch in plan.launches:
        await _request(db, pool_id, decision_id, launch, now, trace)
    if plan.units:
        await pools.drew(db, pool_id, plan.units)
    if plan.cancel:
        await _cancel(db, plan.cancel, plan.why["because"], now)
    if plan.tell:
        told = [w for w in await workers.lock(db, sorted(plan.tell)) if w.state is State.RUNNING and w.idle_since]
        await workers.save(db, [stopping(w, "more workers than wanted", now) for w in told])
    if plan.reconsider_after_seconds is not None:
        await marks.later(db, pool_id, "idle", plan.reconsider_after_seconds)


async def _request(
    db: Connection, pool_id: str, decision_id: str, launch: Launch, now: datetime, trace: str
) -> None:
    """Intents of one config and the request for their admission, together."""
    config, traceparent = launch.config, child_of(trace)
    request_id = await leases.request(
        db, lease_pool_id=config.lease_pool_id, pool_id=pool_id, launch_config_id=config.id, units=launch.units,
        traceparent=traceparent,
    )  # fmt: skip
    intent = Worker(
        id="", pool_id=pool_id, launch_config_id=config.id, account_id=config.account_id,
        image_revision=config.image_revision, state=State.REQUESTED, decision_id=decision_id,
        probe_permit=launch.permit, request_id=request_id, requested_at=now, traceparent=traceparent,
    )  # fmt: skip
    intents = [msgspec.structs.replace(intent, id=new_id()) for _ in range(launch.units)]
    await workers.insert(db, [requested(worker) for worker in intents])


async def _cancel(db: Connection, ids: Sequence[str], reason: str, now: datetime) -> None:
    """Cancel intents that still wait, and give up their places in the queue. Requests are locked before workers, as
    everywhere: a grant may be binding them at this moment."""
    rows = await db.fetch(
        "SELECT DISTINCT request_id::text AS id FROM worker WHERE id = ANY($1::uuid[]) AND request_id IS NOT NULL", ids
    )
    requests = sorted(row["id"] for row in rows)
    await db.execute("SELECT FROM lease_request WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE", requests)
    waiting = [w for w in await workers.lock(db, sorted(ids)) if w.state is State.REQUESTED and w.lease_id is None]
    await workers.save(db, [cancelled(worker, reason, now) for worker in waiting])
    for request_id in requests:
        if units := sum(worker.request_id == request_id for worker in waiting):
            await leases.cancel(db, request_id, units, reason)


async def ask_again(pool: Pool, *, resend_seconds: float) -> bool:
    """Delayed intents ask for admission anew; requests long without an answer are repeated under the same id."""
    async with pool.acquire() as db, db.transaction():
        rows = await db.fetch(
            "SELECT w.id::text, w.pool_id, w.launch_config_id, w.traceparent, a.lease_pool_id FROM worker w "
            "JOIN account a ON a.id = w.account_id WHERE w.state = 'requested' AND w.request_id IS NULL "
            "AND (w.not_before IS NULL OR w.not_before <= slipway_clock()) "
            "ORDER BY w.id LIMIT 200 FOR UPDATE OF w SKIP LOCKED"
        )
        groups: dict[tuple[str, str, str], list[str]] = {}
        for row in rows:
            groups.setdefault((row["lease_pool_id"], row["pool_id"], row["launch_config_id"]), []).append(row["id"])
        for (lease_pool_id, pool_id, config_id), ids in groups.items():
            request_id = await leases.request(
                db, lease_pool_id=lease_pool_id, pool_id=pool_id, launch_config_id=config_id, units=len(ids),
                traceparent=rows[0]["traceparent"],
            )  # fmt: skip
            await db.execute("UPDATE worker SET request_id = $2 WHERE id = ANY($1::uuid[])", ids, request_id)
        await leases.resend(db, resend_seconds)
    return bool(rows)

