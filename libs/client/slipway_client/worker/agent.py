"""What `slipway-worker wrap` does about its agent: starts it, tells it to leave between two jobs, reports how it ended.
Pure.
"""

import signal
from typing import Final

import msgspec
from msgspec.structs import replace

from slipway_client.worker import core
from slipway_client.worker.core import Worker

# What the last fact gets to be heard once somebody wants the process to end.
LAST_WORD_SECONDS: Final = 2.0
# Passed on, these ask the agent to end: that it does is no failure.
ASKING_TO_END = frozenset({signal.SIGTERM, signal.SIGINT})


class Wrapped(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and its agent. `drained_at`: when the agent was told to leave, or ended a job since. `asked`: it was
    asked to end. `leave_at`: until when, after the agent's end, to try to be heard; `left`: that is over."""

    worker: Worker
    started: bool = False
    drained_at: float | None = None
    asked: bool = False
    killed: bool = False
    exit_code: int | None = None
    leave_at: float | None = None
    left: bool = False


class Start(msgspec.Struct, frozen=True):
    """Start the agent."""


class Drain(msgspec.Struct, frozen=True):
    """Tell the agent to leave."""


class Kill(msgspec.Struct, frozen=True):
    """End the agent: it was told to leave and did not."""


class Leave(msgspec.Struct, frozen=True):
    """Try no longer to be heard."""


class Rest(msgspec.Struct, frozen=True):
    """Nothing before `until` (None: nothing at all), unless something happens."""

    until: float | None


def next_step(wrapped: Wrapped, now: float) -> Start | Drain | Kill | Leave | Rest:
    """The one thing to do about the agent now."""
    worker = wrapped.worker
    if wrapped.exit_code is not None:
        return Leave() if wrapped.leave_at is not None and wrapped.leave_at <= now else Rest(wrapped.leave_at)
    if not wrapped.started:
        return Start() if worker.registered and not worker.leaving and not worker.refused else Rest(None)
    # A job under way is finished first, also one that began just as the agent was told to leave: whether it takes too
    # long is the provisioner's to say. One of a worker that is gone is nobody's any more.
    if wrapped.killed or (worker.task_id and not worker.disowned):
        return Rest(None)
    if wrapped.drained_at is None:
        return Drain() if worker.refused or worker.leaving else Rest(None)
    kill_at = wrapped.drained_at + worker.settings.stop_seconds
    return Kill() if kill_at <= now else Rest(kill_at)


def exit_code(wrapped: Wrapped) -> int | None:
    """What the process ends with: the agent's own code, if it ran; None while there is something to do."""
    worker = wrapped.worker
    if wrapped.left or (wrapped.started and wrapped.exit_code is None):
        return wrapped.exit_code
    if worker.refused:
        return wrapped.exit_code or 1
    nobody_knows_it = worker.leaving and not worker.registered
    return wrapped.exit_code or 0 if worker.stopped or nobody_knows_it else None


# What happens


def talked(wrapped: Wrapped, worker: Worker, now: float) -> Wrapped:
    """Something was said to the provisioner, or was not heard. Who has to leave before the agent runs, ends."""
    if worker.leaving and not wrapped.started:
        worker = core.ending(worker, now)
    if wrapped.drained_at is not None and wrapped.worker.task_id and not worker.task_id:
        return replace(wrapped, worker=worker, drained_at=now)
    return replace(wrapped, worker=worker)


def started(wrapped: Wrapped) -> Wrapped:
    return replace(wrapped, started=True)


def drained(wrapped: Wrapped, now: float) -> Wrapped:
    return replace(wrapped, drained_at=now, asked=True)


def killed(wrapped: Wrapped) -> Wrapped:
    return replace(wrapped, killed=True)


def passed_on(wrapped: Wrapped, signum: signal.Signals, now: float) -> Wrapped:
    """A signal of ours went to the agent. Before there is one nothing is waited for; after its end, only a moment for
    its last fact to be heard, and at a second signal not even that."""
    if signum not in ASKING_TO_END:
        return wrapped
    if wrapped.exit_code is not None:
        leave_at = now + LAST_WORD_SECONDS if wrapped.leave_at is None else now
        return replace(wrapped, worker=core.pressed(wrapped.worker, now), leave_at=leave_at)
    after = replace(wrapped, asked=True)
    return after if wrapped.started else talked(after, core.leave(wrapped.worker, f"got {signum.name}"), now)


def left(wrapped: Wrapped) -> Wrapped:
    return replace(wrapped, left=True)


def exited(wrapped: Wrapped, exit_code: int, words: str, now: float) -> Wrapped:
    """The agent has ended, or could not be started. What was not asked for, and is not success, is an error."""
    worker = wrapped.worker
    if exit_code and not wrapped.asked:
        worker = core.failed(worker, "agent_exited", words, now)
    return replace(wrapped, started=True, exit_code=exit_code, worker=core.ending(worker, now))
