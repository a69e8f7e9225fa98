"""Planning loop: turns dirty pools into launch intents. The only place where launches are decided."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection, Database, is_infrastructure
from slipway_common.events.alert import Alert, AlertRaised, AlertResolved
from slipway_common.events.lifecycle import State
from slipway_common.messaging import outbox
from slipway_common.observability.telemetry import child_of, logger
from slipway_provisioner import metrics
from slipway_provisioner.domain import planning
from slipway_provisioner.domain.planning import Launch, Plan
from slipway_provisioner.domain.pool import Observed
from slipway_provisioner.domain.workers import Worker, cancelled, requested, stopping
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import decisions, leases, marks, pauses, pools, workers

LOG = logger(__name__)
# Changes that arrive within this time share one decision.
COALESCE_SECONDS: Final = 0.02
RETRY_SECONDS: Final = 5.0  # between two attempts at a pool whose planning fails


class InvalidPlan(Exception):
    """The plan violates an invariant, which is a bug. Nothing of it is executed."""


async def plan_next(
    database: Database, *, settings: Settings, calculator_unavailable_seconds: Callable[[], float]
) -> bool:
    """Plan one dirty pool under its lock and commit the plan; False if no pool is dirty."""
    pool_id: str | None = None
    try:
        async with database.acquire() as db, db.transaction():
            dirty = await pools.claim_dirty(db)
            if dirty is None:
                return False
            pool_id = dirty.pool_id
            observed = await pools.observe(
                db,
                pool_id,
                idle_timeout_seconds=settings.idle_timeout_seconds,
                unavailable_seconds=calculator_unavailable_seconds(),
                weight_half_life_seconds=settings.weight_half_life_seconds,
                attempt_seconds=settings.unavailable_attempt_seconds,
            )
            now = await pools.now(db)
            plan = planning.plan(observed, now=now)
            if problems := planning.check_plan(observed, plan):
                raise InvalidPlan("; ".join(problems))
            await _execute(db, observed, plan, now)
            if marks.FAILED in dirty.reasons:
                await outbox.enqueue(db, [_failing(AlertResolved, pool_id, f"planning {pool_id} succeeds again")])
    except Exception as error:
        if pool_id is None or is_infrastructure(error):
            raise
        await _postpone(database, pool_id, error)
        return True
    metrics.DECISIONS.labels(pool_id).inc()
    await asyncio.sleep(COALESCE_SECONDS)
    return True


async def _postpone(database: Database, pool_id: str, error: Exception) -> None:
    """Retry the pool later and alert, so that a bug in planning one pool does not stop the others."""
    LOG.error("planning failed", pool=pool_id, exc_info=error)
    async with database.acquire() as db, db.transaction():
        if await marks.postpone(db, pool_id, RETRY_SECONDS):
            await outbox.enqueue(db, [_failing(AlertRaised, pool_id, f"planning {pool_id} fails: {error!r}")])


def _failing(kind: type[Alert], pool_id: str, summary: str) -> Alert:
    return kind(
        dedup_key=f"provisioner/plan-failed/{pool_id}",
        subject_id=pool_id,
        kind="plan-failed",
        summary=summary,
        effect="the pool launches and stops no workers",
        doing=f"tries again every {RETRY_SECONDS:g} s, and whenever the pool changes",
        command="see the traceback in the provisioner's log",
    )


async def _execute(db: Connection, observed: Observed, plan: Plan, now: datetime) -> None:
    """Store the plan: decision, freeze, intents with their lease requests, workers to stop. Makes no choices."""
    pool_id = observed.pool.id
    decision_id = await decisions.record(db, pool_id, plan)
    if plan.freeze is not None:
        await pauses.freeze_for(db, pool_id, plan.freeze, tasks=plan.details["tasks"], now=now)
    trace = next((d.traceparent for d in observed.demands if d.traceparent), "")
    for launch in plan.launches:
        await _request(db, pool_id, decision_id, launch, now, trace)
    if plan.units:
        await pools.record_draws(db, pool_id, plan.units)
    if plan.cancel:
        await _cancel(db, plan.cancel, plan.details["reason"], now)
    if plan.stop:
        idle = [w for w in await workers.lock(db, sorted(plan.stop)) if w.state is State.RUNNING and w.idle_since]
        await workers.save(db, [stopping(w, "more workers than wanted", now) for w in idle])
    if plan.reconsider_after_seconds is not None:
        await marks.later(db, pool_id, plan.reconsider_after_seconds)


async def _request(db: Connection, pool_id: str, decision_id: str, launch: Launch, now: datetime, trace: str) -> None:
    """Store the intents of one config together with the lease request for them."""
    config, traceparent = launch.config, child_of(trace)
    request_id = await leases.request(
        db,
        lease_pool_id=config.lease_pool_id,
        pool_id=pool_id,
        launch_config_id=config.id,
        units=launch.units,
        traceparent=traceparent,
    )
    intent = Worker(
        id="",
        pool_id=pool_id,
        launch_config_id=config.id,
        account_id=config.account_id,
        image_revision=config.image_revision,
        state=State.REQUESTED,
        decision_id=decision_id,
        probe_permit=launch.permit,
        request_id=request_id,
        requested_at=now,
        traceparent=traceparent,
    )
    intents = [msgspec.structs.replace(intent, id=new_id()) for _ in range(launch.units)]
    await workers.insert(db, [requested(worker) for worker in intents])


async def _cancel(db: Connection, ids: Sequence[str], reason: str, now: datetime) -> None:
    """Cancel waiting intents and withdraw their units from the queue. Requests are locked before workers, as
    everywhere, since a grant may be binding them at this moment. Rows locked by others are left to the next plan."""
    requests = await leases.lock_requests_of(db, ids)
    locked = await workers.lock(db, sorted(ids), skip_locked=True)
    waiting = [w for w in locked if w.state is State.REQUESTED and w.lease_id is None]
    waiting = [w for w in waiting if w.request_id is None or w.request_id in requests]
    await workers.save(db, [cancelled(worker, reason, now) for worker in waiting])
    for request_id in requests:
        if units := sum(worker.request_id == request_id for worker in waiting):
            await leases.cancel(db, request_id, units, reason)


async def resend_requests(database: Database, *, resend_seconds: float) -> bool:
    """Request leases for delayed intents anew; resend unanswered requests under the same id."""
    async with database.acquire() as db, db.transaction():
        delayed = await workers.lock_delayed(db)
        groups: dict[tuple[str, str, str], list[Worker]] = {}
        for lease_pool_id, worker in delayed:
            groups.setdefault((lease_pool_id, worker.pool_id, worker.launch_config_id), []).append(worker)
        for (lease_pool_id, pool_id, config_id), members in groups.items():
            request_id = await leases.request(
                db,
                lease_pool_id=lease_pool_id,
                pool_id=pool_id,
                launch_config_id=config_id,
                units=len(members),
                traceparent=members[0].traceparent,
            )
            requesting = [msgspec.structs.replace(worker, request_id=request_id) for worker in members]
            await workers.save_without_events(db, requesting)
        await leases.resend(db, resend_seconds)
    return bool(delayed)
