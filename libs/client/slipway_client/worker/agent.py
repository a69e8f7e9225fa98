"""Decisions of `slipway-worker wrap` about its agent: start, drain between two jobs, report of its exit. Pure."""

import signal
from typing import Final

import msgspec
from msgspec.structs import replace

from slipway_client.worker import core
from slipway_client.worker.core import Wait, Worker

# Time for the last report to be acknowledged once the process was asked to stop.
FINAL_REPORT_SECONDS: Final = 2.0
# Time between SIGKILL of the agent and the end of a machine that its provider takes back, for the last report.
END_SECONDS: Final = 10.0
# Signals that ask the agent to stop when they are forwarded: its exit afterwards is not a failure.
STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})


class Wrapped(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and its agent. `drained_at`: when the agent got the drain signal, or ended a job since.
    `stop_requested`: the agent was asked to stop. `leave_at`: deadline for the last report after the agent's exit;
    `left`: it has passed."""

    worker: Worker
    started: bool = False
    drained_at: float | None = None
    stop_requested: bool = False
    killed: bool = False
    exit_code: int | None = None
    leave_at: float | None = None
    left: bool = False


class StartAgent(msgspec.Struct, frozen=True):
    """Start the agent."""


class Drain(msgspec.Struct, frozen=True):
    """Send the drain signal to the agent."""


class Kill(msgspec.Struct, frozen=True):
    """Kill the agent: it did not exit within stop_seconds of the drain signal, or its machine ends."""


class Leave(msgspec.Struct, frozen=True):
    """Exit without an acknowledgement of the last report."""


def next_step(wrapped: Wrapped, now: float) -> StartAgent | Drain | Kill | Leave | Wait:
    """Next action about the agent."""
    worker = wrapped.worker
    if wrapped.exit_code is not None:
        return Leave() if wrapped.leave_at is not None and wrapped.leave_at <= now else Wait(wrapped.leave_at)
    if not wrapped.started:
        return StartAgent() if worker.registered and not worker.leaving and not worker.refused else Wait(None)
    # Running jobs are finished first, also one that began just as the agent was drained: the provisioner decides
    # whether it takes too long. The job of a worker that was refused is not waited for.
    if wrapped.killed:
        return Wait(None)
    if worker.has_task and not worker.refused:
        return _during_a_job(wrapped, now)
    if wrapped.drained_at is None:
        return Drain() if worker.refused or worker.leaving else Wait(None)
    kill_at = wrapped.drained_at + worker.settings.stop_seconds
    return Kill() if kill_at <= now else Wait(kill_at)


def _during_a_job(wrapped: Wrapped, now: float) -> Drain | Kill | Wait:
    """Next action while a job runs: none, unless the provider interrupts the machine at a known time. The agent then
    has the last stop_seconds to end its job."""
    worker = wrapped.worker
    if worker.ends_at is None:
        return Wait(None)
    kill_at = worker.ends_at - END_SECONDS
    drain_at = kill_at - worker.settings.stop_seconds
    if wrapped.drained_at is None:
        return Drain() if drain_at <= now else Wait(drain_at)
    return Kill() if kill_at <= now else Wait(kill_at)


def exit_code(wrapped: Wrapped) -> int | None:
    """Exit code of the process: the agent's own, if it ran; None while there is something to do."""
    worker = wrapped.worker
    if wrapped.left or (wrapped.started and wrapped.exit_code is None):
        return wrapped.exit_code
    if worker.refused:
        return wrapped.exit_code or 1
    never_registered = worker.leaving and not worker.registered
    return wrapped.exit_code or 0 if worker.stopped or never_registered else None


# Transitions


def worker_changed(wrapped: Wrapped, worker: Worker, now: float) -> Wrapped:
    """Apply a change of the worker. A worker that has to leave before its agent runs stops at once."""
    if worker.leaving and not wrapped.started:
        worker = core.stopping(worker, now)
    if wrapped.drained_at is not None and wrapped.worker.has_task and not worker.has_task:
        return replace(wrapped, worker=worker, drained_at=now)
    return replace(wrapped, worker=worker)


def started(wrapped: Wrapped) -> Wrapped:
    return replace(wrapped, started=True)


def drained(wrapped: Wrapped, now: float) -> Wrapped:
    return replace(wrapped, drained_at=now, stop_requested=True)


def killed(wrapped: Wrapped) -> Wrapped:
    return replace(wrapped, killed=True)


def forwarded(wrapped: Wrapped, signum: signal.Signals, now: float) -> Wrapped:
    """Apply a signal that was forwarded to the agent. Before the agent runs the worker leaves at once; after its exit
    the last report gets FINAL_REPORT_SECONDS, and a second signal ends even that."""
    if signum not in STOP_SIGNALS:
        return wrapped
    if wrapped.exit_code is not None:
        leave_at = now + FINAL_REPORT_SECONDS if wrapped.leave_at is None else now
        return replace(wrapped, worker=core.retry_now(wrapped.worker, now), leave_at=leave_at)
    after = replace(wrapped, stop_requested=True)
    return after if wrapped.started else worker_changed(after, core.leave(wrapped.worker, f"got {signum.name}"), now)


def left(wrapped: Wrapped) -> Wrapped:
    return replace(wrapped, left=True)


def exited(wrapped: Wrapped, exit_code: int, reason: str, now: float) -> Wrapped:
    """Apply the agent's exit, or its failure to start. A failure that was not asked for is reported as an error."""
    worker = wrapped.worker
    if exit_code and not wrapped.stop_requested:
        worker = core.failed(worker, "agent_exited", reason, now)
    return replace(wrapped, started=True, exit_code=exit_code, worker=core.stopping(worker, now))
