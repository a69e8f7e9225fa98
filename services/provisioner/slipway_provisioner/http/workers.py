"""Routes for worker agents. Repeated reports are accepted; impossible ones are refused and change nothing."""

import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Final

from fastapi import Depends, Request

from slipway_api.events.lifecycle import IllegalTransition
from slipway_api.http.provisioner.agents import (
    ClaimAnswer,
    ClaimReport,
    EndAnswer,
    EndReport,
    ErrorReport,
    HeartbeatAnswer,
    NoticeReport,
    RegisteredWorker,
    Registration,
    ReportAnswer,
    Standing,
    StopReport,
)
from slipway_api.problems import InvalidPart
from slipway_common.base.ids import hash_secret, new_worker_token
from slipway_common.base.revisions import hash_of
from slipway_common.database.postgres import Connection, Database
from slipway_common.observability.telemetry import logger
from slipway_common.web.access import Open, OwnWorker
from slipway_common.web.answers import Answer
from slipway_common.web.bodies import Report
from slipway_common.web.limits import Counted, limits_of
from slipway_common.web.moment import parsed
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import reports_database, wake
from slipway_common.web.text import Name
from slipway_provisioner import metrics
from slipway_provisioner.apply import registration, reports
from slipway_provisioner.apply.enrolment import Enroller, NotVisible
from slipway_provisioner.apply.reports import Agent, ReportedClaim, ReportedEnd
from slipway_provisioner.domain.identity import IdentityRefused, Proof, Reason
from slipway_provisioner.domain.recovery import UUID
from slipway_provisioner.domain.registration import RegistrationKeys
from slipway_provisioner.domain.workers import AlreadyStopped, Notice, ReportedNotice, Worker
from slipway_provisioner.providers.port import OutcomeUnknown
from slipway_provisioner.store import restores

LOG = logger(__name__)
router = Router(prefix="/workers", tags=["workers"])
DatabaseDep = Annotated[Database, Depends(reports_database)]
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


# Exported from 0 on, so that the first refusal is an increase.
for _slug in ("bad-secret", *(f"identity-{reason}" for reason in Reason)):
    metrics.REGISTRATIONS_REFUSED.labels(_slug)


# Refusals that a restored database may give for lack of rows: agents try again until its state is confirmed.
FOR_LACK_OF_ROWS: Final = (
    registration.UnknownBatch,
    registration.OrphanInstance,
    reports.UnknownWorker,
    reports.ForeignToken,
)


@contextlib.asynccontextmanager
async def _transaction(request: Request, db: Database, key: str) -> AsyncIterator[Connection]:
    """Transaction of a worker or of the machines of a batch, one at a time, that a refusal rolls back; the refusal is
    raised as a Problem."""
    turn = limits_of(request).turns.of(key)
    async with _problems(db), turn, db.acquire() as connection, connection.transaction():
        yield connection


@contextlib.asynccontextmanager
async def _problems(db: Database) -> AsyncIterator[None]:
    """Raise refusals as Problems."""
    try:
        yield
    except IdentityRefused as refusal:
        status = 409 if refusal.reason is Reason.USED else 403
        title = "The machine has not proven its identity"
        raise Problem(status, f"identity-{refusal.reason}", title, str(refusal)) from refusal
    except (NotVisible, OutcomeUnknown) as refusal:
        title = "The identity of the machine cannot be checked yet"
        raise Problem(503, "identity-unknown", title, str(refusal)) from refusal
    except tuple(REFUSALS) as refusal:
        if isinstance(refusal, FOR_LACK_OF_ROWS):
            async with db.acquire() as connection:
                unconfirmed = await restores.unconfirmed(connection)
            if unconfirmed:
                title = "The state of the database is not confirmed"
                raise Problem(503, "unconfirmed", title, f"{unconfirmed}; try again") from refusal
        raise Problem(*REFUSALS[type(refusal)], str(refusal)) from refusal


