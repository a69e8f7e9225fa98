"""Decisions of `slipway-worker run` about tasks: claim them, run one at a time, finish them at the queue. Pure.

A task that the worker terminates is not finished at the queue: its claim expires there, and the task waits again.
"""

from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from slipway_api import limits
from slipway_client.transport.backoff import Backoff, next_backoff
from slipway_client.worker import core
from slipway_client.worker.core import Wait, Worker

# Long poll of the queue for a task.
WAIT_SECONDS: Final = 20.0
# Renewals of a claim before it would expire.
RENEWALS: Final = 3
# Time between SIGTERM and SIGKILL of a task that may not go on, at most stop_seconds.
KILL_SECONDS: Final = 5.0
# Time between SIGTERM of a task and the end of a machine that its provider takes back: for SIGKILL and the last report.
END_SECONDS: Final = 15.0


Name = Annotated[limits.Name, msgspec.Meta(min_length=1)]


class Task(msgspec.Struct, frozen=True):
    """A task as the queue hands it out."""

    task_id: Name
    command: tuple[str, ...]
    source: Name
    claim_seconds: Annotated[float, msgspec.Meta(gt=0)]

    def __post_init__(self) -> None:
        """Refuse names that the provisioner refuses: it would refuse the worker, too."""
        for what, name in (("task_id", self.task_id), ("source", self.source)):
            if wrong := limits.NAME.problem(name):
                raise ValueError(f"{what} {wrong}")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and its task. `lost`: another worker has the claim. `signals`: number of stop signals received, the
    first at `signalled_at`. `terminated_at`: when SIGTERM was sent to the task. `exit_code`: to be reported to the
    queue."""

    worker: Worker
    free_since: float
    task: Task | None = None
    started: bool = False
    renew_at: float = 0.0
    lost: bool = False
    terminated_at: float | None = None
    killed: bool = False
    exit_code: int | None = None
    exited_at: float = 0.0
    tasks_done: int = 0
    signals: int = 0
    signalled_at: float = 0.0
    backoff: Backoff = Backoff()


class Claim(msgspec.Struct, frozen=True):
    """Claim a task, waiting up to `wait_seconds` for one."""

    wait_seconds: float


class StartTask(msgspec.Struct, frozen=True):
    """Start the task's process."""

    task: Task


class Renew(msgspec.Struct, frozen=True):
    """Renew the task's claim."""

    task: Task


class Terminate(msgspec.Struct, frozen=True):
    """Terminate the task's processes: with SIGTERM, or with SIGKILL if `kill`."""

    kill: bool


class Finish(msgspec.Struct, frozen=True):
    """Report the task's exit code to the queue."""

    task: Task
    exit_code: int


class Quit(msgspec.Struct, frozen=True):
    """Leave: there was no task for `idle_exit_seconds`."""


Work = Claim | StartTask | Renew | Terminate | Finish | Quit | Wait


def next_work(run: Run, now: float) -> Work:
    """Next action about tasks."""
    if run.task is None:
        return _between_tasks(run, now)
    if not run.started:
        return StartTask(run.task)
    if run.exit_code is not None:
        return Wait(run.backoff.retry_at) if run.backoff.retry_at > now else Finish(run.task, run.exit_code)
    if run.terminated_at is not None:
        if run.killed:
            return Wait(None)
        kill_at = run.terminated_at + min(KILL_SECONDS, run.worker.settings.stop_seconds)
        return Terminate(kill=True) if kill_at <= now else Wait(kill_at)
    end_at = _end_at(run)
    if end_at is not None and end_at <= now:
        return Terminate(kill=False)
    renew_at = max(run.renew_at, run.backoff.retry_at)
    if renew_at <= now:
        return Renew(run.task)
    return Wait(renew_at if end_at is None else min(renew_at, end_at))


def _between_tasks(run: Run, now: float) -> Work:
    worker, idle_exit = run.worker, run.worker.settings.idle_exit_seconds
    # Pending reports come first: an answer to them may ask this worker to leave.
    if not worker.registered or worker.reports or worker.leaving or worker.refused:
        return Wait(None)
    quit_at = float("inf") if idle_exit is None else run.free_since + idle_exit
    if quit_at <= now:
        return Quit()
    if run.backoff.retry_at > now:
        return Wait(min(run.backoff.retry_at, quit_at))
    return Claim(min(WAIT_SECONDS, quit_at - now))


