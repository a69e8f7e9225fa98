"""Routes for worker agents. Repeated reports are accepted; impossible ones are refused and change nothing."""

import hmac
import re
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from slipway_common.base.ids import hash_secret, new_secret
from slipway_common.database.postgres import Connection, Database
from slipway_common.events.lifecycle import ASKED_TO_STOP, ENDED, LIVE, IllegalTransition
from slipway_common.web.access import Credentials, bearer
from slipway_common.web.problem import Problem
from slipway_common.web.runtime import database, wake
from slipway_provisioner import metrics
from slipway_provisioner.apply.leases import release
from slipway_provisioner.domain import workers as domain
from slipway_provisioner.domain.registration import batch_secret
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store import batches, demand, pools, workers

router = APIRouter(prefix="/workers", tags=["workers"])
DatabaseDep = Annotated[Database, Depends(database)]
CLAMP: Final = timedelta(minutes=2)  # largest clock difference of a machine that is accepted
UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
Text = Annotated[str, Field(min_length=1, max_length=200)]


class AgentBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Registration(AgentBody):
    batch_id: Annotated[str, Field(pattern=f"^{UUID.pattern}$")]
    secret: Text
    instance_id: Text


class ClaimReport(AgentBody):
    task_id: Text
    source: Text
    at: AwareDatetime


class TimeReport(AgentBody):
    at: AwareDatetime


class ErrorReport(AgentBody):
    kind: Text
    detail: str = Field("", max_length=4000)


def refused(error: IllegalTransition) -> Problem:
    return Problem(409, "wrong-state", "Not possible in the worker's state", str(error))


@router.post("/register")
async def register(body: Registration, request: Request, db: DatabaseDep) -> dict[str, Any]:
    """Register an instance: exchange the batch secret for a worker token. Repeatable until the token is used."""
    key = request.app.state.settings.registration_key
    if not hmac.compare_digest(batch_secret(key, body.batch_id).encode(), body.secret.encode()):
        raise Problem(401, "bad-secret", "The secret does not match the batch", "")
    token = new_secret()
    async with db.acquire() as connection, connection.transaction():
        batch = await batches.lock(connection, body.batch_id)
        if batch is None:
            raise Problem(404, "unknown-batch", "No such launch batch", body.batch_id)
        worker = await workers.by_instance(connection, batch.account_id, body.instance_id)
        if worker is None:
            worker = await _lowest_unbound(connection, body)
        elif worker.batch_id != batch.id:
            raise Problem(409, "foreign-instance", "The instance belongs to another batch", body.instance_id)
        if worker.state in ENDED:
            raise Problem(410, "worker-gone", "The worker has stopped", worker.reason)
        if worker.registered_at is not None:
            worker = await _again(connection, worker, token)
        else:
            worker = await _first(connection, worker, body.instance_id, token)
    wake(request)
    return {"worker_id": worker.id, "token": token, "pool_id": worker.pool_id}


async def _lowest_unbound(db: Connection, body: Registration) -> Worker:
    for worker in await workers.lock_batch(db, body.batch_id):
        if worker.instance_id is None and worker.state in LIVE:
            return worker
    raise Problem(
        409,
        "orphan-instance",
        "The instance is an orphan",
        "every intent of the batch has an instance; this one will be terminated",
    )


async def _first(db: Connection, worker: Worker, instance_id: str, token: str) -> Worker:
    now = await pools.now(db)
    try:
        after, event = domain.registered(worker, instance_id, hash_secret(token), now)
    except IllegalTransition as error:
        raise refused(error) from error
    (released,) = await release(db, [after], "registered")
    await workers.save(db, [(released, event)])
    metrics.BOOT_SECONDS.labels(worker.pool_id).observe(event.boot_seconds)
    return released


async def _again(db: Connection, worker: Worker, token: str) -> Worker:
    """Issue a new token for a repeated registration, whose first response was lost. Refused once a token was used."""
    if worker.token_used:
        raise Problem(409, "already-registered", "The instance has already registered and used its token", worker.id)
    after = msgspec.structs.replace(worker, token_sha256=hash_secret(token))
    await workers.save_without_events(db, [after])
    return after