def _time(field: str, text: str) -> datetime:
    """The time that a worker has written. Raises Problem."""
    try:
        return parsed(text)
    except ValueError as error:
        where, reason = f"body/{field}", f"is no time such as 2026-01-05T09:59:58Z: {text!r}"
        errors = [InvalidPart(where=where, reason=reason)]
        detail = f"{where}: {reason}"
        raise Problem(422, "invalid-request", "The request is not valid", detail, errors=errors) from error


def _agent(worker_id: str, token_sha256: str) -> Agent:
    if not UUID.fullmatch(worker_id):
        raise reports.UnknownWorker(worker_id)
    return Agent(worker_id, token_sha256)


async def _identify(request: Request, token_sha256: str) -> None:
    """Raise Problem unless the token is that of the worker in the path."""
    db = await reports_database(request)
    async with _problems(db), db.acquire() as connection:
        await reports.identify(connection, _agent(request.path_params["worker_id"], token_sha256))


TokenHash = Annotated[str, Depends(OwnWorker(_identify))]
TokenHashOfClaims = Annotated[str, Depends(OwnWorker(_identify, Counted.CLAIMS))]


@router.post("/register", dependencies=[Depends(Open("the body has the secret of the launch batch"))])
async def register(body: Report[Registration], request: Request, db: DatabaseDep) -> Answer[RegisteredWorker]:
    """Register an instance: exchange the batch secret, and the identity of the machine where its provider attests it,
    for a worker token. Repeatable with this token; without it until it is used, unless the provider attests."""
    try:
        registered = await _register(body, request, db)
    except Problem as problem:
        if problem.status < 500:
            metrics.REGISTRATIONS_REFUSED.labels(problem.slug).inc()
        LOG.warning("registration refused", batch=body.batch_id, instance=body.instance_id, reason=str(problem))
        raise
    wake(request)
    return Answer(registered)


async def _register(body: Registration, request: Request, db: Database) -> RegisteredWorker:
    keys: RegistrationKeys = request.app.state.settings.registration()
    if not keys.verifies(body.batch_id, body.secret):
        raise Problem(401, "bad-secret", "The secret does not match the batch", "")
    limits = limits_of(request)
    limits.take(Counted.BATCH, body.batch_id)
    try:
        worker, token, is_new = await _enrolled(body, request, db)
    except Problem as problem:
        if problem.status >= 500:  # not the machine's fault: it tries again
            limits.give_back(Counted.BATCH, body.batch_id)
        raise
    if is_new:
        limits.give_back(Counted.BATCH, body.batch_id)
    limits.prove(hash_secret(token))
    return RegisteredWorker(worker_id=worker.id, token=token, pool_id=worker.pool_id, task_slots=worker.task_slots)


async def _enrolled(body: Registration, request: Request, db: Database) -> tuple[Worker, str, bool]:
    """The worker of a machine and its token, and whether it has registered for the first time."""
    shown, token = body.identity, body.token or new_worker_token()
    proof = None if shown is None else Proof(shown.document, shown.signature, shown.rsa2048)
    enroller: Enroller = request.app.state.enroller
    async with _problems(db):
        enrolment = await enroller.check(db, body.batch_id, body.instance_id, proof)
    async with _transaction(request, db, body.batch_id) as tx:
        worker, event = await registration.register(tx, body.batch_id, body.instance_id, hash_secret(token), enrolment)
    if event is not None:
        metrics.BOOT_SECONDS.labels(worker.pool_id).observe(event.boot_seconds)
    return worker, token, event is not None


@router.post("/{worker_id:id}/claimed")
async def claimed(
    worker_id: Name, body: Report[ClaimReport], request: Request, token: TokenHashOfClaims, db: DatabaseDep
) -> Answer[ClaimAnswer]:
    """Report the claim of a task, which ends with its idle report, or with the worker; with one task slot at the latest
    with the next claim. `counted` is false for a claim above the worker's task slots."""
    claim = ReportedClaim(task_id=body.task_id, source=body.source, claimed_at=body.at, at=_time("at", body.at))
    async with _transaction(request, db, token) as tx:
        answer, counted = await reports.claimed(tx, _agent(worker_id, token), claim)
    if answer.within_slots:
        limits_of(request).give_back(Counted.CLAIMS, token)
    wake(request)
    return Answer(ClaimAnswer(terminate=bool(answer.reason), reason=answer.reason, counted=counted))


