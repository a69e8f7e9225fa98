"""One worker as a value: every fact about it is a function (worker, fact) → (worker, events). Pure.

States come from the table in slipway_common.lifecycle; an impossible fact raises IllegalTransition.
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from slipway_common.events import worker as events
from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_common.lifecycle import State, advance


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `worker`; fields are its columns, in the units of their names."""

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
    heard_at: datetime | None = None
    stopping_at: datetime | None = None
    ended_at: datetime | None = None
    failed_at: datetime | None = None
    reason: str = ""
    traceparent: str = ""


Change = tuple[Worker, Any]
# Where the contract asks for an outcome and no stage has ended: words that every reader leaves alone.
MOVES_NOTHING: Final = Outcome(Stage.UNKNOWN, Result.UNKNOWN)
PROVIDER_RUNNING: Final = "provider_running"


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
    """The first event of a new intent."""
    return worker, events.WorkerRequested(**_ids(worker), decision_id=worker.decision_id)


def calling(worker: Worker, batch_id: str) -> Worker:
    """A provider call for it is committed. No event: subscribers hear of the result. Why it had to wait is over, and
    would be taken for why it ends."""
    return _to(worker, "calling", batch_id=batch_id, reason="")


def delayed(worker: Worker, reason: str, *, not_before: datetime | None = None) -> Change:
    """Back to waiting for admission, under a new request."""
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
    """Given up before anything was asked of the provider."""
    after = _to(worker, "stopped", reason=reason, ended_at=now)
    return after, events.WorkerStopped(**_ids(worker), reason=reason, cancelled=True)


def launched(worker: Worker, instance_id: str, now: datetime, *, looked_up: bool, console: str = "") -> Change:
    """The provider said yes; a worker that registered before has its instance already. `console`: where to read what
    the machine prints."""
    after = _to(worker, "launched", instance_id=instance_id, launched_at=now)
    return after, events.WorkerLaunched(
        **_ids(worker),
        instance_id=instance_id,
        batch_id=worker.batch_id or "",
        looked_up=looked_up,
        outcome=Outcome(Stage.LAUNCH, Result.OK),
        console=console,
        leaving=worker.state is State.STOPPING,
    )


def launch_failed(worker: Worker, outcome: Outcome, now: datetime) -> Change:
    """The provider refused, for certain."""
    after = _to(worker, "launch_failed", reason=outcome.code, ended_at=now, failed_at=now)
    return after, events.WorkerLaunchFailed(**_ids(worker), batch_id=worker.batch_id or "", outcome=outcome)


def registered(worker: Worker, instance_id: str, token_sha256: str, now: datetime) -> Change:
    """The machine reported in; idle until it claims. The stages of one that was told to leave have ended."""
    return _up(worker, now, instance_id=instance_id, token_sha256=token_sha256, heard_at=now)


def seen_running(worker: Worker, now: datetime) -> Change:
    """The provider says that its instance runs, and its pool asks for no more. Nobody was heard from."""
    return _up(worker, now, code=PROVIDER_RUNNING)


def _up(worker: Worker, now: datetime, *, code: str = "", **fields: Any) -> Change:
    since = worker.launched_at or worker.requested_at
    after = _to(worker, "registered", registered_at=now, idle_since=now, **fields)
    return after, events.WorkerRegistered(
        **_ids(worker),
        instance_id=after.instance_id or "",
        boot_seconds=max(0.0, (now - since).total_seconds()),
        outcome=MOVES_NOTHING if worker.state is State.STOPPING else Outcome(Stage.BOOT, Result.OK, code=code),
    )


def claimed(worker: Worker, task_id: str, source: str, at: datetime) -> Change:
    """Took a task; the first one ends the claim stage, unless being told to leave has."""
    first = worker.first_claimed_at is None and worker.state is not State.STOPPING
    after = _to(worker, "claimed", idle_since=None, first_claimed_at=worker.first_claimed_at or at)
    return after, events.WorkerClaimed(
        **_ids(worker), task_id=task_id, source=source, outcome=Outcome(Stage.CLAIM, Result.OK) if first else None
    )


def idle(worker: Worker, at: datetime) -> Change:
    return _to(worker, "idle", idle_since=at), events.WorkerIdle(**_ids(worker))


def error_reported(worker: Worker, kind: str, detail: str) -> Change:
    after = _to(worker, "error_reported")
    return after, events.WorkerErrorReported(**_ids(worker), kind=kind, detail=detail)


def stopping(worker: Worker, reason: str, now: datetime, outcome: Outcome | None = None, console: str = "") -> Change:
    """Told to leave. `console`: where to read what the machine has printed."""
    failed_at = now if _is_failed(outcome) else worker.failed_at
    after = _to(worker, "stopping", reason=reason, stopping_at=now, failed_at=failed_at)
    return after, events.WorkerStopping(
        **_ids(worker), reason=reason, outcome=outcome, instance_id=worker.instance_id or "", console=console
    )


def terminated(worker: Worker, reason: str, now: datetime) -> Change:
    """Ended by a person's command. No stage ends by it: that we end a worker says nothing about its start."""
    if worker.state is State.REQUESTED:
        return cancelled(worker, reason, now)
    return stopping(worker, reason, now)


def stopped(worker: Worker, reason: str, now: datetime) -> Change:
    """Proven gone."""
    after = _to(worker, "stopped", reason=worker.reason or reason, ended_at=now)
    return after, events.WorkerStopped(**_ids(worker), reason=reason)


def lost(worker: Worker, reason: str, now: datetime, outcome: Outcome | None = None) -> Change:
    """Vanished without our doing. Ends the boot stage of one that never registered."""
    if outcome is None and worker.state is State.STARTING:
        outcome = Outcome(Stage.BOOT, Result.FAILED, Scope.CONFIG, worker.launch_config_id, "vanished")
    failed_at = now if _is_failed(outcome) else worker.failed_at
    after = _to(worker, "lost", reason=reason, ended_at=now, failed_at=failed_at)
    return after, events.WorkerLost(
        **_ids(worker), reason=reason, outcome=outcome, instance_id=worker.instance_id or ""
    )


def ended_stage(event: Any) -> tuple[str, str, bool] | None:
    """(config, stage, failed) that an event counts for: every failure, whatever its scope, and launches that succeeded.
    None if it counts for nothing."""
    outcome: Outcome | None = getattr(event, "outcome", None)
    if outcome is None:
        return None
    failed = _is_failed(outcome)
    if not failed and (outcome.stage, outcome.result) != (Stage.LAUNCH, Result.OK):
        return None
    return event.launch_config_id, outcome.stage.value, failed


def _is_failed(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.result is Result.FAILED
