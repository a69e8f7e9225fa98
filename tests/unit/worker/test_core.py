"""What a worker says to its provisioner, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slipway_client.worker import core
from slipway_client.worker.core import (
    FIRST_RETRY_SECONDS,
    LONGEST_RETRY_SECONDS,
    Ask,
    GiveUp,
    Owed,
    Register,
    Silence,
    Tell,
    Wait,
    Worker,
    next_call,
)
from slipway_client.worker.settings import Settings

SETTINGS = Settings(heartbeat_seconds=60, poll_seconds=30, give_up_seconds=900)
NEW = Worker(settings=SETTINGS)
REGISTERED = core.heard(NEW, Register(), 10.0)
BUSY = core.took(REGISTERED, "t", "q", 11.0)
SAID = core.heard(BUSY, Tell(Owed("claimed", 11.0, "t", "q")), 12.0)
DONE = core.done(BUSY, 20.0)
CLAIMED, IDLE = Owed("claimed", 11.0, "t", "q"), Owed("idle", 20.0)
SILENT = core.unheard(NEW, 10.0, 0.0)

#                        worker                                     now    next
CALLS: list[tuple[str, Worker, float, object]] = [
    ("first of all", NEW, 1.0, Register()),
    ("left before it was known", core.leave(NEW, "why"), 1.0, Wait(None)),
    ("registered", REGISTERED, 39.0, Wait(40.0)),
    ("idle", REGISTERED, 40.0, Ask(heartbeat=False)),
    ("somebody wants to know", core.wondering(REGISTERED), 11.0, Ask(heartbeat=False)),
    ("a task began", BUSY, 11.0, Tell(CLAIMED)),
    ("busy", SAID, 71.0, Wait(72.0)),
    ("busy for long", SAID, 72.0, Ask(heartbeat=True)),
    ("in order", DONE, 20.0, Tell(CLAIMED)),
    ("the next in order", core.heard(DONE, Tell(CLAIMED), 20.5), 20.5, Tell(IDLE)),
    ("told to leave while idle", core.ending(core.leave(REGISTERED, "why"), 15.0), 15.0, Tell(Owed("stopped", 15.0))),
    ("said last", core.heard(core.ending(REGISTERED, 15.0), Tell(Owed("stopped", 15.0)), 16.0), 99.0, Wait(None)),
    ("refused", core.refused(BUSY, "why"), 99.0, Wait(None)),
    ("just unheard", SILENT, 10.0, Wait(10.0 + FIRST_RETRY_SECONDS / 2)),
    ("unheard", SILENT, 10.0 + FIRST_RETRY_SECONDS, Register()),
    ("unheard for too long", SILENT, 910.0, GiveUp()),
    ("heard again", core.heard(SILENT, Register(), 910.0), 910.0, Wait(940.0)),
]


@pytest.mark.parametrize(("worker", "now", "expected"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_next_call(worker: Worker, now: float, expected: object) -> None:
    """Registration first, then what is owed in order, then signs of life."""
    assert next_call(worker, now) == expected


def test_any_answer_may_tell_it_to_leave() -> None:
    """The first reason stands; what is owed is still told."""
    told = core.heard(BUSY, Tell(CLAIMED), 12.0, terminate=True, reason="idle")
    assert (told.leaving, told.task_id, told.owed) == ("idle", "t", ())
    assert core.heard(told, Ask(heartbeat=True), 13.0, terminate=True, reason="other").leaving == "idle"


def test_a_repeated_task_is_told_once_and_another_ends_the_first() -> None:
    """An agent whose hook for the end was lost has ended its job by the next one."""
    assert core.took(BUSY, "t", "q", 15.0) == BUSY
    other = core.took(BUSY, "u", "q", 16.0)
    assert other.owed == (CLAIMED, Owed("idle", 16.0), Owed("claimed", 16.0, "u", "q"))
    assert core.done(REGISTERED, 16.0) == REGISTERED


def test_an_end_takes_its_task_along_and_is_the_last_word() -> None:
    """Whatever happens after it."""
    ended = core.ending(core.failed(BUSY, "agent_exited", "exit code 3", 13.0), 14.0)
    assert [owed.what for owed in ended.owed] == ["claimed", "error", "stopped"]
    assert ended.task_id == ""
    late = core.failed(core.took(core.ending(ended, 15.0), "u", "q", 16.0), "agent_exited", "again", 17.0)
    assert late.owed == ended.owed


@given(st.integers(1, 40), st.floats(0.0, 1.0, exclude_max=True))
def test_repetitions_slow_down_and_spread(failures: int, chance: float) -> None:
    """Each pause is between half and all of a doubling one, up to the longest; the silence counts from its start."""
    silence = Silence()
    for number in range(failures):
        silence = core.longer(silence, 100.0 + number, chance)
    pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** (failures - 1))
    assert pause / 2 - 1e-9 <= silence.retry_at - (99.0 + failures) <= pause + 1e-9
    assert (silence.since, silence.failures) == (100.0, failures)


Steps = st.lists(st.sampled_from(["take", "done", "fail", "hear", "miss", "tell", "end", "refuse"]), max_size=50)


@given(Steps)
def test_facts_are_heard_once_each_and_in_order(steps: list[str]) -> None:
    """Whatever is lost on the way: the provisioner hears every fact, in the order in which they happened, until the
    last one or a refusal."""
    worker, happened, heard, now, task = REGISTERED, list[Owed](), list[Owed](), 10.0, 0
    for step in steps:
        now += 20.0
        before = worker
        if step == "take":
            task += 1
            worker = core.took(worker, f"t{task}", "q", now)
        elif step == "done":
            worker = core.done(worker, now)
        elif step == "fail":
            worker = core.failed(worker, "agent_exited", "", now)
        elif step == "end":
            worker = core.ending(worker, now)
        elif step == "refuse":
            worker = core.refused(worker, "why")
            happened = happened[: len(heard)]
        elif isinstance(call := next_call(worker, now), Tell | Ask):
            if step == "miss":
                worker = core.unheard(worker, now, 0.5)
            else:
                heard += [call.owed] if isinstance(call, Tell) else []
                worker = core.heard(worker, call, now, terminate=step == "tell")
        if step in {"take", "done", "fail", "end"}:
            happened += worker.owed[len(before.owed) :]
        assert happened == [*heard, *worker.owed]
    words = [owed.what for owed in happened]
    assert words.count("stopped") <= 1
    assert "stopped" not in words[:-1]
    jobs = [word for word in words if word in {"claimed", "idle"}]
    assert all(word == ("claimed", "idle")[place % 2] for place, word in enumerate(jobs))


def test_silence_is_no_refusal() -> None:
    """However often nobody answers, what is owed stays owed."""
    worker = BUSY
    for number in range(100):
        worker = core.unheard(worker, 20.0 + number, 0.5)
    assert worker.owed == (CLAIMED,)
    assert replace(worker, silence=Silence()) == BUSY
