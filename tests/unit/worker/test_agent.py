"""Decisions of `slipway-worker wrap` about its agent."""

import signal
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

from slipway_client.worker import agent, core
from slipway_client.worker.agent import (
    END_SECONDS,
    FINAL_REPORT_SECONDS,
    Drain,
    Kill,
    Leave,
    StartAgent,
    Wrapped,
    next_step,
)
from slipway_client.worker.core import Notice, Poll, Register, Reply, SendReport, Wait, Worker
from slipway_client.worker.settings import Settings

Step = Callable[[Wrapped], Wrapped]
BORN = Wrapped(worker=Worker(settings=Settings(stop_seconds=60.0)))


def talk(now: float, **answer: Any) -> Step:
    def step(wrapped: Wrapped) -> Wrapped:
        call = core.next_call(wrapped.worker, now)
        assert isinstance(call, Register | SendReport | Poll)
        return agent.worker_changed(wrapped, core.answered(wrapped.worker, call, now, Reply(**answer)), now)

    return step


def job(now: float) -> Step:
    return lambda wrapped: agent.worker_changed(wrapped, core.task_started(wrapped.worker, "j", "q", now), now)


def idle(now: float) -> Step:
    return lambda wrapped: agent.worker_changed(wrapped, core.task_ended(wrapped.worker, now), now)


def leave(wrapped: Wrapped) -> Wrapped:
    return agent.worker_changed(wrapped, core.leave(wrapped.worker, "why"), 50.0)


def refused(wrapped: Wrapped) -> Wrapped:
    return agent.worker_changed(wrapped, core.refused(wrapped.worker, "gone"), 50.0)


def gave_up(wrapped: Wrapped) -> Wrapped:
    return agent.worker_changed(wrapped, core.gave_up(wrapped.worker, "no answer"), 50.0)


def miss(wrapped: Wrapped) -> Wrapped:
    return agent.worker_changed(wrapped, core.unanswered(wrapped.worker, 54.9, 0.5), 54.9)


def drained(wrapped: Wrapped) -> Wrapped:
    return agent.drained(wrapped, 50.0)


def ended(code: int) -> Step:
    return lambda wrapped: agent.exited(wrapped, code, f"exit code {code}", 60.0)


def noticed(ends_at: float | None) -> Step:
    """The provider interrupts the machine."""
    notice = Notice("interruption", None)
    return lambda wrapped: agent.worker_changed(wrapped, core.noticed(wrapped.worker, notice, ends_at, 40.0), 40.0)


def got(signum: signal.Signals) -> Step:
    return lambda wrapped: agent.forwarded(wrapped, signum, 55.0)


RUNS = (talk(10.0), agent.started)

