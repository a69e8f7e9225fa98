"""State transitions of a worker, as functions (worker, arguments) → (worker, event). Pure.

States follow the table in slipway_api.events.lifecycle; a transition that it lacks raises IllegalTransition.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from slipway_api.events import worker as events
from slipway_api.events.lifecycle import ASKED_TO_STOP, IN_FLIGHT, REGISTERED, WAITING, State, advance
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.domain.refused_terminations import is_stuck


class Notice(StrEnum):
    """Notice that a provider takes a machine back: it probably will (`rebalance`), or it does (`interruption`)."""

    NONE = ""
    REBALANCE = "rebalance"
    INTERRUPTION = "interruption"


class ReportedNotice(msgspec.Struct, frozen=True):
    """Notice as the agent of a machine reports it. `ends_at`: when the provider terminates the machine, if known."""

    kind: Notice
    ends_at: datetime | None = None
    zone_id: str = ""

    @property
    def reason(self) -> str:
        """Reason for the worker to stop."""
        where = f" in zone {self.zone_id}" if self.zone_id else ""
        if self.kind is Notice.REBALANCE:
            return f"its provider recommends replacing the machine{where}"
        when = "" if self.ends_at is None else f" at {self.ends_at.astimezone(UTC):%H:%M:%S} UTC"
        return f"its provider will interrupt the machine{where}{when}"


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """Row of the table `worker`; fields are its columns. `may_finish`: it was asked to stop, and may finish a task that
    it has claimed. `leave_after_task`: as surplus it leaves after its task, unless it is wanted again by then.
    `drain_until`: it has reached its maximum age and leaves after its task, or at that time. `drain_left_seconds`: what
    its task has left of its drain time, of which it has had the rest. `termination_refusals`: how often its provider
    has refused to terminate its instance since `termination_refused_at`; `stuck_at`: since when it counts as stuck.
    `notice`: the last notice of its provider about its machine. `task_slots`: tasks that it runs at once, as its launch
    config said when it was requested."""

    id: str
    pool_id: str
    launch_config_id: str
    account_id: str
    image_revision: str
    state: State
    decision_id: str
    probe_permit: int | None = None
    request_id: str | None = None
    lease_id: str | None = None
    holds_unit: bool = False
    batch_id: str | None = None
    instance_id: str | None = None
    token_sha256: str | None = None
    token_used: bool = False
    not_before: datetime | None = None
    requested_at: datetime
    launched_at: datetime | None = None
    registered_at: datetime | None = None
    first_claimed_at: datetime | None = None
    idle_since: datetime | None = None
    last_seen_at: datetime | None = None
    stopping_at: datetime | None = None
    may_finish: bool = False
    drain_until: datetime | None = None
    drain_left_seconds: float | None = None
    leave_after_task: bool = False
    termination_refusals: int = 0
    termination_refused_at: datetime | None = None
    stuck_at: datetime | None = None
    notice: Notice = Notice.NONE
    task_slots: int = 1
    ended_at: datetime | None = None
    failed_at: datetime | None = None
    reason: str = ""
    traceparent: str = ""

    @property
    def has_task(self) -> bool:
        return self.state in REGISTERED and self.idle_since is None

    @property
    def is_finishing(self) -> bool:
        """True if it was asked to stop and finishes a task that it may finish. It is terminated after that task."""
        return self.state in ASKED_TO_STOP and self.may_finish and self.idle_since is None


class AlreadyStopped(Exception):
    """The worker has stopped; the text is the reason."""


Change = tuple[Worker, Any]
# For events that require an outcome when no stage has ended: every consumer ignores it.
NO_OUTCOME: Final = Outcome(Stage.UNKNOWN, Result.UNKNOWN)
PROVIDER_RUNNING: Final = "provider_running"
UNWANTED: Final = "more workers than wanted"


def _ids(worker: Worker) -> dict[str, Any]:
    return {
        "worker_id": worker.id,
        "pool_id": worker.pool_id,
        "launch_config_id": worker.launch_config_id,
        "account_id": worker.account_id,
        "image_revision": worker.image_revision,
        "probe_permit": worker.probe_permit,
    }


def _to(worker: Worker, event: str, **fields: Any) -> Worker:
    return msgspec.structs.replace(worker, state=advance(worker.state, event), **fields)


def requested(worker: Worker) -> Change:
    """First event of a new intent."""
    return worker, events.WorkerRequested(**_ids(worker), decision_id=worker.decision_id)


def admitted(worker: Worker, lease_id: str) -> Worker:
    """Assign a unit of a lease. Emits no event, since the lease's events record it."""
    return msgspec.structs.replace(worker, lease_id=lease_id, holds_unit=True)


def held_units(workers: Iterable[Worker]) -> Mapping[str, int]:
    """Units that workers hold, per lease."""
    return Counter(worker.lease_id for worker in workers if worker.holds_unit and worker.lease_id is not None)


def without_units(workers: Iterable[Worker]) -> list[Worker]:
    """The workers after their units were released."""
    return [msgspec.structs.replace(worker, holds_unit=False) for worker in workers]


