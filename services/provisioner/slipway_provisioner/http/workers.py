"""Routes for worker agents. Repeated reports are accepted; impossible ones are refused and change nothing."""

import contextlib
import hmac
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from slipway_common.base.ids import hash_secret
from slipway_common.base.revisions import hash_of
from slipway_common.database.postgres import Connection, Database
from slipway_common.events.lifecycle import IllegalTransition
from slipway_common.web.access import Open, OwnWorker, new_worker_token
from slipway_common.web.moment import Moment
from slipway_common.web.problem import Problem
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name, Note
from slipway_provisioner import metrics
from slipway_provisioner.apply import registration, reports
from slipway_provisioner.apply.reports import Agent, Answer
from slipway_provisioner.domain.recovery import UUID
from slipway_provisioner.domain.registration import batch_secret
from slipway_provisioner.domain.workers import AlreadyStopped, Notice, ReportedNotice
from slipway_provisioner.store import restores

router = APIRouter(prefix="/workers", tags=["workers"])
DatabaseDep = Annotated[Database, Depends(database)]
Secret = Annotated[str, Depends(OwnWorker())]
# Status, slug and title of each refusal; its text is the detail.
REFUSALS: Final[dict[type[Exception], tuple[int, str, str]]] = {
    registration.UnknownBatch: (404, "unknown-batch", "No such launch batch"),
    registration.ForeignInstance: (409, "foreign-instance", "The instance belongs to another batch"),
    registration.OrphanInstance: (409, "orphan-instance", "The instance is an orphan"),
    registration.AlreadyRegistered: (
        409,
        "already-registered",
        "The instance has already registered and used its token",
    ),
    reports.UnknownWorker: (404, "unknown-worker", "No such worker"),
    reports.ForeignToken: (403, "foreign-token", "The token does not belong to this worker"),
    AlreadyStopped: (410, "worker-gone", "The worker has stopped"),
    IllegalTransition: (409, "wrong-state", "Not possible in the worker's state"),
}


class AgentBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Registration(AgentBody):
    batch_id: Annotated[str, Field(pattern=f"^{UUID.pattern}$")]
    secret: Name
    instance_id: Name


class ClaimReport(AgentBody):
    task_id: Name
    source: Name
    at: Moment


class TimeReport(AgentBody):
    at: Moment


class ErrorReport(AgentBody):
    kind: Name
    detail: Note = ""


class NoticeReport(AgentBody):
    kind: Literal[Notice.REBALANCE, Notice.INTERRUPTION]
    at: Moment
    ends_at: Moment | None = None
    zone_id: Annotated[str, Field(pattern="^[a-z0-9-]{0,64}$")] = ""


# Refusals that a restored database may give for lack of rows: agents try again until its state is confirmed.
FOR_LACK_OF_ROWS: Final = (
    registration.UnknownBatch,
    registration.OrphanInstance,
    reports.UnknownWorker,
    reports.ForeignToken,
)


@contextlib.asynccontextmanager
async def _transaction(db: Database) -> AsyncIterator[Connection]:
    """Transaction that a refusal rolls back; the refusal is raised as a Problem."""
    try:
        async with db.acquire() as connection, connection.transaction():
            yield connection
    except tuple(REFUSALS) as refusal:
        if isinstance(refusal, FOR_LACK_OF_ROWS):
            async with db.acquire() as connection:
                unconfirmed = await restores.unconfirmed(connection)
            if unconfirmed:
                title = "The state of the database is not confirmed"
                raise Problem(503, "unconfirmed", title, f"{unconfirmed}; try again") from refusal
        raise Problem(*REFUSALS[type(refusal)], str(refusal)) from refusal


def _agent(worker_id: str, secret: str) -> Agent:
    if not UUID.fullmatch(worker_id):
        raise reports.UnknownWorker(worker_id)
    return Agent(worker_id, hash_secret(secret))


def _answer(answer: Answer) -> dict[str, Any]:
    return {"terminate": bool(answer.reason), "reason": answer.reason}