@router.post("/{worker_id:id}/idle")
async def idle(
    worker_id: Name, body: Report[EndReport], request: Request, token: TokenHashOfClaims, db: DatabaseDep
) -> Answer[EndAnswer]:
    """Report that a task has ended. `ended` is 0 if no open claim is the one that it names, or if it names none and
    several are open."""
    if body.claimed_at is not None:
        _time("claimed_at", body.claimed_at)
    end = ReportedEnd(
        at=body.at, task_id=body.task_id or "", source=body.source or "", claimed_at=body.claimed_at or ""
    )
    async with _transaction(request, db, token) as tx:
        answer, ended = await reports.idle(tx, _agent(worker_id, token), end)
    if answer.within_slots:
        limits_of(request).give_back(Counted.CLAIMS, token)
    wake(request)
    return Answer(EndAnswer(terminate=bool(answer.reason), reason=answer.reason, ended=ended))


@router.post("/{worker_id:id}/heartbeat")
async def heartbeat(worker_id: Name, request: Request, token: TokenHash, db: DatabaseDep) -> Answer[HeartbeatAnswer]:
    """Return whether a worker must stop, and whether its task is known. An agent whose task is not reports its claim
    again: the database may have lost it."""
    async with _transaction(request, db, token) as tx:
        answer = await reports.heartbeat(tx, _agent(worker_id, token))
    return Answer(HeartbeatAnswer(terminate=bool(answer.reason), reason=answer.reason, has_task=answer.has_task))


@router.get("/{worker_id:id}/should-terminate")
async def should_terminate(worker_id: Name, request: Request, token: TokenHash, db: DatabaseDep) -> Answer[Standing]:
    """Return whether a worker must stop, or leave after its task, and the standing of its revision, for agents that
    check between two tasks. Counts as a heartbeat."""
    async with _transaction(request, db, token) as tx:
        answer = await reports.heartbeat(tx, _agent(worker_id, token))
    standing = answer.standing
    return Answer(
        Standing(
            terminate=bool(answer.reason),
            reason=answer.reason,
            config=standing.name,
            revision=hash_of(standing.id),
            current=hash_of(standing.current_id),
            state=standing.state,
            deadline=standing.drain_until,
        )
    )


@router.post("/{worker_id:id}/error")
async def report_error(
    worker_id: Name, body: Report[ErrorReport], request: Request, token: TokenHash, db: DatabaseDep
) -> Answer[ReportAnswer]:
    """Report an error of the machine. It changes no state."""
    async with _transaction(request, db, token) as tx:
        answer = await reports.error(tx, _agent(worker_id, token), body.kind, body.detail)
    return Answer(ReportAnswer(terminate=bool(answer.reason), reason=answer.reason))


@router.post("/{worker_id:id}/notice")
async def notice(
    worker_id: Name, body: Report[NoticeReport], request: Request, token: TokenHash, db: DatabaseDep
) -> Answer[ReportAnswer]:
    """Report a notice that the provider interrupts the machine, or recommends replacing it.

    The worker leaves after its task, and the capacity that the machine was launched from loses weight."""
    reported = ReportedNotice(Notice(body.kind), body.ends_at, body.zone_id)
    async with _transaction(request, db, token) as tx:
        answer = await reports.noticed(tx, _agent(worker_id, token), reported)
    wake(request)
    return Answer(ReportAnswer(terminate=bool(answer.reason), reason=answer.reason))


@router.post("/{worker_id:id}/stopped")
async def has_stopped(
    worker_id: Name, body: Report[StopReport], request: Request, token: TokenHash, db: DatabaseDep
) -> Answer[ReportAnswer]:
    """Report that the machine stops by itself; its task, if any, has ended."""
    reason = "ended by itself"
    async with _transaction(request, db, token) as tx:
        await reports.stopped(tx, _agent(worker_id, token), reason, body.at)
    wake(request)
    return Answer(ReportAnswer(terminate=True, reason=reason))