def _end_at(run: Run) -> float | None:
    """Time at which the task has to be terminated; None while it may go on."""
    if run.lost or run.worker.refused or run.signals > 1:
        return 0.0
    ends: list[float] = []
    if run.worker.ends_at is not None:
        ends.append(run.worker.ends_at - END_SECONDS)
    if run.signals:
        ends.append(run.signalled_at + run.worker.settings.stop_seconds)
    if run.worker.gave_up and run.task is not None:
        # With the provisioner unavailable, only the claim shows that the task is still wanted: it may run until the
        # claim expires, unless the queue renews it.
        ends.append(run.renew_at + run.task.claim_seconds * (1 - 1 / RENEWALS))
    return min(ends, default=None)


def exit_code(run: Run) -> int | None:
    """Exit code of the process; None while there is something to do. A second signal ends the wait for an unavailable
    provisioner."""
    worker = run.worker
    if run.task is not None:
        return None
    if worker.stopped or (worker.leaving and not worker.registered):
        return 0
    return 1 if worker.refused or (run.signals > 1 and worker.backoff.since is not None) else None


# Transitions


def worker_changed(run: Run, worker: Worker, now: float) -> Run:
    """Apply a change of the worker."""
    free_since = run.free_since if run.worker.registered or not worker.registered else now
    return _settled(replace(run, worker=worker, free_since=free_since), now)


def claimed(run: Run, task: Task | None, now: float) -> Run:
    """Apply the queue's answer. A task that arrives after the worker began to leave is not taken: its claim expires."""
    if task is None or run.worker.leaving or run.worker.refused:
        return replace(run, backoff=Backoff())
    worker = core.task_started(run.worker, task.task_id, task.source, now)
    renew_at = now + task.claim_seconds / RENEWALS
    return replace(run, worker=worker, task=task, renew_at=renew_at, backoff=Backoff())


def started(run: Run) -> Run:
    return replace(run, started=True)


def renewed(run: Run, now: float, *, lost: bool = False) -> Run:
    """Apply the queue's answer to a renewal; `lost`: the claim is no longer this worker's."""
    if run.task is None:
        return run
    return replace(run, renew_at=now + run.task.claim_seconds / RENEWALS, lost=lost, backoff=Backoff())


def terminated(run: Run, now: float, *, kill: bool) -> Run:
    return replace(run, terminated_at=now if run.terminated_at is None else run.terminated_at, killed=kill)


def exited(run: Run, exit_code: int, now: float) -> Run:
    """Apply the exit of the task's process. A terminated task is not finished at the queue."""
    if run.lost or run.terminated_at is not None:
        return _task_over(run, now)
    return replace(run, exit_code=exit_code, exited_at=now, backoff=Backoff())


def finished(run: Run, now: float) -> Run:
    """Apply the queue's answer to a finish: acknowledged, or the claim was lost."""
    return _task_over(replace(run, tasks_done=run.tasks_done + 1), now)


def queue_unanswered(run: Run, now: float, chance: float) -> Run:
    """Apply a call that the queue did not answer. An exit code is dropped after `give_up_seconds`."""
    if run.exit_code is not None and run.exited_at + run.worker.settings.give_up_seconds <= now:
        return finished(run, now)
    return replace(run, backoff=next_backoff(run.backoff, now, chance))


def signalled(run: Run, why: str, now: float) -> Run:
    """Apply a stop signal: the task is finished first; a second signal terminates it."""
    first = now if not run.signals else run.signalled_at
    after = replace(run, signals=run.signals + 1, signalled_at=first, worker=core.leave(run.worker, why))
    return _settled(after, now)


def quitting(run: Run, now: float) -> Run:
    return _settled(replace(run, worker=core.leave(run.worker, "no task for too long")), now)


def _task_over(run: Run, now: float) -> Run:
    """Clear the task. The worker leaves after `tasks_per_worker` of them."""
    most, worker = run.worker.settings.tasks_per_worker, run.worker
    if most is not None and run.tasks_done >= most:
        worker = core.leave(worker, f"{most} task{'' if most == 1 else 's'} done")
    worker = core.stopping(worker, now) if worker.leaving else core.task_ended(worker, now)
    return Run(
        worker=worker, free_since=now, tasks_done=run.tasks_done, signals=run.signals, signalled_at=run.signalled_at
    )


def _settled(run: Run, now: float) -> Run:
    """Stop the worker if it leaves and has no task."""
    if run.task is None and run.worker.leaving:
        return replace(run, worker=core.stopping(run.worker, now))
    return run