def calling(worker: Worker, batch_id: str) -> Worker:
    """Its provider call is committed. No event: the result is published. Clears the reason for the delay, which would
    otherwise be shown as the reason for its end."""
    return _to(worker, "calling", batch_id=batch_id, reason="")


def delayed(worker: Worker, reason: str, *, not_before: datetime | None = None) -> Change:
    """Return to waiting for admission, under a new request."""
    after = _to(
        worker,
        "delayed",
        reason=reason,
        request_id=None,
        lease_id=None,
        holds_unit=False,
        batch_id=None,
        not_before=not_before,
    )
    return after, events.WorkerDelayed(**_ids(worker), reason=reason)


def cancelled(worker: Worker, reason: str, now: datetime) -> Change:
    """Cancelled before a provider call was made."""
    after = _to(worker, "stopped", reason=reason, ended_at=now)
    return after, events.WorkerStopped(**_ids(worker), reason=reason, cancelled=True)


def launched(worker: Worker, instance_id: str, now: datetime, *, looked_up: bool, console: str = "") -> Change:
    """The provider launched its instance, which is known already if the worker has registered. `console`: location of
    the console output."""
    after = _to(worker, "launched", instance_id=instance_id, launched_at=now)
    return after, events.WorkerLaunched(
        **_ids(worker),
        instance_id=instance_id,
        batch_id=worker.batch_id or "",
        looked_up=looked_up,
        outcome=Outcome(Stage.LAUNCH, Result.OK),
        console=console,
        leaving=worker.state in ASKED_TO_STOP,
    )


def launch_failed(worker: Worker, outcome: Outcome, now: datetime) -> Change:
    """The provider certainly refused the launch."""
    after = _to(worker, "launch_failed", reason=outcome.code, ended_at=now, failed_at=now)
    return after, events.WorkerLaunchFailed(**_ids(worker), batch_id=worker.batch_id or "", outcome=outcome)


def registered(worker: Worker, instance_id: str, token_sha256: str, now: datetime) -> Change:
    """The machine registered; it is idle until it claims a task. For a stopping worker no stage ends."""
    return _registered(worker, now, instance_id=instance_id, token_sha256=token_sha256, last_seen_at=now)


def seen_running(worker: Worker, now: datetime) -> Change:
    """The provider reports the instance as running, which is the pool's boot evidence. There is no agent contact."""
    return _registered(worker, now, code=PROVIDER_RUNNING)


def adopted(worker: Worker, now: datetime) -> Change:
    """Take over an orphan instance. No stage of its start ends, then or later. It counts as just seen, since its agent
    has yet to find that its token is unknown, and to register again."""
    after = _to(worker, "registered", registered_at=now, first_claimed_at=now, idle_since=now, last_seen_at=now)
    return after, events.WorkerRegistered(
        **_ids(worker), instance_id=worker.instance_id or "", boot_seconds=0.0, outcome=NO_OUTCOME
    )


def _registered(worker: Worker, now: datetime, *, code: str = "", **fields: Any) -> Change:
    since = worker.launched_at or worker.requested_at
    after = _to(worker, "registered", registered_at=now, idle_since=now, **fields)
    return after, events.WorkerRegistered(
        **_ids(worker),
        instance_id=after.instance_id or "",
        boot_seconds=max(0.0, (now - since).total_seconds()),
        outcome=NO_OUTCOME if worker.state in ASKED_TO_STOP else Outcome(Stage.BOOT, Result.OK, code=code),
    )


def claimed(worker: Worker, task_id: str, source: str, at: datetime) -> Change:
    """Claimed a task. The first claim ends the claim stage, unless the worker is stopping."""
    first = worker.first_claimed_at is None and worker.state not in ASKED_TO_STOP
    after = _to(worker, "claimed", idle_since=None, first_claimed_at=worker.first_claimed_at or at)
    return after, events.WorkerClaimed(
        **_ids(worker), task_id=task_id, source=source, outcome=Outcome(Stage.CLAIM, Result.OK) if first else None
    )


def idle(worker: Worker, at: datetime) -> Change:
    return _to(worker, "idle", idle_since=at, drain_left_seconds=None), events.WorkerIdle(**_ids(worker))


def error_reported(worker: Worker, kind: str, detail: str) -> Change:
    after = _to(worker, "error_reported")
    return after, events.WorkerErrorReported(**_ids(worker), kind=kind, detail=detail)


def stopping(worker: Worker, reason: str, now: datetime, outcome: Outcome | None = None, console: str = "") -> Change:
    """Ask the worker to stop. `console`: location of the console output."""
    failed_at = now if _is_failed(outcome) else worker.failed_at
    after = _to(worker, "stopping", reason=reason, stopping_at=now, failed_at=failed_at)
    return after, events.WorkerStopping(
        **_ids(worker), reason=reason, outcome=outcome, instance_id=worker.instance_id or "", console=console
    )


def stopping_idle(
    worker: Worker, reason: str, now: datetime, outcome: Outcome | None = None, console: str = ""
) -> Change:
    """Ask a worker to stop that may finish a task: usually it is idle, and may claim one at this moment."""
    after, event = stopping(worker, reason, now, outcome, console)
    return msgspec.structs.replace(after, may_finish=True), event


