"""Routes for people: list workers, show the timeline of one, terminate one."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from fastapi import Depends, Request

from slipway_api.events.lifecycle import State
from slipway_api.http.pages import Page
from slipway_api.http.provisioner.decisions import DecisionSummary
from slipway_api.http.provisioner.pools import ReasonGiven
from slipway_api.http.provisioner.workers import TimelineEntry, Worker, WorkerDetails
from slipway_common.base.errors import Transient
from slipway_common.database.postgres import Database
from slipway_common.web import pages
from slipway_common.web.access import READ, Caller, NeedsCaller, NeedsOwner
from slipway_common.web.answers import Answer
from slipway_common.web.bodies import Body
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name
from slipway_provisioner.apply import termination, workspaces
from slipway_provisioner.domain.recovery import UUID
from slipway_provisioner.domain.timeline import timeline
from slipway_provisioner.domain.workers import AlreadyStopped
from slipway_provisioner.http.pools import check_pool
from slipway_provisioner.store import batches, decisions, demand, leases, workers

router = Router(prefix="/workers", tags=["workers"])
DatabaseDep = Annotated[Database, Depends(database)]
Reader = Annotated[Caller, Depends(NeedsCaller("read"))]
ATTEMPTS_MAX: Final = 10


def no_worker(worker_id: str) -> Problem:
    detail = f"no worker {worker_id!r}; see `slipway worker ls`. Stopped workers are deleted after 14 days"
    return Problem(404, "unknown-worker", "No such worker", detail)


@router.get("", dependencies=[READ])
async def list_workers(
    db: DatabaseDep,
    pool: Name | None = None,
    config: Name | None = None,
    state: State | None = None,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
) -> Answer[Page[Worker]]:
    """List workers, newest first, including those of deleted pools."""
    after = pages.after(cursor, workers.FIRST)
    found = await workers.listed(
        db, pool_id=pool, launch_config_id=config, state=state, after=after.id, limit=limit + 1
    )
    if pool is not None and not found:
        await check_pool(db, pool)
    return pages.page(found, limit, lambda worker: (worker.id,), workers.described)


@router.get("/{worker_id:id}")
async def get_worker(worker_id: Name, request: Request, caller: Reader, db: DatabaseDep) -> Answer[WorkerDetails]:
    """Show one worker with its timeline, decision, launch batch, lease and Terraform workspace. The `resources` of the
    workspace are read from its state, and null for callers without the scope workers:state."""
    worker = await workers.get(db, worker_id) if UUID.fullmatch(worker_id) else None
    if worker is None:
        raise no_worker(worker_id)
    decision = await decisions.get(db, worker.decision_id)
    batch = await batches.get(db, worker.batch_id) if worker.batch_id else None
    lease = await leases.get(db, worker.lease_id) if worker.lease_id else None
    moments = timeline(worker, await demand.claims_of(db, worker_id), batch.started_at if batch else None)
    keys = request.app.state.settings.state_key_ring() if caller.may("workers:state") else None
    async with db.acquire() as connection:
        workspace = await workspaces.shown(connection, worker, keys)
    details = WorkerDetails(
        **msgspec.structs.asdict(workers.described(worker)),
        timeline=[TimelineEntry(at=moment.at, what=moment.what, detail=moment.detail) for moment in moments],
        decision=None if decision is None else _summary(decision),
        batch=None if batch is None else batches.described(batch),
        lease=None if lease is None else leases.described(lease),
        workspace=workspace,
    )
    return Answer(details)


def _summary(decision: Mapping[str, Any]) -> DecisionSummary:
    return DecisionSummary(**{name: decision[name] for name in DecisionSummary.__struct_fields__})


@router.post("/{worker_id:id}/terminate")
async def terminate(
    worker_id: Name,
    body: Body[ReasonGiven],
    request: Request,
    by: Annotated[str, Depends(NeedsOwner("workers:terminate", "worker", "worker_id"))],
    db: DatabaseDep,
) -> Answer[Worker]:
    """Terminate a worker. A waiting worker is cancelled; any other may finish its task within the stop grace period,
    then its instance is terminated. This is no evidence about its config. A replacement is launched if needed."""
    if not UUID.fullmatch(worker_id):
        raise no_worker(worker_id)
    async with db.acquire() as connection:
        for _ in range(ATTEMPTS_MAX):
            try:
                async with connection.transaction():
                    worker = await termination.terminate(connection, worker_id, by=by, reason=body.reason)
            except termination.AdmissionChanged:
                continue
            except AlreadyStopped as error:
                raise Problem(410, "worker-gone", "The worker has stopped", str(error)) from error
            if worker is None:
                raise no_worker(worker_id)
            wake(request)
            return Answer(workers.described(worker))
    raise Transient(f"the admission of worker {worker_id} changed {ATTEMPTS_MAX} times meanwhile; try again")
