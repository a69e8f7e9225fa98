"""Calls of a worker to its provisioner: which one is next, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slipway_client.transport.backoff import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, Backoff, next_backoff
from slipway_client.worker import core
from slipway_client.worker.core import GiveUp, Poll, Register, Reply, Report, SendReport, Wait, Worker, next_call
from slipway_client.worker.settings import Settings

SETTINGS = Settings(heartbeat_seconds=60, poll_seconds=30, give_up_seconds=900)
NEW = Worker(settings=SETTINGS)
REGISTERED = core.answered(NEW, Register(), 10.0)
BUSY = core.task_started(REGISTERED, "t", "q", 11.0)
REPORTED = core.answered(BUSY, SendReport(Report("claimed", 11.0, "t", "q")), 12.0)
DONE = core.task_ended(BUSY, 20.0)
CLAIMED, IDLE = Report("claimed", 11.0, "t", "q"), Report("idle", 20.0, "t", "q", claimed_at=11.0)
UNANSWERED = core.unanswered(NEW, 10.0, 0.0)

#                        worker                                     now    next
CALLS: list[tuple[str, Worker, float, object]] = [
    ("first of all", NEW, 1.0, Register()),
    ("left before it was known", core.leave(NEW, "why"), 1.0, Wait(None)),
    ("registered", REGISTERED, 39.0, Wait(40.0)),
    ("idle", REGISTERED, 40.0, Poll(heartbeat=False)),
    ("somebody wants to know", core.request_poll(REGISTERED), 11.0, Poll(heartbeat=False)),
    ("a task began", BUSY, 11.0, SendReport(CLAIMED)),
    ("busy", REPORTED, 71.0, Wait(72.0)),
    ("busy for long", REPORTED, 72.0, Poll(heartbeat=True)),
    ("in order", DONE, 20.0, SendReport(CLAIMED)),
    ("the next in order", core.answered(DONE, SendReport(CLAIMED), 20.5), 20.5, SendReport(IDLE)),
    (
        "drain requested while idle",
        core.stopping(core.leave(REGISTERED, "why"), 15.0),
        15.0,
        SendReport(Report("stopped", 15.0)),
    ),
    (
        "reported last",
        core.answered(core.stopping(REGISTERED, 15.0), SendReport(Report("stopped", 15.0)), 16.0),
        99.0,
        Wait(None),
    ),
    ("refused", core.refused(BUSY, "why"), 99.0, Wait(None)),
    ("just unanswered", UNANSWERED, 10.0, Wait(10.0 + FIRST_RETRY_SECONDS / 2)),
    ("unanswered", UNANSWERED, 10.0 + FIRST_RETRY_SECONDS, Register()),
    ("unanswered for too long", UNANSWERED, 910.0, GiveUp()),
    ("until a restore is confirmed", core.postponed(UNANSWERED, 900.0, 0.0), 910.0, Register()),
    ("in a task", core.unanswered(REPORTED, 20.0, 0.0), 920.0, GiveUp()),
    ("given up in a task", core.gave_up(core.unanswered(REPORTED, 20.0, 0.0), "why"), 920.0, Poll(heartbeat=True)),
    (
        "given up, and the task has ended",
        core.task_ended(core.gave_up(core.unanswered(REPORTED, 20.0, 0.0), "why"), 950.0),
        950.0,
        GiveUp(),
    ),
    ("given up for good", core.gave_up(core.unanswered(REGISTERED, 20.0, 0.0), "why"), 920.0, Wait(None)),
    ("answered again", core.answered(UNANSWERED, Register(), 910.0), 910.0, Wait(940.0)),
]


@pytest.mark.parametrize(("worker", "now", "expected"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_next_call(worker: Worker, now: float, expected: object) -> None:
    """Registration first, then pending reports in order, then heartbeats and polls."""
    assert next_call(worker, now) == expected


def test_any_answer_may_ask_it_to_leave() -> None:
    """The first reason stands; pending reports are still sent."""
    worker = core.answered(BUSY, SendReport(CLAIMED), 12.0, Reply(terminate=True, reason="idle"))
    assert (worker.leaving, worker.claims, worker.reports) == ("idle", (CLAIMED,), ())
    assert core.answered(worker, Poll(heartbeat=True), 13.0, Reply(terminate=True, reason="other")).leaving == "idle"


def test_a_repeated_task_is_reported_once_and_another_ends_the_first() -> None:
    """The start of another job ends the first, whose end hook was lost."""
    assert core.task_started(BUSY, "t", "q", 15.0) == BUSY
    other = core.task_started(BUSY, "u", "q", 16.0)
    assert other.reports == (CLAIMED, replace(IDLE, at=16.0), Report("claimed", 16.0, "u", "q"))
    assert core.task_ended(REGISTERED, 16.0) == REGISTERED


def test_several_tasks_at_once() -> None:
    """The end of one leaves the others. Without a name it ends the only one, and none of several."""
    both = core.task_started(replace(BUSY, task_slots=2), "u", "q", 16.0)
    assert [report.task_id for report in both.reports] == ["t", "u"]
    assert core.task_ended(both, 20.0) == core.task_ended(both, 20.0, "other") == both
    one = core.task_ended(both, 20.0, "t")
    assert (one.reports[-1], one.has_task) == (IDLE, True)
    assert not core.task_ended(one, 21.0).has_task
    lost = core.answered(replace(both, reports=()), Poll(heartbeat=True), 30.0, Reply(has_task=False))
    assert lost.reports == both.claims
    assert core.answered(NEW, Register(), 10.0, Reply(task_slots=3)).task_slots == 3


def test_a_stop_ends_the_task_and_is_the_last_report() -> None:
    """Later tasks and errors add no report."""
    ended = core.stopping(core.failed(BUSY, "agent_exited", "exit code 3", 13.0), 14.0)
    assert [report.what for report in ended.reports] == ["claimed", "error", "stopped"]
    assert not ended.has_task
    late = core.failed(core.task_started(core.stopping(ended, 15.0), "u", "q", 16.0), "agent_exited", "again", 17.0)
    assert late.reports == ended.reports


@given(st.integers(1, 40), st.floats(0.0, 1.0, exclude_max=True))
def test_repetitions_slow_down_and_spread(failures: int, chance: float) -> None:
    """Each pause is between half and all of a doubling one, up to the longest; `since` is the first failure."""
    backoff = Backoff()
    for number in range(failures):
        backoff = next_backoff(backoff, 100.0 + number, chance)
    pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** (failures - 1))
    assert pause / 2 - 1e-9 <= backoff.retry_at - (99.0 + failures) <= pause + 1e-9
    assert (backoff.since, backoff.failures) == (100.0, failures)


Steps = st.lists(st.sampled_from(["take", "done", "fail", "answer", "miss", "drain", "end", "refuse"]), max_size=50)


@given(Steps)
def test_reports_arrive_once_each_and_in_order(steps: list[str]) -> None:
    """The provisioner gets every report in order, until the last one or a refusal."""
    worker, happened, answered, now, task = REGISTERED, list[Report](), list[Report](), 10.0, 0
    for step in steps:
        now += 20.0
        before = worker
        if step == "take":
            task += 1
            worker = core.task_started(worker, f"t{task}", "q", now)
        elif step == "done":
            worker = core.task_ended(worker, now)
        elif step == "fail":
            worker = core.failed(worker, "agent_exited", "", now)
        elif step == "end":
            worker = core.stopping(worker, now)
        elif step == "refuse":
            worker = core.refused(worker, "why")
            happened = happened[: len(answered)]
        elif isinstance(call := next_call(worker, now), SendReport | Poll):
            if step == "miss":
                worker = core.unanswered(worker, now, 0.5)
            else:
                answered += [call.report] if isinstance(call, SendReport) else []
                worker = core.answered(worker, call, now, Reply(terminate=step == "drain"))
        if step in {"take", "done", "fail", "end"}:
            happened += worker.reports[len(before.reports) :]
        assert happened == [*answered, *worker.reports]
    kinds = [report.what for report in happened]
    assert kinds.count("stopped") <= 1
    assert "stopped" not in kinds[:-1]
    jobs = [word for word in kinds if word in {"claimed", "idle"}]
    assert all(word == ("claimed", "idle")[place % 2] for place, word in enumerate(jobs))


def test_an_unknown_worker_registers_again_once() -> None:
    """Its reports stay pending, and its task goes on; it gives up if it is unknown again, and not before."""
    lost = core.unknown(BUSY, "unknown")
    assert (next_call(lost, 20.0), lost.claims, lost.refused) == (Register(), (CLAIMED,), "")
    known = core.answered(lost, Register(), 21.0)
    assert next_call(known, 22.0) == SendReport(CLAIMED)
    assert core.unknown(known, "unknown").refused == "unknown"
    settled = core.answered(known, SendReport(CLAIMED), 23.0)
    assert core.unknown(settled, "unknown").refused == ""


def test_a_leaving_worker_registers_again_to_report_its_end() -> None:
    lost = core.unknown(core.stopping(core.leave(REGISTERED, "why"), 15.0), "unknown")
    assert next_call(lost, 20.0) == Register()


def test_a_lost_claim_is_reported_again() -> None:
    """Once the provisioner says, while the task runs, that it knows of none; with the time of the claim."""
    lost = core.answered(REPORTED, Poll(heartbeat=True), 72.0, Reply(has_task=False))
    assert next_call(lost, 72.0) == SendReport(CLAIMED)
    assert core.answered(REPORTED, Poll(heartbeat=True), 72.0).reports == ()
    for idle in (REGISTERED, core.answered(core.task_ended(REPORTED, 70.0), SendReport(IDLE), 71.0)):
        assert core.answered(idle, Poll(heartbeat=True), 72.0, Reply(has_task=False)).reports == ()
    ended = core.task_ended(REPORTED, 71.0)
    assert core.answered(ended, Poll(heartbeat=True), 72.0, Reply(has_task=False)).reports == ended.reports


@given(st.floats(0.0, 1.0, exclude_max=True), st.floats(0.0, 100.0))
def test_a_busy_provisioner_is_waited_for(chance: float, retry_after_seconds: float) -> None:
    """Its answer loses no report, and is no silence for which the worker would give up. Each waits as long as it asks
    for, but for at most a minute, and up to half as long again."""
    worker, now = BUSY, 20.0
    for _ in range(50):
        worker = core.postponed(worker, now, chance, retry_after_seconds)
        waited = worker.backoff.retry_at - now
        assert waited >= min(retry_after_seconds, 60.0) * (1 + chance / 2) - 1e-9
        assert waited <= max(90.0, LONGEST_RETRY_SECONDS)
        assert next_call(worker, now) == Wait(worker.backoff.retry_at)
        now = worker.backoff.retry_at
        assert next_call(worker, now) == SendReport(CLAIMED)
    assert now > 20.0 + BUSY.settings.give_up_seconds or retry_after_seconds < 20


def test_an_outage_is_no_refusal() -> None:
    """However often a call is not answered, reports stay pending."""
    worker = BUSY
    for number in range(100):
        worker = core.unanswered(worker, 20.0 + number, 0.5)
    assert worker.reports == (CLAIMED,)
    assert replace(worker, backoff=Backoff()) == BUSY
