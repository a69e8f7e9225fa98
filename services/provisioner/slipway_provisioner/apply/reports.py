"""Reports of a worker's agent: claim, end of a task, error, notice of the provider, stop of the machine, heartbeat.

Each locks the worker by the agent's token and records the contact. Repeated reports, and ends of unknown claims,
change nothing else; a worker that has a task is never refused. Impossible reports raise IllegalTransition.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from slipway_api.events.lifecycle import ASKED_TO_STOP, ENDED
from slipway_common.base.redaction import redacted
from slipway_common.database.postgres import Connection
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.domain import workers as domain
from slipway_provisioner.domain.ageing import REASON
from slipway_provisioner.domain.claims import CLAMP, Claim, End, is_ambiguous, open_claims, with_claim, with_end
from slipway_provisioner.domain.roll_out import Standing
from slipway_provisioner.domain.workers import AlreadyStopped, ReportedNotice, Worker
from slipway_provisioner.store import configs, demand, errors, pools, provider_keys, workers

LOG = logger(__name__)
# Largest time after receipt. A claim that ended at the instant of a demand report has to count as ended by then, also
# if this clock is slower than that of the machine.
AHEAD: Final = timedelta(seconds=5)
DETAIL_CHARACTERS_MAX: Final = 1_000  # of an error
# Errors that an agent makes in its reports, by their codes.
MISTAKES: Final = {
    "claim-above-slots": "a claim above its task slots counts nowhere; declare task_slots of its launch config",
    "unknown-source": "a claim's source is none of its pool's and counts nowhere; see slipway demand ls, and name it "
    "as `source` in the settings of its launch config",
    "unnamed-end": "the end of a task does not say which of several; name it: slipway-worker hook idle TASK",
    "claims-too-many": f"more than {demand.ENDED_MAX} tasks of a slot ended in five minutes; more publish no events",
}


class UnknownWorker(Exception):
    """No worker has this id; the text is the id."""


class ForeignToken(Exception):
    """The token does not belong to the worker."""

    def __init__(self) -> None:
        super().__init__("use the token returned by the registration")


class Answer(msgspec.Struct, frozen=True):
    """Answer to a report: the reason for the worker to stop or to leave after its task, empty if it may stay, and the
    standing of its revision. `has_task`: whether it has a task, as far as is known. `within_slots`: the report was a
    new claim within the task slots, or the end of one."""

    reason: str
    standing: Standing
    has_task: bool
    within_slots: bool = False


class ReportedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Claim of a task, at the worker's time and in its words."""

    task_id: str
    source: str
    claimed_at: str
    at: datetime


class ReportedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """End of a task, at the worker's time. A worker that reports none of the others has but one task at a time."""

    at: datetime
    task_id: str = ""
    source: str = ""
    claimed_at: str = ""


class Agent(msgspec.Struct, frozen=True):
    """Sender of a report: the worker that it names, and the hash of its token."""

    worker_id: str
    token_sha256: str


async def identify(db: Connection, agent: Agent) -> None:
    """Look an agent up, without a lock. Raises UnknownWorker, ForeignToken."""
    worker = await workers.get(db, agent.worker_id)
    if worker is None:
        raise UnknownWorker(agent.worker_id)
    if worker.token_sha256 != agent.token_sha256:
        raise ForeignToken


async def heartbeat(tx: Connection, agent: Agent) -> Answer:
    """Record the contact."""
    worker = await _authenticated(tx, agent)
    await workers.touch(tx, worker)
    return await _answer(tx, worker, has_task=worker.has_task)


async def claimed(tx: Connection, agent: Agent, claim: ReportedClaim) -> tuple[Answer, bool]:
    """Record the claim of a task, which ends with its report, the next claim of the one task slot, or the worker.

    Returns the answer, and whether the claim is within the task slots. One above them still protects the worker,
    and counts nowhere else.
    """
    worker = await _authenticated(tx, agent)
    at = _clamped(claim.at, await pools.now(tx))
    new = Claim(
        source=claim.source, task_id=claim.task_id, claimed_at=claim.claimed_at, reported_at=claim.at, started_at=at
    )
    known = await demand.known_claims(tx, worker, new.key, at)
    is_new = all(each.key != new.key for each in known)
    if is_new and len(open_claims(known)) >= worker.task_slots + demand.ABOVE_SLOTS_MAX:
        return await _save(tx, worker, None, at), False
    claims = with_claim(known, new, worker.task_slots)
    is_counted = next(each.counted for each in claims if each.key == new.key)
    if not is_counted:
        await _note(tx, worker, "claim-above-slots")
    if is_new and await demand.is_unknown(tx, worker.pool_id, claim.source):
        await _note(tx, worker, "unknown-source")
    is_published = await _save_claims(tx, worker, known, claims, at) and is_new
    after, event = domain.claimed(worker, claim.task_id, claim.source, at)
    if not open_claims(claims):  # a claim that came late has ended by now
        after = msgspec.structs.replace(after, idle_since=worker.idle_since)
    if not {each.key for each in open_claims(known)} & {each.key for each in open_claims(claims)}:
        after = domain.with_new_task(after)
    ended = len(open_claims(claims)) < len(open_claims(known)) + is_new
    answer = await _save(tx, after, event if is_published else None, at, ended=ended)
    return msgspec.structs.replace(answer, within_slots=is_published and is_counted), is_counted


