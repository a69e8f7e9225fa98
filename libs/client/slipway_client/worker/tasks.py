"""What `slipway-worker run` does about tasks: claims them, runs one at a time, says that they have ended. Pure.

A task that the worker cuts short is not finished at the queue: its claim runs out there, and it waits again.
"""

from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from slipway_client.worker import core
from slipway_client.worker.core import Silence, Worker

# How long the queue may hold an answer back until there is a task.
WAIT_SECONDS: Final = 20.0
# A claim is renewed three times before it runs out.
RENEWALS: Final = 3
# What a task gets between SIGTERM and SIGKILL once it may not go on, but not more than stop_seconds.
KILL_SECONDS: Final = 5.0


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Task(msgspec.Struct, frozen=True):
    """As the queue gives it."""

    task_id: Name
    command: tuple[str, ...]
    source: Name
    claim_seconds: Annotated[float, msgspec.Meta(gt=0)]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and its task. `lost`: the claim is somebody else's. `signals`: how often it was asked to end, first at
    `signalled_at`. `cut_at`: when the task was told to end. `exit_code`: what the queue has to hear."""

    worker: Worker
    free_since: float
    task: Task | None = None
    started: bool = False
    renew_at: float = 0.0
    lost: bool = False
    cut_at: float | None = None
    killed: bool = False
    exit_code: int | None = None
    exited_at: float = 0.0
    tasks_done: int = 0
    signals: int = 0
    signalled_at: float = 0.0
    silence: Silence = Silence()


class Claim(msgspec.Struct, frozen=True):
    """Ask the queue for a task, and wait this long for one."""

    wait_seconds: float


class Start(msgspec.Struct, frozen=True):
    """Start the task's process."""

    task: Task


class Renew(msgspec.Struct, frozen=True):
    """Tell the queue that the task goes on."""

    task: Task


class Cut(msgspec.Struct, frozen=True):
    """End the task's processes; `kill` those that did not end when asked."""

    kill: bool


class Finish(msgspec.Struct, frozen=True):
    """Tell the queue that the task has ended."""

    task: Task
    exit_code: int


class Quit(msgspec.Struct, frozen=True):
    """There was no task for too long."""


class Rest(msgspec.Struct, frozen=True):
    """Nothing before `until` (None: nothing at all), unless something happens."""

    until: float | None


Work = Claim | Start | Renew | Cut | Finish | Quit | Rest


def next_work(run: Run, now: float) -> Work:
    """The one thing to do about tasks now."""
    if run.task is None:
        return _between_tasks(run, now)
    if not run.started:
        return Start(run.task)
    if run.exit_code is not None:
        return Rest(run.silence.retry_at) if run.silence.retry_at > now else Finish(run.task, run.exit_code)
    if run.cut_at is not None:
        if run.killed:
            return Rest(None)
        kill_at = run.cut_at + min(KILL_SECONDS, run.worker.settings.stop_seconds)
        return Cut(kill=True) if kill_at <= now else Rest(kill_at)
    end_at = _end_at(run)
    if end_at is not None and end_at <= now:
        return Cut(kill=False)
    renew_at = max(run.renew_at, run.silence.retry_at)
    if renew_at <= now:
        return Renew(run.task)
    return Rest(renew_at if end_at is None else min(renew_at, end_at))


def _between_tasks(run: Run, now: float) -> Work:
    worker, idle_exit = run.worker, run.worker.settings.idle_exit_seconds
    # What is owed comes first: its answer may say that this worker has to leave.
    if not worker.registered or worker.owed or worker.leaving or worker.refused:
        return Rest(None)
    quit_at = float("inf") if idle_exit is None else run.free_since + idle_exit
    if quit_at <= now:
        return Quit()
    if run.silence.retry_at > now:
        return Rest(min(run.silence.retry_at, quit_at))
    return Claim(min(WAIT_SECONDS, quit_at - now))


