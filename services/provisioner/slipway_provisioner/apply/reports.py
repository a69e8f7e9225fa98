"""Reports of a worker's agent: claim, end of a task, error, notice of the provider, stop of the machine, heartbeat.

Each locks the worker, verifies the agent's token and records the contact. Repeated reports change nothing else;
impossible ones raise IllegalTransition.
"""

import hmac
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_common.base.redaction import redacted
from slipway_common.database.postgres import Connection
from slipway_common.events.lifecycle import ASKED_TO_STOP, ENDED
from slipway_provisioner import metrics
from slipway_provisioner.domain import workers as domain
from slipway_provisioner.domain.roll_out import Standing
from slipway_provisioner.domain.workers import AlreadyStopped, Change, ReportedNotice, Worker
from slipway_provisioner.store import configs, demand, pools, provider_keys, workers

CLAMP: Final = timedelta(minutes=2)  # largest time before receipt that is accepted
# Largest time after receipt. A claim that ended at the instant of a demand report has to count as ended by then, also
# if this clock is slower than that of the machine.
AHEAD: Final = timedelta(seconds=5)
DETAIL_CHARACTERS_MAX: Final = 1_000  # of an error


class UnknownWorker(Exception):
    """No worker has this id; the text is the id."""


class ForeignToken(Exception):
    """The token does not belong to the worker."""


class Answer(msgspec.Struct, frozen=True):
    """Answer to a report: the reason for the worker to stop or to leave after its task, empty if it may stay, and the
    standing of its revision. `has_task`: whether it has a task, as far as is known."""

    reason: str
    standing: Standing
    has_task: bool


class Agent(msgspec.Struct, frozen=True):
    """Sender of a report: the worker that it names, and the hash of its token."""

    worker_id: str
    token_sha256: str


async def heartbeat(tx: Connection, agent: Agent) -> Answer:
    """Record the contact."""
    worker = await _authenticated(tx, agent)
    await workers.save_without_events(tx, [worker])
    return await _answer(tx, worker, has_task=worker.has_task)


async def claimed(tx: Connection, agent: Agent, *, task_id: str, source: str, reported_at: datetime) -> Answer:
    """Record the claim of a task, which ends with the next idle or stopped report."""
    worker = await _authenticated(tx, agent)
    at = _clamped(reported_at, await pools.now(tx))
    change = domain.claimed(worker, task_id, source, at)
    new = await demand.open_claim(tx, worker, source=source, task_id=task_id, reported_at=reported_at, at=at)
    return await _save(tx, worker, change if new else None, at)


async def idle(tx: Connection, agent: Agent, reported_at: datetime) -> Answer:
    """Record the end of a task, after which the worker of a draining revision leaves."""
    worker = await _authenticated(tx, agent)
    at = _clamped(reported_at, await pools.now(tx))
    change = domain.idle(worker, at)
    ended = await demand.close_claims(tx, [worker.id], at)
    return await _save(tx, worker, change if ended else None, at)


async def error(tx: Connection, agent: Agent, kind: str, detail: str) -> Answer:
    """Record an error, without likely secrets: agents send what programs print."""
    texts = redacted(kind), redacted(detail, DETAIL_CHARACTERS_MAX)
    change = domain.error_reported(await _authenticated(tx, agent), *texts)
    await workers.save(tx, [change])
    return await _answer(tx, change[0], has_task=change[0].has_task)


async def noticed(tx: Connection, agent: Agent, notice: ReportedNotice) -> Answer:
    """Record a notice that the provider interrupts the machine, after which the worker leaves, and publish it for the
    capacity that the machine was launched from. A repeated one, and a recommendation after an interruption, change
    nothing."""
    worker = await _authenticated(tx, agent)
    capacity = await provider_keys.capacity_of(tx, worker.launch_config_id)
    changes = domain.noticed(worker, notice, capacity, await pools.now(tx))
    for change in changes:
        await workers.save(tx, [change])
        worker, _ = change
    if not changes:
        await workers.save_without_events(tx, [worker])
    return await _answer(tx, worker, has_task=worker.has_task)


async def stopped(tx: Connection, agent: Agent, reason: str, reported_at: datetime) -> Worker:
    """Record that the machine stops by itself; its task, if any, has ended."""
    worker = await _authenticated(tx, agent)
    now = await pools.now(tx)
    change = domain.stopped(worker, reason, now)
    await demand.close_claims(tx, [worker.id], _clamped(reported_at, now))
    await workers.save(tx, [change])
    return change[0]


async def _save(tx: Connection, worker: Worker, change: Change | None, at: datetime) -> Answer:
    """Save the claim or end of a task that was reported for the first time, or else the contact alone. A worker that
    was to leave after its task is asked to stop."""
    if change is None:
        await workers.save_without_events(tx, [worker])
    else:
        await workers.save(tx, [change], at=at)
        for leaving in domain.left_after_task(change[0], await pools.now(tx)):
            await workers.save(tx, [leaving])
            worker, _ = leaving
    return await _answer(tx, worker, has_task=True)


async def _answer(tx: Connection, worker: Worker, *, has_task: bool) -> Answer:
    """Answer to a worker that has a task, or has just ended one."""
    standing = await configs.standing(tx, worker.launch_config_id)
    is_stopping = worker.state in ASKED_TO_STOP
    reason = worker.reason if is_stopping else standing.leave_reason(has_task=has_task)
    return Answer(reason, standing, has_task)


async def _authenticated(tx: Connection, agent: Agent) -> Worker:
    """Lock the agent's worker; returns it with this contact. Raises UnknownWorker, ForeignToken, AlreadyStopped."""
    worker = await workers.lock_one(tx, agent.worker_id)
    if worker is None:
        raise UnknownWorker(agent.worker_id)
    if worker.token_sha256 is None or not hmac.compare_digest(worker.token_sha256, agent.token_sha256):
        raise ForeignToken("use the token returned by the registration")
    if worker.state in ENDED:
        raise AlreadyStopped(worker.reason)
    return msgspec.structs.replace(worker, token_used=True, last_seen_at=await pools.now(tx))


def _clamped(at: datetime, now: datetime) -> datetime:
    """The machine's time, clamped to the two minutes before receipt and the five seconds after it."""
    if abs(at - now) > CLAMP:
        metrics.CLAMPED.inc()
    return min(max(at, now - CLAMP), now + AHEAD)
