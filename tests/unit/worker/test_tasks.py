"""What a worker does about its tasks."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_client.worker import core, tasks
from slipway_client.worker.core import Ask, Register, Tell, Worker
from slipway_client.worker.settings import Settings
from slipway_client.worker.tasks import (
    KILL_SECONDS,
    WAIT_SECONDS,
    Claim,
    Cut,
    Finish,
    Quit,
    Renew,
    Rest,
    Run,
    Start,
    Task,
    next_work,
)

TASK = Task("t", ("sleep", "1"), "q", 30.0)
Step = Callable[[Run], Run]


def talk(now: float, **answer: Any) -> Step:
    """The next thing to say is heard."""

    def step(run: Run) -> Run:
        call = core.next_call(run.worker, now)
        assert isinstance(call, Register | Tell | Ask)
        return tasks.talked(run, core.heard(run.worker, call, now, **answer), now)

    return step


def take(now: float, task: Task | None = TASK) -> Step:
    return lambda run: tasks.claimed(run, task, now)


def begin(run: Run) -> Run:
    return tasks.started(run)


def exit_with(code: int, now: float) -> Step:
    return lambda run: tasks.exited(run, code, now)


def finish(now: float) -> Step:
    return lambda run: tasks.finished(run, now)


def cut(now: float, *, kill: bool = False) -> Step:
    return lambda run: tasks.cut(run, now, kill=kill)


def lose(now: float) -> Step:
    return lambda run: tasks.renewed(run, now, lost=True)


def signal(now: float) -> Step:
    return lambda run: tasks.signalled(run, "SIGTERM", now)


def miss(now: float) -> Step:
    return lambda run: tasks.talked(run, core.unheard(run.worker, now, 0.5), now)


def refuse(now: float) -> Step:
    return lambda run: tasks.talked(run, core.refused(run.worker, "gone"), now)


def give_up(now: float) -> Step:
    return lambda run: tasks.talked(run, core.gave_up(run.worker, "silent"), now)


def renew(now: float) -> Step:
    return lambda run: tasks.renewed(run, now)


def lived(*steps: Step, **settings: Any) -> Run:
    """A worker that registered at 10, and what happened since."""
    usual = {"stop_seconds": 60.0, "poll_seconds": 1000.0}
    born = Run(worker=Worker(settings=Settings(**(usual | settings))), free_since=0.0)
    return reduce(lambda run, step: step(run), [talk(10.0), *steps], born)


TAKEN = (take(11.0), begin)
SAID = (*TAKEN, talk(11.5))
ENDED = (*SAID, exit_with(0, 20.0))
FREE = (*ENDED, finish(21.0), talk(21.5))

#       what happened                             settings                    now    next, exit code
LIVES: list[tuple[str, tuple[Step, ...], dict[str, Any], float, object, int | None]] = [
    ("registered", (), {}, 10.0, Claim(WAIT_SECONDS), None),
    ("nothing there", (take(11.0, None),), {}, 11.0, Claim(WAIT_SECONDS), None),
    ("a task", (take(11.0),), {}, 11.0, Start(TASK), None),
    ("claimed is not heard yet, the task goes on", TAKEN, {}, 12.0, Rest(21.0), None),
    ("running", SAID, {}, 12.0, Rest(21.0), None),
    ("its claim is renewed in time", SAID, {}, 21.0, Renew(TASK), None),
    ("ended", ENDED, {}, 20.0, Finish(TASK, 0), None),
    ("idle is not heard yet", (*ENDED, finish(21.0)), {}, 21.0, Rest(None), None),
    ("the next one", FREE, {}, 21.5, Claim(WAIT_SECONDS), None),
    ("its tasks are done", (*ENDED, finish(21.0)), {"tasks_per_worker": 1}, 21.0, Rest(None), None),
    ("and that was heard", FREE, {"tasks_per_worker": 1}, 21.5, Rest(None), 0),
    ("not yet all done", FREE, {"tasks_per_worker": 2}, 21.5, Claim(WAIT_SECONDS), None),
    ("told to leave at the task's end", (*ENDED, finish(21.0), talk(21.5, terminate=True)), {}, 22.0, Rest(None), None),
    ("told to leave while busy", (*TAKEN, talk(11.5, terminate=True)), {}, 12.0, Rest(21.0), None),
    ("asked to end while idle", (signal(12.0),), {}, 12.0, Rest(None), None),
    ("and that was heard", (signal(12.0), talk(12.5)), {}, 12.5, Rest(None), 0),
    ("asked to end while busy", (*SAID, signal(12.0)), {}, 12.0, Rest(21.0), None),
    ("for too long", (*SAID, signal(12.0)), {"stop_seconds": 5.0}, 17.0, Cut(kill=False), None),
    ("asked twice", (*SAID, signal(12.0), signal(13.0)), {}, 13.0, Cut(kill=False), None),
    ("it was told to end", (*SAID, lose(12.0), cut(12.0)), {}, 12.0, Rest(12.0 + KILL_SECONDS), None),
    ("and does not", (*SAID, lose(12.0), cut(12.0)), {}, 12.0 + KILL_SECONDS, Cut(kill=True), None),
    ("nor in its time", (*SAID, lose(12.0), cut(12.0)), {"stop_seconds": 1.0}, 13.0, Cut(kill=True), None),
    ("and cannot", (*SAID, lose(12.0), cut(12.0), cut(17.0, kill=True)), {}, 99.0, Rest(None), None),
    ("the claim is lost", (*SAID, lose(12.0)), {}, 12.0, Cut(kill=False), None),
    ("a lost task is not finished", (*SAID, lose(12.0), cut(12.0), exit_with(143, 13.0)), {}, 13.0, Rest(None), None),
    ("lost as it ended", (*SAID, lose(12.0), exit_with(0, 13.0), talk(13.0)), {}, 13.0, Claim(WAIT_SECONDS), None),
    ("refused while busy", (*SAID, refuse(12.0)), {}, 12.0, Cut(kill=False), None),
    ("refused, and ended", (*SAID, refuse(12.0), cut(12.0), exit_with(143, 13.0)), {}, 13.0, Rest(None), 1),
    ("refused while idle", (refuse(12.0),), {}, 12.0, Rest(None), 1),
    ("given up while busy", (*SAID, give_up(12.0)), {}, 12.0, Rest(21.0), None),
    ("its claim is renewed", (*SAID, give_up(12.0)), {}, 21.0, Renew(TASK), None),
    ("and runs on", (*SAID, give_up(12.0), renew(40.0)), {}, 45.0, Rest(50.0), None),
    ("nobody renews it", (*SAID, give_up(12.0)), {}, 41.0, Cut(kill=False), None),
    ("given up, and lost", (*SAID, give_up(12.0), lose(13.0)), {}, 13.0, Cut(kill=False), None),
    (
        "given up, and asked to end",
        (*SAID, give_up(12.0), signal(13.0)),
        {"stop_seconds": 1.0},
        14.0,
        Cut(kill=False),
        None,
    ),
    ("given up, and done", (*SAID, give_up(12.0), exit_with(0, 20.0)), {}, 20.0, Finish(TASK, 0), None),
    ("and takes no other", (*SAID, give_up(12.0), exit_with(0, 20.0), finish(21.0)), {}, 21.0, Rest(None), 1),
    ("given up while idle", (give_up(12.0),), {}, 12.0, Rest(None), 1),
    ("a task that comes then is not taken", (give_up(12.0), take(12.0)), {}, 12.0, Rest(None), 1),
    ("asked twice while idle", (signal(12.0), signal(13.0)), {}, 13.0, Rest(None), None),
    ("asked twice, and nobody hears it", (signal(12.0), miss(12.5), signal(13.0)), {}, 13.0, Rest(None), 1),
    ("asked once, and nobody hears it", (signal(12.0), miss(12.5)), {}, 13.0, Rest(None), None),
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
    """One task at a time; none while something is owed, and none for who leaves."""
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
    ((*SAID, signal(12.0), signal(13.0), cut(13.0), exit_with(143, 14.0)), {}, ["stopped"]),
    ((*SAID, lose(12.0), cut(12.0), exit_with(143, 13.0)), {"tasks_per_worker": 1}, ["idle"]),
    ((signal(12.0),), {}, ["stopped"]),
    ((signal(12.0), take(12.5)), {}, ["stopped"]),
]


@pytest.mark.parametrize(("steps", "settings", "expected"), OWED)
def test_what_is_owed(steps: tuple[Step, ...], settings: dict[str, Any], expected: list[str]) -> None:
    """A task that the worker cut short counts as none; a task that comes too late is left to run out."""
    assert [owed.what for owed in lived(*steps, **settings).worker.owed] == expected


def test_an_end_that_the_queue_never_hears_is_given_up() -> None:
    """Its claim has long run out: the worker goes on."""
    run = lived(*ENDED, give_up_seconds=900.0)
    run = tasks.queue_unheard(run, 500.0, 0.5)
    assert isinstance(next_work(run, 600.0), Finish)
    assert tasks.queue_unheard(run, 920.0, 0.5).task is None


def test_an_unregistered_worker_leaves_at_once() -> None:
    """There is nobody to tell."""
    run = tasks.signalled(Run(worker=Worker(settings=Settings()), free_since=0.0), "SIGTERM", 1.0)
    assert tasks.exit_code(run) == 0


@given(st.lists(st.sampled_from(["work", "talk", "tell", "miss", "exit", "lose", "signal", "later"]), max_size=60))
def test_laws(choices: list[str]) -> None:
    """Whatever happens: no task is started by a worker that leaves or owes something, never two at once, and every
    started one ends before the worker does."""
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
            if isinstance(call, Register | Tell | Ask):
                said = (
                    core.unheard(run.worker, now, 0.5)
                    if choice == "miss"
                    else core.heard(run.worker, call, now, terminate=choice == "tell")
                )
                run = tasks.talked(run, said, now)
        elif choice == "work":
            match next_work(run, now):
                case Claim():
                    assert not run.worker.leaving
                    assert not run.worker.owed
                    number += 1
                    run = tasks.claimed(run, Task(f"t{number}", ("true",), "q", 30.0), now)
                case Start():
                    live += 1
                    run = tasks.started(run)
                case Renew():
                    run = tasks.renewed(run, now)
                case Cut(kill):
                    run = tasks.cut(run, now, kill=kill)
                case Finish():
                    run = tasks.finished(run, now)
                case Quit() | Rest():
                    pass
        assert live <= 1
        if tasks.exit_code(run) is not None:
            assert live == 0
            return