async def _authenticated(db: Connection, worker_id: str, credentials: Any) -> Worker:
    """The worker that the token belongs to, locked. Raises Problem for a wrong token and a stopped worker."""
    secret = bearer(credentials)
    worker = await workers.lock_one(db, worker_id) if UUID.fullmatch(worker_id) else None
    if worker is None:
        raise Problem(404, "unknown-worker", "No such worker", worker_id)
    if worker.token_sha256 is None or not hmac.compare_digest(worker.token_sha256, hash_secret(secret)):
        raise Problem(
            401,
            "foreign-token",
            "The token does not belong to this worker",
            "use the token returned by the registration",
        )
    if worker.state in ENDED:
        raise Problem(410, "worker-gone", "The worker has stopped", worker.reason)
    now = await pools.now(db)
    return msgspec.structs.replace(worker, token_used=True, last_seen_at=now)


def _clamped(at: datetime, now: datetime) -> datetime:
    """The machine's time, clamped to the two minutes before receipt."""
    clamped = min(max(at, now - CLAMP), now)
    if abs(at - now) > CLAMP:
        metrics.CLAMPED.inc()
    return clamped


def _answer(worker: Worker) -> dict[str, Any]:
    is_stopping = worker.state in ASKED_TO_STOP
    return {"terminate": is_stopping, "reason": worker.reason if is_stopping else ""}


@router.post("/{worker_id}/claimed")
async def claimed(
    worker_id: str, body: ClaimReport, request: Request, db: DatabaseDep, credentials: Credentials
) -> dict[str, Any]:
    """Report the claim of a task, which ends with the next idle or stopped report."""
    async with db.acquire() as connection, connection.transaction():
        worker = await _authenticated(connection, worker_id, credentials)
        at = _clamped(body.at, await pools.now(connection))
        try:
            change = domain.claimed(worker, body.task_id, body.source, at)
        except IllegalTransition as error:
            raise refused(error) from error
        if await demand.open_claim(
            connection, worker, source=body.source, task_id=body.task_id, reported_at=body.at, at=at
        ):
            worker = change[0]
            await workers.save(connection, [change], at=at)
        else:
            await workers.save_without_events(connection, [worker])
    wake(request)
    return _answer(worker)


@router.post("/{worker_id}/idle")
async def idle(
    worker_id: str, body: TimeReport, request: Request, db: DatabaseDep, credentials: Credentials
) -> dict[str, Any]:
    """Report that the task has ended."""
    async with db.acquire() as connection, connection.transaction():
        worker = await _authenticated(connection, worker_id, credentials)
        at = _clamped(body.at, await pools.now(connection))
        try:
            change = domain.idle(worker, at)
        except IllegalTransition as error:
            raise refused(error) from error
        if await demand.close_claims(connection, [worker_id], at):
            worker = change[0]
            await workers.save(connection, [change], at=at)
        else:
            await workers.save_without_events(connection, [worker])
    wake(request)
    return _answer(worker)


@router.post("/{worker_id}/heartbeat")
async def heartbeat(worker_id: str, db: DatabaseDep, credentials: Credentials) -> dict[str, Any]:
    async with db.acquire() as connection, connection.transaction():
        worker = await _authenticated(connection, worker_id, credentials)
        await workers.save_without_events(connection, [worker])
    return _answer(worker)


@router.get("/{worker_id}/should-terminate")
async def should_terminate(worker_id: str, db: DatabaseDep, credentials: Credentials) -> dict[str, Any]:
    """Return whether an agent must stop, for agents that check between two tasks. Counts as a heartbeat."""
    return await heartbeat(worker_id, db, credentials)


@router.post("/{worker_id}/error")
async def report_error(worker_id: str, body: ErrorReport, db: DatabaseDep, credentials: Credentials) -> dict[str, Any]:
    async with db.acquire() as connection, connection.transaction():
        worker = await _authenticated(connection, worker_id, credentials)
        try:
            change = domain.error_reported(worker, body.kind, body.detail)
        except IllegalTransition as error:
            raise refused(error) from error
        await workers.save(connection, [change])
    return _answer(change[0])


@router.post("/{worker_id}/stopped")
async def has_stopped(
    worker_id: str, body: TimeReport, request: Request, db: DatabaseDep, credentials: Credentials
) -> dict[str, Any]:
    """Report that the machine stops by itself; its task, if any, has ended."""
    async with db.acquire() as connection, connection.transaction():
        worker = await _authenticated(connection, worker_id, credentials)
        now = await pools.now(connection)
        try:
            change = domain.stopped(worker, "ended by itself", now)
        except IllegalTransition as error:
            raise refused(error) from error
        await demand.close_claims(connection, [worker_id], _clamped(body.at, now))
        await workers.save(connection, [change])
    wake(request)
    return {"terminate": True, "reason": "ended by itself"}
