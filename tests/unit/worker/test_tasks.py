"""Decisions of a worker about its tasks."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipway_client.worker import core, tasks
from slipway_client.worker.core import Notice, Poll, Register, Reply, SendReport, Wait, Worker
from slipway_client.worker.settings import Settings
from slipway_client.worker.tasks import (
    END_SECONDS,
    KILL_SECONDS,
    WAIT_SECONDS,
    Claim,
    Finish,
    Quit,
    Renew,
    Run,
    StartTask,
    Task,
    Terminate,
    next_work,
)

TASK = Task("t", ("sleep", "1"), "q", 30.0)
Step = Callable[[Run], Run]


def talk(now: float, **answer: Any) -> Step:
    """The next call is answered."""

    def step(run: Run) -> Run:
        call = core.next_call(run.worker, now)
        assert isinstance(call, Register | SendReport | Poll)
        return tasks.worker_changed(run, core.answered(run.worker, call, now, Reply(**answer)), now)

    return step


def take(now: float, task: Task | None = TASK) -> Step:
    return lambda run: tasks.claimed(run, task, now)


def begin(run: Run) -> Run:
    return tasks.started(run)


def exit_with(code: int, now: float) -> Step:
    return lambda run: tasks.exited(run, code, now)


def finish(now: float) -> Step:
    return lambda run: tasks.finished(run, now)


def terminated(now: float, *, kill: bool = False) -> Step:
    return lambda run: tasks.terminated(run, now, kill=kill)


def lose(now: float) -> Step:
    return lambda run: tasks.renewed(run, now, lost=True)


def signal(now: float) -> Step:
    return lambda run: tasks.signalled(run, "SIGTERM", now)


def miss(now: float) -> Step:
    return lambda run: tasks.worker_changed(run, core.unanswered(run.worker, now, 0.5), now)


def noticed(ends_at: float | None) -> Step:
    """The provider interrupts the machine."""
    notice = Notice("interruption", None)
    return lambda run: tasks.worker_changed(run, core.noticed(run.worker, notice, ends_at, 12.0), 12.0)


def refuse(now: float) -> Step:
    return lambda run: tasks.worker_changed(run, core.refused(run.worker, "gone"), now)


def give_up(now: float) -> Step:
    return lambda run: tasks.worker_changed(run, core.gave_up(run.worker, "no answer"), now)


def renew(now: float) -> Step:
    return lambda run: tasks.renewed(run, now)


def lived(*steps: Step, **settings: Any) -> Run:
    """A worker that registered at 10 and went through `steps` since."""
    usual = {"stop_seconds": 60.0, "poll_seconds": 1000.0}
    born = Run(worker=Worker(settings=Settings(**(usual | settings))), free_since=0.0)
    return reduce(lambda run, step: step(run), [talk(10.0), *steps], born)


TAKEN = (take(11.0), begin)
REPORTED = (*TAKEN, talk(11.5))
ENDED = (*REPORTED, exit_with(0, 20.0))
FREE = (*ENDED, finish(21.0), talk(21.5))

#       what happened                             settings                    now    next, exit code
LIVES: list[tuple[str, tuple[Step, ...], dict[str, Any], float, object, int | None]] = [
    ("registered", (), {}, 10.0, Claim(WAIT_SECONDS), None),
    ("nothing there", (take(11.0, None),), {}, 11.0, Claim(WAIT_SECONDS), None),
    ("a task", (take(11.0),), {}, 11.0, StartTask(TASK), None),
    ("claimed is not acknowledged, the task goes on", TAKEN, {}, 12.0, Wait(21.0), None),
    ("running", REPORTED, {}, 12.0, Wait(21.0), None),
    ("its claim is renewed in time", REPORTED, {}, 21.0, Renew(TASK), None),
    ("ended", ENDED, {}, 20.0, Finish(TASK, 0), None),
    ("idle is not acknowledged yet", (*ENDED, finish(21.0)), {}, 21.0, Wait(None), None),
    ("the next one", FREE, {}, 21.5, Claim(WAIT_SECONDS), None),
    ("its tasks are done", (*ENDED, finish(21.0)), {"tasks_per_worker": 1}, 21.0, Wait(None), None),
    ("and that was acknowledged", FREE, {"tasks_per_worker": 1}, 21.5, Wait(None), 0),
    ("not yet all done", FREE, {"tasks_per_worker": 2}, 21.5, Claim(WAIT_SECONDS), None),
    (
        "drain requested at the task's end",
        (*ENDED, finish(21.0), talk(21.5, terminate=True)),
        {},
        22.0,
        Wait(None),
        None,
    ),
    ("drain requested while busy", (*TAKEN, talk(11.5, terminate=True)), {}, 12.0, Wait(21.0), None),
    ("asked to end while idle", (signal(12.0),), {}, 12.0, Wait(None), None),
    ("and that was acknowledged", (signal(12.0), talk(12.5)), {}, 12.5, Wait(None), 0),
    ("stop signal while busy", (*REPORTED, signal(12.0)), {}, 12.0, Wait(21.0), None),
    ("for too long", (*REPORTED, signal(12.0)), {"stop_seconds": 5.0}, 17.0, Terminate(kill=False), None),
    ("stop signal twice", (*REPORTED, signal(12.0), signal(13.0)), {}, 13.0, Terminate(kill=False), None),
    ("machine ends, while busy", (*REPORTED, noticed(132.0)), {}, 12.0, Wait(21.0), None),
    ("until shortly before", (*REPORTED, noticed(132.0)), {}, 132.0 - END_SECONDS, Terminate(kill=False), None),
    ("at a time not known", (*REPORTED, noticed(None)), {}, 999.0, Renew(TASK), None),
    ("and takes no other", (*REPORTED, noticed(132.0), exit_with(0, 20.0), finish(21.0)), {}, 21.0, Wait(None), None),
    ("machine ends, while idle", (noticed(132.0),), {}, 12.0, Wait(None), None),
    ("and both was acknowledged", (noticed(132.0), talk(12.5), talk(12.6)), {}, 12.6, Wait(None), 0),
    ("terminated", (*REPORTED, lose(12.0), terminated(12.0)), {}, 12.0, Wait(12.0 + KILL_SECONDS), None),
    ("and does not", (*REPORTED, lose(12.0), terminated(12.0)), {}, 12.0 + KILL_SECONDS, Terminate(kill=True), None),
    (
        "nor in its time",
        (*REPORTED, lose(12.0), terminated(12.0)),
        {"stop_seconds": 1.0},
        13.0,
        Terminate(kill=True),
        None,
    ),
    ("and cannot", (*REPORTED, lose(12.0), terminated(12.0), terminated(17.0, kill=True)), {}, 99.0, Wait(None), None),
    ("the claim is lost", (*REPORTED, lose(12.0)), {}, 12.0, Terminate(kill=False), None),
    (
        "a lost task is not finished",
        (*REPORTED, lose(12.0), terminated(12.0), exit_with(143, 13.0)),
        {},
        13.0,
        Wait(None),
        None,
    ),
    ("lost as it ended", (*REPORTED, lose(12.0), exit_with(0, 13.0), talk(13.0)), {}, 13.0, Claim(WAIT_SECONDS), None),
    ("refused while busy", (*REPORTED, refuse(12.0)), {}, 12.0, Terminate(kill=False), None),
    ("refused, and ended", (*REPORTED, refuse(12.0), terminated(12.0), exit_with(143, 13.0)), {}, 13.0, Wait(None), 1),
    ("refused while idle", (refuse(12.0),), {}, 12.0, Wait(None), 1),
    ("given up while busy", (*REPORTED, give_up(12.0)), {}, 12.0, Wait(21.0), None),
    ("its claim is renewed", (*REPORTED, give_up(12.0)), {}, 21.0, Renew(TASK), None),
    ("and runs on", (*REPORTED, give_up(12.0), renew(40.0)), {}, 45.0, Wait(50.0), None),
    ("nobody renews it", (*REPORTED, give_up(12.0)), {}, 41.0, Terminate(kill=False), None),
    ("given up, and lost", (*REPORTED, give_up(12.0), lose(13.0)), {}, 13.0, Terminate(kill=False), None),
    (
        "given up, and asked to end",
        (*REPORTED, give_up(12.0), signal(13.0)),
        {"stop_seconds": 1.0},
        14.0,
        Terminate(kill=False),
        None,
    ),
    ("given up, and done", (*REPORTED, give_up(12.0), exit_with(0, 20.0)), {}, 20.0, Finish(TASK, 0), None),
    ("and takes no other", (*REPORTED, give_up(12.0), exit_with(0, 20.0), finish(21.0)), {}, 21.0, Wait(None), None),
    (
        "and gives up for good",
        (*REPORTED, give_up(12.0), exit_with(0, 20.0), finish(21.0), give_up(21.0)),
        {},
        21.0,
        Wait(None),
        1,
    ),
    ("given up, and answered again", (*REPORTED, give_up(12.0), talk(72.0)), {}, 72.0, Renew(TASK), None),
    ("given up while idle", (give_up(12.0),), {}, 12.0, Wait(None), 1),
    ("a task that comes then is not taken", (give_up(12.0), take(12.0)), {}, 12.0, Wait(None), 1),
    ("stop signal twice while idle", (signal(12.0), signal(13.0)), {}, 13.0, Wait(None), None),
    ("stop signal twice, not acknowledged", (signal(12.0), miss(12.5), signal(13.0)), {}, 13.0, Wait(None), 1),
    ("stop signal once, not acknowledged", (signal(12.0), miss(12.5)), {}, 13.0, Wait(None), None),
    ("no task for long", (), {"idle_exit_seconds": 5.0}, 12.0, Claim(3.0), None),
    ("no task for too long", (), {"idle_exit_seconds": 5.0}, 15.0, Quit(), None),
    ("idle since its last task", FREE, {"idle_exit_seconds": 5.0}, 25.0, Claim(1.0), None),
]


@pytest.mark.parametrize(
    ("steps", "settings", "now", "expected", "code"), [row[1:] for row in LIVES], ids=[row[0] for row in LIVES]
)
def test_next_work(
    steps: tuple[Step, ...], settings: dict[str, Any], now: float, expected: object, code: int | None
) -> None:
    """One task at a time; none while a report is pending, and none for a worker that leaves."""
    run = lived(*steps, **settings)
    assert next_work(run, now) == expected
    assert tasks.exit_code(run) == code


#       what happened                                                           what it owes
OWED: list[tuple[tuple[Step, ...], dict[str, Any], list[str]]] = [
    ((*TAKEN, exit_with(0, 20.0), finish(21.0)), {}, ["claimed", "idle"]),
    ((*TAKEN, exit_with(0, 20.0), finish(21.0)), {"tasks_per_worker": 1}, ["claimed", "stopped"]),
    ((*ENDED, finish(21.0)), {}, ["idle"]),
    ((*ENDED, finish(21.0), talk(21.5, terminate=True)), {}, ["stopped"]),
    ((*TAKEN, talk(11.5, terminate=True), exit_with(0, 20.0), finish(21.0)), {}, ["stopped"]),
    ((*REPORTED, signal(12.0), signal(13.0), terminated(13.0), exit_with(143, 14.0)), {}, ["stopped"]),
    ((*REPORTED, lose(12.0), terminated(12.0), exit_with(143, 13.0)), {"tasks_per_worker": 1}, ["idle"]),
    ((signal(12.0),), {}, ["stopped"]),
    ((noticed(132.0),), {}, ["notice", "stopped"]),
    ((*REPORTED, noticed(132.0), terminated(117.0), exit_with(143, 118.0)), {}, ["notice", "stopped"]),
    ((signal(12.0), take(12.5)), {}, ["stopped"]),
]


@pytest.mark.parametrize(("steps", "settings", "expected"), OWED)
def test_pending_reports(steps: tuple[Step, ...], settings: dict[str, Any], expected: list[str]) -> None:
    """A terminated task does not count; the claim of a task that arrives too late is left to expire."""
    assert [report.what for report in lived(*steps, **settings).worker.reports] == expected


def test_a_finish_that_the_queue_never_answers_is_given_up() -> None:
    """The claim has expired long ago; the worker continues."""
    run = lived(*ENDED, give_up_seconds=900.0)
    run = tasks.queue_unanswered(run, 500.0, 0.5)
    assert isinstance(next_work(run, 600.0), Finish)
    assert tasks.queue_unanswered(run, 920.0, 0.5).task is None


def test_an_unregistered_worker_leaves_at_once() -> None:
    """No report is due."""
    run = tasks.signalled(Run(worker=Worker(settings=Settings()), free_since=0.0), "SIGTERM", 1.0)
    assert tasks.exit_code(run) == 0


@example(["talk", "work", "work", "exit", "work", "work"])  # a report is pending when the next task could be claimed
@given(st.lists(st.sampled_from(["work", "talk", "tell", "miss", "exit", "lose", "signal", "later"]), max_size=60))
def test_laws(choices: list[str]) -> None:
    """No task is claimed by a worker that leaves or has pending reports, never two run at once, and every started task
    ends before the worker does."""
    run, now, live, number = lived(stop_seconds=50.0, tasks_per_worker=3), 10.0, 0, 0
    for choice in choices:
        now += 1.0
        if choice == "later":
            now += 30.0
        elif choice == "signal":
            run = tasks.signalled(run, "SIGTERM", now)
        elif choice == "lose":
            run = tasks.renewed(run, now, lost=True)
        elif choice == "exit" and live:
            live, run = 0, tasks.exited(run, 0, now)
        elif choice in {"talk", "tell", "miss"}:
            call = core.next_call(run.worker, now)
            if isinstance(call, Register | SendReport | Poll):
                after = (
                    core.unanswered(run.worker, now, 0.5)
                    if choice == "miss"
                    else core.answered(run.worker, call, now, Reply(terminate=choice == "tell"))
                )
                run = tasks.worker_changed(run, after, now)
        elif choice == "work":
            match next_work(run, now):
                case Claim():
                    assert not run.worker.leaving
                    assert not run.worker.reports
                    number += 1
                    run = tasks.claimed(run, Task(f"t{number}", ("true",), "q", 30.0), now)
                case StartTask():
                    live += 1
                    run = tasks.started(run)
                case Renew():
                    run = tasks.renewed(run, now)
                case Terminate(kill):
                    run = tasks.terminated(run, now, kill=kill)
                case Finish():
                    run = tasks.finished(run, now)
                case Quit() | Wait():
                    pass
        assert live <= 1
        if tasks.exit_code(run) is not None:
            assert live == 0
            return
