"""What `slipway-worker wrap` does about its agent: starts it, tells it to leave between two jobs, reports how it ended.
Pure.
"""

import signal

import msgspec
from msgspec.structs import replace

from slipway_client.worker import core
from slipway_client.worker.core import Worker

# Passed on, these ask the agent to end: that it does is no failure.
ASKING_TO_END = frozenset({signal.SIGTERM, signal.SIGINT})


class Wrapped(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and its agent. `drained_at`: when the agent was told to leave. `asked`: it was asked to end."""

    worker: Worker
    started: bool = False
    drained_at: float | None = None
    asked: bool = False
    killed: bool = False
    exit_code: int | None = None


class Start(msgspec.Struct, frozen=True):
    """Start the agent."""


class Drain(msgspec.Struct, frozen=True):
    """Tell the agent to leave."""


class Kill(msgspec.Struct, frozen=True):
    """End the agent: it was told to leave and did not."""


class Rest(msgspec.Struct, frozen=True):
    """Nothing before `until` (None: nothing at all), unless something happens."""

    until: float | None


def next_step(wrapped: Wrapped, now: float) -> Start | Drain | Kill | Rest:
    """The one thing to do about the agent now."""
    worker = wrapped.worker
    if wrapped.exit_code is not None:
        return Rest(None)
    if not wrapped.started:
        return Start() if worker.registered and not worker.leaving and not worker.refused else Rest(None)
    if wrapped.drained_at is None:
        # A job under way is finished first; one of a worker that is gone is nobody's any more.
        return Drain() if worker.refused or (worker.leaving and not worker.task_id) else Rest(None)
    kill_at = wrapped.drained_at + worker.settings.stop_seconds
    if wrapped.killed:
        return Rest(None)
    return Kill() if kill_at <= now else Rest(kill_at)


def exit_code(wrapped: Wrapped) -> int | None:
    """What the process ends with: the agent's own code, if it ran; None while there is something to do."""
    worker = wrapped.worker
    if wrapped.started and wrapped.exit_code is None:
        return None
    if worker.refused:
        return wrapped.exit_code or 1
    nobody_knows_it = worker.leaving and not worker.registered
    return wrapped.exit_code or 0 if worker.stopped or nobody_knows_it else None


# What happens


def talked(wrapped: Wrapped, worker: Worker, now: float) -> Wrapped:
    """Something was said to the provisioner, or was not heard. Who has to leave before the agent runs, ends."""
    if worker.leaving and not wrapped.started:
        worker = core.ending(worker, now)
    return replace(wrapped, worker=worker)


def started(wrapped: Wrapped) -> Wrapped:
    return replace(wrapped, started=True)


def drained(wrapped: Wrapped, now: float) -> Wrapped:
    return replace(wrapped, drained_at=now, asked=True)


def killed(wrapped: Wrapped) -> Wrapped:
    return replace(wrapped, killed=True)


def passed_on(wrapped: Wrapped, signum: signal.Signals, now: float) -> Wrapped:
    """A signal of ours went to the agent. Without an agent, before or after, there is nothing to wait for."""
    if signum not in ASKING_TO_END:
        return wrapped
    if wrapped.exit_code is not None:
        return replace(wrapped, worker=core.refused(wrapped.worker, f"got {signum.name}"))
    after = replace(wrapped, asked=True)
    return after if wrapped.started else talked(after, core.leave(wrapped.worker, f"got {signum.name}"), now)


def exited(wrapped: Wrapped, exit_code: int, words: str, now: float) -> Wrapped:
    """The agent has ended, or could not be started. What was not asked for, and is not success, is an error."""
    worker = wrapped.worker
    if exit_code and not wrapped.asked:
        worker = core.failed(worker, "agent_exited", words, now)
    return replace(wrapped, started=True, exit_code=exit_code, worker=core.ending(worker, now))
