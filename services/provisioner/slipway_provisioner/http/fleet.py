"""Routes for people: list workers, show the timeline of one, terminate one."""

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from slipway_common.base.errors import Transient
from slipway_common.database.postgres import Connection, Database
from slipway_common.events.lifecycle import State
from slipway_common.web.access import require
from slipway_common.web.problem import Problem
from slipway_common.web.runtime import database, wake
from slipway_provisioner.domain import workers as domain
from slipway_provisioner.domain.timeline import timeline
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.http.pools import no_pool
from slipway_provisioner.http.workers import UUID
from slipway_provisioner.store import batches, decisions, demand, leases, pools, workers

router = APIRouter(prefix="/workers", tags=["workers"])
DatabaseDep = Annotated[Database, Depends(database)]
ATTEMPTS_MAX: Final = 10
OF_DECISION: Final = ("id", "at", "reason", "launched")


class Termination(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = Field(min_length=1, max_length=500)


def no_worker(worker_id: str) -> Problem:
    detail = f"no worker {worker_id!r}; see `slipway worker ls`. Stopped workers are deleted after 14 days"
    return Problem(404, "unknown-worker", "No such worker", detail)


@router.get("")
async def list_workers(
    db: DatabaseDep,
    pool: str | None = None,
    state: State | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """List workers, newest first, including those of deleted pools."""
    found = await workers.listed(db, pool_id=pool, state=state, limit=limit)
    if pool is not None and not found and pool not in await pools.known(db, [pool]):
        raise no_pool(pool)
    return {"items": [workers.described(worker) for worker in found]}


@router.get("/{worker_id}")
async def get_worker(worker_id: str, db: DatabaseDep) -> dict[str, Any]:
    """Show one worker with its timeline, decision, launch batch and lease."""
    worker = await workers.get(db, worker_id) if UUID.fullmatch(worker_id) else None
    if worker is None:
        raise no_worker(worker_id)
    decision = await decisions.get(db, worker.decision_id)
    batch = await batches.get(db, worker.batch_id) if worker.batch_id else None
    lease = await leases.get(db, worker.lease_id) if worker.lease_id else None
    moments = timeline(worker, await demand.claims_of(db, worker_id), batch.started_at if batch else None)
    return workers.described(worker) | {
        "timeline": [msgspec.structs.asdict(moment) for moment in moments],
        "decision": decision and {name: decision[name] for name in OF_DECISION},
        "batch": batch and batches.described(batch),
        "lease": lease and leases.described(lease),
    }


@router.post("/{worker_id}/terminate")
async def terminate(
    worker_id: str,
    body: Termination,
    request: Request,
    db: DatabaseDep,
    by: Annotated[str, Depends(require("workers:terminate"))],
) -> dict[str, Any]:
    """Terminate a worker. A waiting worker is cancelled; any other may finish its task within the stop grace period,
    then its instance is terminated. This is no evidence about its config. A replacement is launched if needed."""
    if not UUID.fullmatch(worker_id):
        raise no_worker(worker_id)
    async with db.acquire() as connection:
        for _ in range(ATTEMPTS_MAX):
            async with connection.transaction():
                worker = await _terminate(connection, worker_id, f"terminated by {by}: {body.reason}")
            if worker is not None:
                wake(request)
                return workers.described(worker)
    raise Transient(f"the admission of worker {worker_id} changed {ATTEMPTS_MAX} times meanwhile; try again")


async def _terminate(db: Connection, worker_id: str, reason: str) -> Worker | None:
    """Terminate and return the worker; None, without a change, if its lease or request changed before they were locked.

    Leases and requests are locked before workers, as everywhere: a grant may bind it, or a call start, at this moment.
    """
    seen = await workers.get(db, worker_id)
    if seen is None:
        raise no_worker(worker_id)
    if seen.state is State.REQUESTED:
        await leases.lock_all(db, filter(None, [seen.lease_id]), filter(None, [seen.request_id]))
    worker = await workers.lock_one(db, worker_id)
    if worker is None:
        raise no_worker(worker_id)
    if worker.state is State.STOPPED:
        raise Problem(410, "worker-gone", "The worker has stopped", worker.reason)
    if worker.state is State.STOPPING:
        return worker
    if worker.state is State.REQUESTED:
        if _waits_under(worker) != _waits_under(seen):
            return None
        if worker.lease_id is None and worker.request_id is not None:
            await leases.cancel(db, worker.request_id, 1, reason)
        (worker,) = await leases.release(db, [worker], "cancelled")
    change = domain.terminated(worker, reason, await pools.now(db))
    await workers.save(db, [change])
    return change[0]


def _waits_under(worker: Worker) -> tuple[State, str | None, str | None]:
    return worker.state, worker.lease_id, worker.request_id