async def idle(tx: Connection, agent: Agent, end: ReportedEnd) -> tuple[Answer, int]:
    """Record the end of a task; without another the worker is idle, and that of a draining revision leaves. Returns the
    answer, and the number of tasks that ended by it."""
    worker = await _authenticated(tx, agent)
    at = _clamped(end.at, await pools.now(tx))
    ended = End(at=at, reported_at=end.at, source=end.source, task_id=end.task_id, claimed_at=end.claimed_at)
    known = await demand.known_claims(tx, worker, ended.key, at)
    if is_ambiguous(known, ended):
        await _note(tx, worker, "unnamed-end")
        return await _save(tx, worker, None, at), 0
    claims = with_end(known, ended, worker.task_slots)
    is_published = await _save_claims(tx, worker, known, claims, at)
    number = len(open_claims(known)) - len(open_claims(claims))
    event = None
    if number and not open_claims(claims):
        worker, event = domain.idle(worker, max(each.ended_at for each in claims if each.ended_at is not None))
    answer = await _save(tx, worker, event if is_published else None, at, ended=number > 0)
    return msgspec.structs.replace(answer, within_slots=is_published and number > 0), number


async def error(tx: Connection, agent: Agent, kind: str, detail: str) -> Answer:
    """Record an error, without likely secrets: agents send what programs print. One above the number that is stored of
    a worker is only counted."""
    texts = redacted(kind), redacted(detail, DETAIL_CHARACTERS_MAX)
    worker = await _authenticated(tx, agent)
    if await errors.record(tx, worker, *texts):
        change = domain.error_reported(worker, *texts)
        await workers.save(tx, [change])
        worker, _ = change
    else:
        await workers.save_without_events(tx, [worker])
    return await _answer(tx, worker, has_task=worker.has_task)


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


async def _note(tx: Connection, worker: Worker, code: str) -> None:
    """Store a mistake in a worker's reports among its errors, and log it; once, since it may be in each of them."""
    if await errors.record_once(tx, worker, code, MISTAKES[code]):
        LOG.warning(MISTAKES[code], worker=worker.id, pool=worker.pool_id, launch_config=worker.launch_config_id)


async def _save_claims(
    tx: Connection, worker: Worker, known: Sequence[Claim], claims: Sequence[Claim], at: datetime
) -> bool:
    """Store claims; False if more have ended lately than are stored. Their events are not published, since made-up
    claims could fill the topic."""
    if await demand.save_claims(tx, worker, known, claims, at):
        await _note(tx, worker, "claims-too-many")
        return False
    return True


async def _save(tx: Connection, worker: Worker, event: Any, at: datetime, *, ended: bool = False) -> Answer:
    """Save a worker that has a task, or has just ended one, with the event of a first report. One that was to leave
    after its task is asked to stop if a task has `ended`."""
    if event is None:
        await workers.save_without_events(tx, [worker])
    else:
        await workers.save(tx, [(worker, event)], at=at)
    for leaving in domain.left_after_task(worker, await pools.now(tx)) if ended else ():
        await workers.save(tx, [leaving])
        worker, _ = leaving
    return await _answer(tx, worker, has_task=True, ended=ended)


async def _answer(tx: Connection, worker: Worker, *, has_task: bool, ended: bool = False) -> Answer:
    """Answer to a worker that has a task, or has just ended one. One of full age hears only when a task has `ended`, or
    when it has none, that it leaves, since its mark may be revoked until then."""
    standing = await configs.standing(tx, worker.launch_config_id)
    is_stopping = worker.state in ASKED_TO_STOP
    aged = REASON if worker.drain_until is not None and (ended or worker.idle_since is not None) else ""
    reason = worker.reason if is_stopping else standing.leave_reason(has_task=has_task) or aged
    return Answer(reason, standing, has_task)


async def _authenticated(tx: Connection, agent: Agent) -> Worker:
    """Lock the agent's worker; returns it with this contact. Raises UnknownWorker, ForeignToken, AlreadyStopped."""
    worker = await workers.lock_own(tx, agent.worker_id, agent.token_sha256)
    if worker is None and await workers.get(tx, agent.worker_id) is None:
        raise UnknownWorker(agent.worker_id)
    if worker is None:
        raise ForeignToken
    if worker.state in ENDED:
        raise AlreadyStopped(worker.reason)
    return msgspec.structs.replace(worker, token_used=True, last_seen_at=await pools.now(tx))


def _clamped(at: datetime, now: datetime) -> datetime:
    """The machine's time, clamped to the two minutes before receipt and the five seconds after it."""
    if abs(at - now) > CLAMP:
        metrics.CLAMPED.inc()
    return min(max(at, now - CLAMP), now + AHEAD)