def noticed(worker: Worker, notice: ReportedNotice, capacity_key: str, now: datetime) -> list[Change]:
    """Record that a worker's provider takes its machine back, and ask the worker to stop, unless it was asked before:
    it may finish its task, if the machine lasts. No stage ends by it. Without changes for a notice that is no news."""
    if notice.kind is worker.notice or worker.notice is Notice.INTERRUPTION:
        return []
    known, reason = msgspec.structs.replace(worker, notice=notice.kind), notice.reason
    event = events.WorkerNoticed(
        **_ids(worker),
        kind=events.Notice(notice.kind),
        capacity_key=capacity_key,
        reason=reason,
        ends_at=notice.ends_at,
    )
    changes: list[Change] = [(known, event)]
    if worker.state not in ASKED_TO_STOP:
        changes.append(stopping_idle(known, reason, now))
    return changes


def left_after_task(worker: Worker, now: datetime) -> list[Change]:
    """Ask a worker to stop that was to leave after its task, now that one has ended; no change for any other. Further
    tasks it may finish."""
    leaves = worker.leave_after_task and worker.state in REGISTERED
    return [stopping_idle(worker, UNWANTED, now)] if leaves else []


def marked(worker: Worker, *, leave: bool) -> Worker:
    """Have a worker leave after its task, or stay. No event: it serves until then."""
    return msgspec.structs.replace(worker, leave_after_task=leave)


def draining(worker: Worker, until: datetime) -> Worker:
    """Have a worker of full age leave after its task, or at a time. No event: it serves until then."""
    return msgspec.structs.replace(worker, drain_until=until, drain_left_seconds=None)


def not_draining(worker: Worker, now: datetime) -> Worker:
    """Have it stay. Its task keeps what is left of its drain time."""
    if worker.drain_until is None:
        return worker
    left = max(0.0, (worker.drain_until - now).total_seconds())
    return msgspec.structs.replace(worker, drain_until=None, drain_left_seconds=left)


def with_new_task(worker: Worker) -> Worker:
    """Forget what its former task had left of its drain time. One that drains goes on with it."""
    return msgspec.structs.replace(worker, drain_left_seconds=None)


def termination_refused(worker: Worker, now: datetime, *, stuck_after_seconds: float) -> Worker:
    """Count a definite refusal to terminate its instance. No event: it has left already."""
    since = worker.termination_refused_at or now
    refusals = worker.termination_refusals + 1
    stuck = is_stuck(refusals, (now - since).total_seconds(), stuck_after_seconds=stuck_after_seconds)
    return msgspec.structs.replace(
        worker,
        termination_refusals=refusals,
        termination_refused_at=since,
        stuck_at=worker.stuck_at or (now if stuck else None),
    )


def termination_accepted(worker: Worker) -> Worker:
    """Forget earlier refusals to terminate its instance."""
    return msgspec.structs.replace(worker, termination_refusals=0, termination_refused_at=None, stuck_at=None)


def hastened(worker: Worker, reason: str, now: datetime) -> Worker:
    """Give a worker that finishes a task no more than the grace period. No event: it was asked to stop before."""
    return msgspec.structs.replace(worker, reason=reason, stopping_at=now, may_finish=False)


def terminated(worker: Worker, reason: str, now: datetime) -> Change:
    """Terminated by a person. No stage ends by it, since terminating a worker is no evidence about its start."""
    if worker.state in WAITING:
        return cancelled(worker, reason, now)
    return stopping(worker, reason, now)


def stopped(worker: Worker, reason: str, now: datetime) -> Change:
    """Its instance is gone."""
    after = _to(worker, "stopped", reason=worker.reason or reason, ended_at=now)
    return after, events.WorkerStopped(**_ids(worker), reason=reason)


def lost(worker: Worker, reason: str, now: datetime, outcome: Outcome | None = None) -> Change:
    """Its instance vanished unexpectedly. Fails the boot stage if it never registered."""
    if outcome is None and worker.state in IN_FLIGHT["boot"]:
        outcome = Outcome(Stage.BOOT, Result.FAILED, Scope.CONFIG, worker.launch_config_id, "vanished")
    failed_at = now if _is_failed(outcome) else worker.failed_at
    after = _to(worker, "lost", reason=reason, ended_at=now, failed_at=failed_at)
    return after, events.WorkerLost(
        **_ids(worker), reason=reason, outcome=outcome, instance_id=worker.instance_id or ""
    )


def ended_stage(event: Any) -> tuple[str, str, bool] | None:
    """(config, stage, failed) counted for an event: every failure, whatever its scope, and every successful launch.
    None for other events."""
    outcome: Outcome | None = getattr(event, "outcome", None)
    if outcome is None:
        return None
    failed = _is_failed(outcome)
    if not failed and (outcome.stage, outcome.result) != (Stage.LAUNCH, Result.OK):
        return None
    return event.launch_config_id, outcome.stage.value, failed


def _is_failed(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.result is Result.FAILED
