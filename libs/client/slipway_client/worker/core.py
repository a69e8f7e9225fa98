"""Calls of a worker to its provisioner: which one is next, and when. Pure: `now` (monotonic seconds) and chance are
arguments.

Reports are sent in order, each until it was answered, while tasks go on. Every answer may ask the worker to leave.
provisioner.py performs the calls; tasks.py (`run`) and agent.py (`wrap`) decide about tasks.
"""

from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from slipway_client.transport.backoff import Backoff, next_backoff
from slipway_client.worker.settings import Settings

INTERRUPTION: Final = "interruption"
REBALANCE: Final = "rebalance"


class Notice(msgspec.Struct, frozen=True):
    """Notice of the provider that it will interrupt the machine, at `ends_at` if it says when, or (`rebalance`) that
    it probably will."""

    kind: Literal["interruption", "rebalance"]
    ends_at: datetime | None = None

    @property
    def reason(self) -> str:
        """Reason for the worker to leave."""
        if self.kind == REBALANCE:
            return "the provider recommends replacing the machine"
        when = "soon" if self.ends_at is None else f"at {self.ends_at.astimezone(UTC):%H:%M:%S} UTC"
        return f"the provider will interrupt the machine {when}"


class Report(msgspec.Struct, frozen=True):
    """A fact that the provisioner has not acknowledged yet; `at` is when it became true (monotonic seconds). The end of
    a task names its claim, which was at `claimed_at`."""

    what: Literal["claimed", "idle", "error", "notice", "stopped"]
    at: float
    task_id: str = ""
    source: str = ""
    claimed_at: float | None = None
    kind: str = ""
    detail: str = ""
    ends_at: datetime | None = None


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker as its provisioner knows it once all `reports` are acknowledged.

    `leaving`: reason why it takes no more tasks. `refused`: reason why no more calls are made, after which its tasks
    are no longer its own. `gave_up`: the provisioner has been unavailable for too long; calls go on while a task runs.
    `stopped`: the last report was acknowledged. `poll_requested`: a caller waits for a fresh answer on whether to
    leave. `claims` are the reports of the tasks that run, up to `task_slots` at once. `rejoining`: the provisioner did
    not know the worker, which registers again, and has not answered a report since. `notices`: their kinds. `ends_at`:
    when the provider takes the machine back, if it has said so.
    """

    settings: Settings
    registered: bool = False
    rejoining: bool = False
    task_slots: int = 1
    claims: tuple[Report, ...] = ()
    reports: tuple[Report, ...] = ()
    leaving: str = ""
    refused: str = ""
    gave_up: bool = False
    stopped: bool = False
    poll_requested: bool = False
    polled_at: float = 0.0
    backoff: Backoff = Backoff()
    notices: tuple[str, ...] = ()
    ends_at: float | None = None

    @property
    def has_task(self) -> bool:
        return bool(self.claims)


class Register(msgspec.Struct, frozen=True):
    """Register with the batch secret."""


class SendReport(msgspec.Struct, frozen=True):
    """Send the oldest report."""

    report: Report


class Poll(msgspec.Struct, frozen=True):
    """Ask whether to leave: with a heartbeat while a task runs, without one between tasks."""

    heartbeat: bool


class GiveUp(msgspec.Struct, frozen=True):
    """The provisioner has not answered for `give_up_seconds`."""


class Wait(msgspec.Struct, frozen=True):
    """Do nothing until `until` (None: forever) or the next change."""

    until: float | None


Call = Register | SendReport | Poll


class Reply(msgspec.Struct, frozen=True):
    """Answer to a call: whether to leave and why, whether the provisioner knows of a task, and the task slots that it
    has registered."""

    terminate: bool = False
    reason: str = ""
    has_task: bool = True
    task_slots: int = 1


PLAIN: Final = Reply()


def next_call(worker: Worker, now: float) -> Call | GiveUp | Wait:
    """Next call to the provisioner."""
    if worker.refused or worker.stopped or (worker.leaving and not (worker.registered or worker.rejoining)):
        return Wait(None)
    # A task outlives an outage: without calls a provisioner that is back would stop the worker as unresponsive.
    since, goes_on = worker.backoff.since, worker.gave_up and worker.has_task
    give_up_at = None if since is None or goes_on else since + worker.settings.give_up_seconds
    if give_up_at is not None and give_up_at <= now:
        return GiveUp()
    if worker.backoff.retry_at > now:
        return Wait(worker.backoff.retry_at if give_up_at is None else min(worker.backoff.retry_at, give_up_at))
    if not worker.registered:
        return Register()
    if worker.reports:
        return SendReport(worker.reports[0])
    heartbeat = worker.settings.heartbeat_seconds
    due = worker.polled_at + (heartbeat if worker.has_task else min(heartbeat, worker.settings.poll_seconds))
    return Poll(heartbeat=worker.has_task) if worker.poll_requested or due <= now else Wait(due)


def answered(worker: Worker, call: Call, now: float, reply: Reply = PLAIN) -> Worker:
    """Apply an answer of the provisioner. One that knows of no task has lost its claims, which are reported again."""
    after = replace(worker, polled_at=now, backoff=Backoff(), gave_up=False)
    match call:
        case Register():
            after = replace(after, registered=True, task_slots=reply.task_slots)
        case SendReport(report):
            after = replace(after, reports=after.reports[1:], stopped=report.what == "stopped", rejoining=False)
        case Poll(heartbeat):
            after = replace(after, poll_requested=False, rejoining=False)
            if heartbeat and not reply.has_task and not after.reports:
                after = _with_reports(after, *after.claims)
    return leave(after, reply.reason or "terminated by the provisioner") if reply.terminate else after


def unanswered(worker: Worker, now: float, chance: float, retry_after_seconds: float = 0.0) -> Worker:
    """Apply a call that was not answered, or by a request to try again after some time. `chance` in [0, 1) spreads the
    retries of many workers."""
    return replace(worker, backoff=next_backoff(worker.backoff, now, chance, retry_after_seconds))


def postponed(worker: Worker, now: float, chance: float, retry_after_seconds: float = 0.0) -> Worker:
    """Apply an answer to try again once a restored database is confirmed, or there is room for the request. The
    provisioner is available, however long that takes, so that the worker does not give up."""
    after = unanswered(worker, now, chance, retry_after_seconds)
    return replace(after, backoff=replace(after.backoff, since=now))


def request_poll(worker: Worker) -> Worker:
    """Ask at once whether to leave."""
    return replace(worker, poll_requested=worker.registered and not (worker.refused or worker.stopped))


def refused(worker: Worker, why: str) -> Worker:
    """Apply a refusal: the provisioner does not know this worker any more, and its reports are dropped."""
    return replace(worker, refused=worker.refused or why, reports=(), poll_requested=False)


def unknown(worker: Worker, why: str) -> Worker:
    """Apply an answer that the provisioner does not know this worker: its database may have been restored. Register
    again, once."""
    return refused(worker, why) if worker.rejoining else replace(worker, registered=False, rejoining=True)


def gave_up(worker: Worker, why: str) -> Worker:
    """Leave, since the provisioner was unavailable for too long; make no more calls unless a task runs."""
    if worker.refused:
        return worker
    if worker.has_task:
        return replace(leave(worker, why), gave_up=True)
    return replace(refused(worker, why), gave_up=True)


def retry_now(worker: Worker, now: float) -> Worker:
    """Make the next attempt now."""
    return replace(worker, backoff=replace(worker.backoff, retry_at=min(worker.backoff.retry_at, now)))


def leave(worker: Worker, why: str) -> Worker:
    """Take no more tasks. The first reason stands."""
    return replace(worker, leaving=worker.leaving or why)


def task_started(worker: Worker, task_id: str, source: str, at: float) -> Worker:
    """Record that a task began. Idempotent for a task that runs; with one task slot another one has ended."""
    if any(claim.task_id == task_id for claim in worker.claims):
        return worker
    before = task_ended(worker, at) if worker.task_slots == 1 else worker
    claim = Report("claimed", at, task_id=task_id, source=source)
    return _with_reports(replace(before, claims=(*before.claims, claim)), claim)


def task_ended(worker: Worker, at: float, task_id: str = "") -> Worker:
    """Record that the task of this id has ended, if it runs. Without an id it is the only one: of several tasks nobody
    knows which has ended, so that they go on."""
    ended = [claim for claim in worker.claims if claim.task_id == task_id] if task_id else list(worker.claims)
    if len(ended) != 1:
        return worker
    (claim,) = ended
    end = Report("idle", at, task_id=claim.task_id, source=claim.source, claimed_at=claim.at)
    return _with_reports(replace(worker, claims=tuple(each for each in worker.claims if each is not claim)), end)


def failed(worker: Worker, kind: str, detail: str, at: float) -> Worker:
    """Record an error for the provisioner's event log."""
    return _with_reports(worker, Report("error", at, kind=kind, detail=detail))


def noticed(worker: Worker, notice: Notice, ends_at: float | None, at: float) -> Worker:
    """Record a notice, once of each kind, and leave. `ends_at`: its time by the monotonic clock."""
    if notice.kind in worker.notices:
        return worker
    report = Report("notice", at, kind=notice.kind, ends_at=notice.ends_at)
    known = replace(worker, notices=(*worker.notices, notice.kind), ends_at=ends_at)
    return leave(_with_reports(known, report), notice.reason)


def stopping(worker: Worker, at: float) -> Worker:
    """Record that the worker stops, and its tasks with it: the last report."""
    if not worker.registered or any(report.what == "stopped" for report in worker.reports):
        return worker
    return _with_reports(replace(worker, claims=()), Report("stopped", at))


def _with_reports(worker: Worker, *reports: Report) -> Worker:
    """Add reports, unless the worker was refused or its last report is queued."""
    over = worker.refused or worker.stopped or any(earlier.what == "stopped" for earlier in worker.reports)
    return worker if over else replace(worker, reports=(*worker.reports, *reports))
