"""Execution of a plan: decision, freeze, intents with their lease requests, workers to stop. Makes no choices."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from slipway_api.events.lifecycle import REGISTERED, WAITING, State
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.observability.telemetry import child_of
from slipway_provisioner.apply import ageing, limiting
from slipway_provisioner.apply.freezing import freeze_for
from slipway_provisioner.apply.leases import release
from slipway_provisioner.domain import headroom, planning, windows
from slipway_provisioner.domain.ageing import REASON
from slipway_provisioner.domain.fairness import Wait
from slipway_provisioner.domain.headroom import Launch
from slipway_provisioner.domain.planning import Plan
from slipway_provisioner.domain.pool import Observed
from slipway_provisioner.domain.reasons import Code
from slipway_provisioner.domain.roll_out import draining_reason
from slipway_provisioner.domain.workers import UNWANTED, Change, Worker, cancelled, marked, requested, stopping_idle
from slipway_provisioner.store import decisions, leases, pools, waiting, workers
from slipway_provisioner.store.decisions import LeaseRequest


def _keys(observed: Observed, plan: Plan) -> list[str]:
    return headroom.keys(plan.launches, {known.share: known for known in observed.shared})


def keys(plans: Iterable[tuple[Observed, Plan]]) -> list[str]:
    """Keys of the shared windows that the launches of plans fill, in the order in which they are locked."""
    return sorted({key for observed, plan in plans for key in _keys(observed, plan)})


async def cut(tx: Connection, observed: Observed, plan: Plan, now: datetime, *, lock: Sequence[str]) -> Plan:
    """Lock the shared windows of the keys `lock` until the end of the transaction; returns the plan with the launches
    that fit into the windows that they fill, all of which are locked by then."""
    filled = _keys(observed, plan)
    if not filled and not lock:
        return plan
    shared = await pools.lock_shared(
        tx,
        observed.pool.id,
        filled,
        lock=lock,
        dirty_since=observed.dirty_since,
        units=plan.units,
        window_max=_window_max(observed),
    )
    return planning.cut(msgspec.structs.replace(observed, shared=shared), plan, now=now) if filled else plan


async def execute(tx: Connection, observed: Observed, plan: Plan, now: datetime) -> None:
    """Store a plan with its effects. The pool is locked."""
    pool_id = observed.pool.id
    await limiting.record(tx, observed.levels, plan.reached, observed.tariff)
    if plan.freeze is not None:
        await freeze_for(tx, pool_id, plan.freeze, tasks=plan.details["tasks"], now=now)
    await _mark(tx, plan.unmark, leave=False)  # before anything is launched in place of their workers
    if plan.cancel:
        reason = UNWANTED if plan.details["code"] == Code.SURPLUS else plan.details["reason"]
        await cancel(tx, plan.cancel, reason, now)
    await _stop(tx, observed, plan, now)
    await _mark(tx, plan.mark, leave=True)
    await ageing.alert(tx, observed, plan.ageing)
    await _wait(tx, observed, plan)
    trace = next((d.traceparent for d in observed.demands if d.traceparent), "")
    decision_id = new_id()
    launches = [_requested(pool_id, decision_id, launch, now, child_of(trace)) for launch in plan.launches]
    intents = [change for _, changes in launches for change in changes]
    await decisions.write(tx, observed, plan, decision_id, [request for request, _ in launches], intents)


async def _wait(tx: Connection, observed: Observed, plan: Plan) -> None:
    """Store what the pool waits for, and wake others that wait for headroom which it leaves."""
    before = [
        Wait(known.share, known.waiting_units, known.waiting_since)
        for known in observed.shared
        if known.waiting_since is not None
    ]
    if plan.waits != before:
        await waiting.record(tx, observed.pool.id, plan.waits)
    if plan.left:
        await waiting.wake(tx, plan.left, window_max=_window_max(observed))


def _window_max(observed: Observed) -> int:
    """Largest window that is trusted now."""
    return windows.largest(calculator_unavailable=observed.calculator_unavailable_seconds > 0)


def _requested(
    pool_id: str, decision_id: str, launch: Launch, now: datetime, traceparent: str
) -> tuple[LeaseRequest, list[Change]]:
    """The intents of one config, and the lease request for them."""
    config = launch.config
    request = LeaseRequest(
        id=new_id(),
        lease_pool_id=config.lease_pool_id,
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
        task_slots=config.task_slots,
        request_id=request.id,
        requested_at=now,
        traceparent=traceparent,
    )
    intents = [msgspec.structs.replace(intent, id=new_id()) for _ in range(launch.units)]
    return request, [requested(worker) for worker in intents]


async def _stop(tx: Connection, observed: Observed, plan: Plan, now: datetime) -> None:
    """Stop workers that are still idle, and mark those that drain for their age."""
    aged = plan.ageing
    locked = await workers.lock(
        tx, sorted({*plan.stop, *plan.drain, *aged.stop, *aged.drain, *aged.keep, *aged.forget})
    )
    locked = await ageing.marked(tx, observed, aged, locked, now)
    locked = [w for w in locked if w.state in REGISTERED or w.is_finishing]
    reasons = {w.id: draining_reason(w.launch_config_id) for w in locked if w.id in plan.drain}
    reasons |= dict.fromkeys(plan.stop, UNWANTED) | dict.fromkeys(aged.stop, REASON)
    idle = [w for w in locked if w.idle_since and w.id in reasons]
    await workers.save(tx, [stopping_idle(w, reasons[w.id], now) for w in idle])
    await workers.save_without_events(tx, [w for w in locked if w not in idle])


async def _mark(tx: Connection, worker_ids: Sequence[str], *, leave: bool) -> None:
    """Have workers that still have their task leave after it, or stay."""
    busy = [worker for worker in await workers.lock(tx, sorted(worker_ids)) if worker.has_task]
    await workers.save_without_events(tx, [marked(worker, leave=leave) for worker in busy])


async def cancel(tx: Connection, ids: Sequence[str], reason: str, now: datetime) -> None:
    """Cancel waiting intents, and withdraw their units from the queue or release them. Leases and requests are locked
    before workers, as everywhere, since a grant may be binding them at this moment. Rows locked by others are left to
    the next plan."""
    leased = await leases.lock_of(tx, ids)
    requests = await leases.lock_requests_of(tx, ids)
    locked = [w for w in await workers.lock(tx, sorted(ids), skip_locked=True) if w.state in WAITING]
    granted = [w for w in locked if w.lease_id is not None and w.lease_id in leased]
    queued = [w for w in locked if w.lease_id is None and (w.request_id is None or w.request_id in requests)]
    for request_id in requests:
        if units := sum(worker.request_id == request_id for worker in queued):
            await leases.cancel(tx, request_id, units, reason)
    withdrawn = [*queued, *await release(tx, granted, "cancelled")]
    await workers.save(tx, [cancelled(worker, reason, now) for worker in withdrawn])