def _end_at(run: Run) -> float | None:
    """When the task may not go on; None while it may."""
    if run.lost or run.worker.disowned or run.signals > 1:
        return 0.0
    ends: list[float] = []
    if run.signals:
        ends.append(run.signalled_at + run.worker.settings.stop_seconds)
    if run.worker.gave_up and run.task is not None:
        # With the provisioner silent, the claim alone says that somebody waits for the task: it may run until that
        # runs out, unless the queue renews it.
        ends.append(run.renew_at + run.task.claim_seconds * (1 - 1 / RENEWALS))
    return min(ends, default=None)


def exit_code(run: Run) -> int | None:
    """What the process ends with; None while there is something to do. Who is asked twice does not wait for a
    provisioner that is silent."""
    worker = run.worker
    if run.task is not None:
        return None
    if worker.stopped or (worker.leaving and not worker.registered):
        return 0
    return 1 if worker.refused or (run.signals > 1 and worker.silence.since is not None) else None


# What happens


def talked(run: Run, worker: Worker, now: float) -> Run:
    """Something was said to the provisioner, or was not heard."""
    free_since = run.free_since if run.worker.registered or not worker.registered else now
    return _settled(replace(run, worker=worker, free_since=free_since), now)


def claimed(run: Run, task: Task | None, now: float) -> Run:
    """The queue's answer. A task that comes too late for a worker that leaves is not its own: its claim runs out."""
    if task is None or run.worker.leaving or run.worker.refused:
        return replace(run, silence=Silence())
    worker = core.took(run.worker, task.task_id, task.source, now)
    renew_at = now + task.claim_seconds / RENEWALS
    return replace(run, worker=worker, task=task, renew_at=renew_at, silence=Silence())


def started(run: Run) -> Run:
    return replace(run, started=True)


def renewed(run: Run, now: float, *, lost: bool = False) -> Run:
    """The queue has heard of the task, or says that it is not ours any more."""
    if run.task is None:
        return run
    return replace(run, renew_at=now + run.task.claim_seconds / RENEWALS, lost=lost, silence=Silence())


def cut(run: Run, now: float, *, kill: bool) -> Run:
    return replace(run, cut_at=now if run.cut_at is None else run.cut_at, killed=kill)


def exited(run: Run, exit_code: int, now: float) -> Run:
    """The task's process has ended. If it was cut short the queue is not told."""
    if run.lost or run.cut_at is not None:
        return _closed(run, now)
    return replace(run, exit_code=exit_code, exited_at=now, silence=Silence())


def finished(run: Run, now: float) -> Run:
    """The queue knows that the task has ended, or does not want to."""
    return _closed(replace(run, tasks_done=run.tasks_done + 1), now)


def queue_unheard(run: Run, now: float, chance: float) -> Run:
    """The queue does not answer. An end that it has not heard for too long is not told any more."""
    if run.exit_code is not None and run.exited_at + run.worker.settings.give_up_seconds <= now:
        return finished(run, now)
    return replace(run, silence=core.longer(run.silence, now, chance))


def signalled(run: Run, why: str, now: float) -> Run:
    """Somebody asked the process to end: it finishes its task first, unless it is asked again."""
    first = now if not run.signals else run.signalled_at
    after = replace(run, signals=run.signals + 1, signalled_at=first, worker=core.leave(run.worker, why))
    return _settled(after, now)


def quitting(run: Run, now: float) -> Run:
    return _settled(replace(run, worker=core.leave(run.worker, "no task for too long")), now)


def _closed(run: Run, now: float) -> Run:
    """No task any more. Enough of them is a reason to leave."""
    most, worker = run.worker.settings.tasks_per_worker, run.worker
    if most is not None and run.tasks_done >= most:
        worker = core.leave(worker, "its tasks are done")
    worker = core.ending(worker, now) if worker.leaving else core.done(worker, now)
    return Run(
        worker=worker, free_since=now, tasks_done=run.tasks_done, signals=run.signals, signalled_at=run.signalled_at
    )


def _settled(run: Run, now: float) -> Run:
    """Whoever leaves without a task ends."""
    if run.task is None and run.worker.leaving:
        return replace(run, worker=core.ending(run.worker, now))
    return run