#       what happened                        now   next, exit code, pending reports
LIVES: list[tuple[str, tuple[Step, ...], float, object, int | None, list[str]]] = [
    ("not registered", (), 1.0, Wait(None), None, []),
    ("registered", (talk(10.0),), 10.0, StartAgent(), None, []),
    ("runs", RUNS, 10.0, Wait(None), None, []),
    ("drain requested while idle", (*RUNS, leave), 50.0, Drain(), None, []),
    ("drain requested in a job", (*RUNS, job(20.0), leave), 50.0, Wait(None), None, ["claimed"]),
    ("until its job has ended", (*RUNS, job(20.0), leave, idle(51.0)), 51.0, Drain(), None, ["claimed", "idle"]),
    ("drained", (*RUNS, leave, drained), 50.0, Wait(110.0), None, []),
    ("drained, and stays", (*RUNS, leave, drained), 110.0, Kill(), None, []),
    ("killed", (*RUNS, leave, drained, agent.killed), 999.0, Wait(None), None, []),
    ("a clean end", (*RUNS, ended(0)), 60.0, Wait(None), None, ["stopped"]),
    ("a clean end, acknowledged", (*RUNS, ended(0), talk(61.0)), 61.0, Wait(None), 0, []),
    ("a failure", (*RUNS, ended(3)), 60.0, Wait(None), None, ["error", "stopped"]),
    ("a failure, acknowledged", (*RUNS, ended(3), talk(61.0), talk(62.0)), 62.0, Wait(None), 3, []),
    ("a failure in a job", (*RUNS, job(20.0), ended(137)), 60.0, Wait(None), None, ["claimed", "error", "stopped"]),
    ("requested by us", (*RUNS, leave, drained, ended(143)), 60.0, Wait(None), None, ["stopped"]),
    ("asked for by somebody", (*RUNS, got(signal.SIGTERM), ended(143)), 60.0, Wait(None), None, ["stopped"]),
    (
        "a signal that asks for nothing",
        (*RUNS, got(signal.SIGHUP), ended(129)),
        60.0,
        Wait(None),
        None,
        ["error", "stopped"],
    ),
    ("drain requested before the agent runs", (talk(10.0), leave), 50.0, Wait(None), None, ["stopped"]),
    ("asked to end before it is known", (got(signal.SIGINT),), 55.0, Wait(None), 0, []),
    ("refused before the agent runs", (refused,), 50.0, Wait(None), 1, []),
    ("refused in a job", (*RUNS, job(20.0), refused), 50.0, Drain(), None, []),
    ("refused, and ended", (*RUNS, refused, drained, ended(143)), 60.0, Wait(None), 143, []),
    ("a job begins as it is drained", (*RUNS, leave, drained, job(50.1)), 999.0, Wait(None), None, ["claimed"]),
    ("and ends", (*RUNS, leave, drained, job(50.1), idle(200.0)), 200.0, Wait(260.0), None, ["claimed", "idle"]),
    ("and it stays", (*RUNS, leave, drained, job(50.1), idle(200.0)), 260.0, Kill(), None, ["claimed", "idle"]),
    ("disowned in such a job", (*RUNS, leave, drained, job(50.1), refused), 110.0, Kill(), None, []),
    ("machine ends, while idle", (*RUNS, noticed(160.0)), 40.0, Drain(), None, ["notice"]),
    ("machine ends, in a job", (*RUNS, job(20.0), noticed(160.0)), 40.0, Wait(90.0), None, ["claimed", "notice"]),
    ("at a time not known", (*RUNS, job(20.0), noticed(None)), 999.0, Wait(None), None, ["claimed", "notice"]),
    ("the job takes too long", (*RUNS, job(20.0), noticed(160.0)), 90.0, Drain(), None, ["claimed", "notice"]),
    (
        "and is drained",
        (*RUNS, job(20.0), noticed(160.0), drained),
        90.0,
        Wait(160.0 - END_SECONDS),
        None,
        ["claimed", "notice"],
    ),
    (
        "and does not end",
        (*RUNS, job(20.0), noticed(160.0), drained),
        160.0 - END_SECONDS,
        Kill(),
        None,
        ["claimed", "notice"],
    ),
    (
        "a job begins as a machine that ends is drained",
        (*RUNS, noticed(160.0), drained, job(50.1)),
        160.0 - END_SECONDS,
        Kill(),
        None,
        ["notice", "claimed"],
    ),
    ("given up while idle", (*RUNS, gave_up), 50.0, Drain(), None, []),
    ("given up in a job", (*RUNS, job(20.0), gave_up), 50.0, Wait(None), None, ["claimed"]),
    ("until it has ended", (*RUNS, job(20.0), gave_up, idle(51.0)), 51.0, Drain(), None, ["claimed", "idle"]),
    ("given up, and ended", (*RUNS, gave_up, drained, ended(0)), 60.0, Wait(None), 1, []),
    (
        "stop requested before the end is acknowledged",
        (*RUNS, ended(0), got(signal.SIGTERM)),
        55.0,
        Wait(55.0 + FINAL_REPORT_SECONDS),
        None,
        ["stopped"],
    ),
    ("and not acknowledged", (*RUNS, ended(0), got(signal.SIGTERM)), 57.0, Leave(), None, ["stopped"]),
    ("it has left", (*RUNS, ended(0), got(signal.SIGTERM), agent.left), 57.0, Leave(), 0, ["stopped"]),
    (
        "it has left after a failure",
        (*RUNS, ended(3), got(signal.SIGTERM), agent.left),
        57.0,
        Leave(),
        3,
        ["error", "stopped"],
    ),
    ("acknowledged in time", (*RUNS, ended(0), got(signal.SIGTERM), talk(55.5)), 55.5, Wait(57.0), 0, []),
    ("retried without a pause", (*RUNS, ended(0), miss, got(signal.SIGTERM), talk(55.0)), 55.0, Wait(57.0), 0, []),
    (
        "stop signal twice",
        (*RUNS, ended(0), got(signal.SIGTERM), got(signal.SIGTERM)),
        55.0,
        Leave(),
        None,
        ["stopped"],
    ),
]


@pytest.mark.parametrize(
    ("steps", "now", "expected", "code", "reports"), [row[1:] for row in LIVES], ids=[row[0] for row in LIVES]
)
def test_lives(steps: tuple[Step, ...], now: float, expected: object, code: int | None, reports: list[str]) -> None:
    """The agent is drained between two jobs; its failure is reported, unless it was asked to stop."""
    wrapped = reduce(lambda so_far, step: step(so_far), steps, BORN)
    assert next_step(wrapped, now) == expected
    assert agent.exit_code(wrapped) == code
    assert [fact.what for fact in wrapped.worker.reports] == reports
