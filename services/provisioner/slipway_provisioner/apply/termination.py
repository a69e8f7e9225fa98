"""Termination of a worker by a person."""

from slipway_api.events.lifecycle import ASKED_TO_STOP, ENDED, WAITING, State
from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply.leases import release
from slipway_provisioner.domain.workers import AlreadyStopped, Worker, hastened, terminated
from slipway_provisioner.store import leases, pools, workers


class AdmissionChanged(Exception):
    """The worker's lease or request changed before they were locked. Nothing was changed; try again."""


async def terminate(tx: Connection, worker_id: str, *, by: str, reason: str) -> Worker | None:
    """Terminate and return the worker; None if there is none. Raises AdmissionChanged and AlreadyStopped.

    Leases and requests are locked before workers, as everywhere: a grant may bind it, or a call start, at this moment.
    """
    seen = await workers.get(tx, worker_id)
    if seen is None:
        return None
    if seen.state in WAITING:
        await leases.lock_all(tx, filter(None, [seen.lease_id]), filter(None, [seen.request_id]))
    worker = await workers.lock_one(tx, worker_id)
    if worker is None:
        return None
    if worker.state in ENDED:
        raise AlreadyStopped(worker.reason)
    stopped = f"terminated by {by}: {reason}"
    before = {"state": worker.state.value, "account_id": worker.account_id, "instance_id": worker.instance_id}
    await audit.record_command(tx, AuditedKind.WORKER, worker_id, "terminate", by=by, reason=reason, before=before)
    if worker.state in ASKED_TO_STOP:
        return await _hasten(tx, worker, stopped) if worker.may_finish else worker
    if worker.state in WAITING:
        if _waits_under(worker) != _waits_under(seen):
            raise AdmissionChanged
        if worker.lease_id is None and worker.request_id is not None:
            await leases.cancel(tx, worker.request_id, 1, stopped)
        (worker,) = await release(tx, [worker], "cancelled")
    change = terminated(worker, stopped, await pools.now(tx))
    await workers.save(tx, [change])
    return change[0]


async def _hasten(tx: Connection, worker: Worker, reason: str) -> Worker:
    after = hastened(worker, reason, await pools.now(tx))
    await workers.save_without_events(tx, [after])
    return after


def _waits_under(worker: Worker) -> tuple[State, str | None, str | None]:
    return worker.state, worker.lease_id, worker.request_id