@router.post("/register", dependencies=[Depends(Open("the body has the secret of the launch batch"))])
async def register(body: Registration, request: Request, db: DatabaseDep) -> dict[str, Any]:
    """Register an instance: exchange the batch secret for a worker token. Repeatable until the token is used."""
    key = request.app.state.settings.registration_key
    if not hmac.compare_digest(batch_secret(key, body.batch_id).encode(), body.secret.encode()):
        raise Problem(401, "bad-secret", "The secret does not match the batch", "")
    token = new_worker_token()
    async with _transaction(db) as tx:
        worker, event = await registration.register(tx, body.batch_id, body.instance_id, hash_secret(token))
    if event is not None:
        metrics.BOOT_SECONDS.labels(worker.pool_id).observe(event.boot_seconds)
    wake(request)
    return {"worker_id": worker.id, "token": token, "pool_id": worker.pool_id}


@router.post("/{worker_id:id}/claimed")
async def claimed(
    worker_id: Name, body: ClaimReport, request: Request, secret: Secret, db: DatabaseDep
) -> dict[str, Any]:
    """Report the claim of a task, which ends with the next idle or stopped report."""
    async with _transaction(db) as tx:
        agent = _agent(worker_id, secret)
        answer = await reports.claimed(tx, agent, task_id=body.task_id, source=body.source, reported_at=body.at)
    wake(request)
    return _answer(answer)


@router.post("/{worker_id:id}/idle")
async def idle(worker_id: Name, body: TimeReport, request: Request, secret: Secret, db: DatabaseDep) -> dict[str, Any]:
    """Report that the task has ended."""
    async with _transaction(db) as tx:
        answer = await reports.idle(tx, _agent(worker_id, secret), body.at)
    wake(request)
    return _answer(answer)


@router.post("/{worker_id:id}/heartbeat")
async def heartbeat(worker_id: Name, secret: Secret, db: DatabaseDep) -> dict[str, Any]:
    """Return whether a worker must stop, and whether its task is known. An agent whose task is not reports its claim
    again: the database may have lost it."""
    async with _transaction(db) as tx:
        answer = await reports.heartbeat(tx, _agent(worker_id, secret))
    return _answer(answer) | {"has_task": answer.has_task}


@router.get("/{worker_id:id}/should-terminate")
async def should_terminate(worker_id: Name, secret: Secret, db: DatabaseDep) -> dict[str, Any]:
    """Return whether a worker must stop, or leave after its task, and the standing of its revision, for agents that
    check between two tasks. Counts as a heartbeat."""
    async with _transaction(db) as tx:
        answer = await reports.heartbeat(tx, _agent(worker_id, secret))
    standing = answer.standing
    return _answer(answer) | {
        "config": standing.name,
        "revision": hash_of(standing.id),
        "current": hash_of(standing.current_id),
        "state": standing.state,
        "deadline": standing.drain_until,
    }


@router.post("/{worker_id:id}/error")
async def report_error(worker_id: Name, body: ErrorReport, secret: Secret, db: DatabaseDep) -> dict[str, Any]:
    """Report an error of the machine. It changes no state."""
    async with _transaction(db) as tx:
        answer = await reports.error(tx, _agent(worker_id, secret), body.kind, body.detail)
    return _answer(answer)


@router.post("/{worker_id:id}/notice")
async def notice(
    worker_id: Name, body: NoticeReport, request: Request, secret: Secret, db: DatabaseDep
) -> dict[str, Any]:
    """Report a notice that the provider interrupts the machine, or recommends replacing it.

    The worker leaves after its task, and the capacity that the machine was launched from loses weight."""
    reported = ReportedNotice(body.kind, body.ends_at, body.zone_id)
    async with _transaction(db) as tx:
        answer = await reports.noticed(tx, _agent(worker_id, secret), reported)
    wake(request)
    return _answer(answer)


@router.post("/{worker_id:id}/stopped")
async def has_stopped(
    worker_id: Name, body: TimeReport, request: Request, secret: Secret, db: DatabaseDep
) -> dict[str, Any]:
    """Report that the machine stops by itself; its task, if any, has ended."""
    reason = "ended by itself"
    async with _transaction(db) as tx:
        await reports.stopped(tx, _agent(worker_id, secret), reason, body.at)
    wake(request)
    return {"terminate": True, "reason": reason}
