"""State transitions of a worker: each is allowed in some states and raises in all others."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from slipway_api.events import worker as events
from slipway_api.events.lifecycle import (
    IN_FLIGHT,
    LIVE,
    SERVING,
    TRANSITIONS,
    WAITING,
    IllegalTransition,
    State,
)
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.domain import workers
from slipway_provisioner.domain.workers import Change, Notice, ReportedNotice, Worker, ended_stage

NOW = datetime(2030, 1, 1, tzinfo=UTC)
REFUSED = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "m5/zone-a/on-demand", "InsufficientCapacity")
BOOT_FAILED = Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, "i", "boot_timeout")


def worker(state: State, **changes: Any) -> Worker:
    usual: dict[str, Any] = {
        "id": "w",
        "pool_id": "p",
        "launch_config_id": "c",
        "account_id": "a",
        "image_revision": "i",
        "state": state,
        "decision_id": "d",
        "probe_permit": 3,
        "request_id": "r",
        "lease_id": "l",
        "holds_unit": True,
        "batch_id": "b",
        "requested_at": NOW - timedelta(seconds=90),
    }
    return Worker(**(usual | changes))


IDS: dict[str, Any] = {
    "worker_id": "w",
    "pool_id": "p",
    "launch_config_id": "c",
    "account_id": "a",
    "image_revision": "i",
    "probe_permit": 3,
}
OK_LAUNCH, OK_BOOT, OK_CLAIM = (Outcome(stage, Result.OK) for stage in (Stage.LAUNCH, Stage.BOOT, Stage.CLAIM))
PROVIDER_BOOT = Outcome(Stage.BOOT, Result.OK, code="provider_running")
VANISHED = Outcome(Stage.BOOT, Result.FAILED, Scope.CONFIG, "c", "vanished")
REGISTERED = {"registered_at": NOW, "idle_since": NOW}

#        state, transition, its name in the table of states, all fields that it changes, its event
CHANGES: list[tuple[State, Callable[[Worker], Any], str, dict[str, Any], Any]] = [
    (State.REQUESTED, lambda w: (workers.calling(w, "b2"), None), "calling", {"batch_id": "b2", "reason": ""}, None),
    (
        State.LAUNCHING,
        lambda w: workers.delayed(w, "throttled", not_before=NOW),
        "delayed",
        {"request_id": None, "lease_id": None, "holds_unit": False, "batch_id": None, "not_before": NOW}
        | {"reason": "throttled"},  # it needs a new request, lease and batch
        events.WorkerDelayed(**IDS, reason="throttled"),
    ),
    (
        State.REQUESTED,
        lambda w: workers.cancelled(w, "demand fell", NOW),
        "stopped",
        {"reason": "demand fell", "ended_at": NOW},
        events.WorkerStopped(**IDS, reason="demand fell", cancelled=True),
    ),
    (
        State.LAUNCHING,
        lambda w: workers.launched(w, "i-1", NOW, looked_up=True, console="log"),
        "launched",
        {"instance_id": "i-1", "launched_at": NOW},
        events.WorkerLaunched(
            **IDS, instance_id="i-1", batch_id="b", looked_up=True, outcome=OK_LAUNCH, console="log", leaving=False
        ),
    ),
    (
        State.LAUNCHING,
        lambda w: workers.launch_failed(w, REFUSED, NOW),
        "launch_failed",
        {"reason": "InsufficientCapacity", "ended_at": NOW, "failed_at": NOW},
        events.WorkerLaunchFailed(**IDS, batch_id="b", outcome=REFUSED),
    ),
    (
        State.STARTING,
        lambda w: workers.registered(w, "i-1", "hash", NOW),
        "registered",
        REGISTERED | {"instance_id": "i-1", "token_sha256": "hash", "last_seen_at": NOW},
        events.WorkerRegistered(**IDS, instance_id="i-1", boot_seconds=90.0, outcome=OK_BOOT),
    ),
    (
        State.STARTING,
        lambda w: workers.seen_running(w, NOW),
        "registered",
        REGISTERED,  # an agent has yet to report
        events.WorkerRegistered(**IDS, instance_id="", boot_seconds=90.0, outcome=PROVIDER_BOOT),
    ),
    (
        State.STARTING,
        lambda w: workers.adopted(w, NOW),
        "registered",
        REGISTERED | {"first_claimed_at": NOW, "last_seen_at": NOW},
        events.WorkerRegistered(**IDS, instance_id="", boot_seconds=0.0, outcome=workers.NO_OUTCOME),
    ),
    (
        State.RUNNING,
        lambda w: workers.claimed(w, "t", "q", NOW),
        "claimed",
        {"first_claimed_at": NOW},
        events.WorkerClaimed(**IDS, task_id="t", source="q", outcome=OK_CLAIM),
    ),
    (State.RUNNING, lambda w: workers.idle(w, NOW), "idle", {"idle_since": NOW}, events.WorkerIdle(**IDS)),
    (
        State.RUNNING,
        lambda w: workers.error_reported(w, "disk", "full"),
        "error_reported",
        {},
        events.WorkerErrorReported(**IDS, kind="disk", detail="full"),
    ),
    (
        State.STARTING,
        lambda w: workers.stopping(w, "late", NOW, BOOT_FAILED, "log"),
        "stopping",
        {"reason": "late", "stopping_at": NOW, "failed_at": NOW},
        events.WorkerStopping(**IDS, reason="late", outcome=BOOT_FAILED, console="log"),
    ),
    (
        State.RUNNING,
        lambda w: workers.stopping_idle(w, "unwanted", NOW, BOOT_FAILED, "log"),
        "stopping",
        {"reason": "unwanted", "stopping_at": NOW, "failed_at": NOW, "may_finish": True},
        events.WorkerStopping(**IDS, reason="unwanted", outcome=BOOT_FAILED, console="log"),
    ),
    (
        State.STOPPING,
        lambda w: workers.stopped(w, "gone", NOW),
        "stopped",
        {"reason": "gone", "ended_at": NOW},
        events.WorkerStopped(**IDS, reason="gone"),
    ),
    (
        State.STARTING,
        lambda w: workers.lost(w, "gone", NOW),
        "lost",
        {"reason": "gone", "ended_at": NOW, "failed_at": NOW},
        events.WorkerLost(**IDS, reason="gone", outcome=VANISHED),
    ),
]


def test_every_transition_has_a_function() -> None:
    assert {name for _, _, name, _, _ in CHANGES} == {event for _, event in TRANSITIONS}


@pytest.mark.parametrize(("change", "name"), [each[1:3] for each in CHANGES])
@pytest.mark.parametrize("state", State)
def test_each_transition_in_each_state(state: State, change: Callable[[Worker], Any], name: str) -> None:
    """Listed pairs change the state; an unlisted pair raises."""
    before = worker(state)
    if (state, name) not in TRANSITIONS:
        with pytest.raises(IllegalTransition):
            change(before)
        return
    after, _ = change(before)
    assert after.state is TRANSITIONS[state, name]


@pytest.mark.parametrize(("state", "change", "name", "fields", "event"), CHANGES)
def test_what_a_transition_changes_and_publishes(
    state: State, change: Callable[[Worker], Any], name: str, fields: dict[str, Any], event: Any
) -> None:
    """These fields and no other; the event carries all ids."""
    before = worker(state)
    after = msgspec.structs.replace(before, state=TRANSITIONS[state, name], **fields)
    assert change(before) == (after, event)


def test_a_new_intent_is_published_with_its_decision() -> None:
    new = worker(State.REQUESTED)
    assert workers.requested(new) == (new, events.WorkerRequested(**IDS, decision_id="d"))


def test_workers_hold_the_units_of_their_leases() -> None:
    """One a worker, until it is released."""
    asked = [worker(State.REQUESTED, lease_id=None, holds_unit=False) for _ in range(3)]
    admitted = [workers.admitted(each, lease) for each, lease in zip(asked, ("l", "l", "m"), strict=True)]
    assert workers.held_units([*admitted, *asked]) == {"l": 2, "m": 1}
    released = workers.without_units(admitted[:1])
    assert released == [worker(State.REQUESTED, holds_unit=False)]
    assert workers.held_units([*released, *admitted[1:]]) == {"l": 1, "m": 1}


def test_a_reply_after_registration_keeps_it_running() -> None:
    """The launch is recorded and the state stays."""
    after, event = workers.launched(worker(State.RUNNING, instance_id="i-1"), "i-1", NOW, looked_up=False)
    assert (after.state, after.launched_at) == (State.RUNNING, NOW)
    assert event.outcome == Outcome(Stage.LAUNCH, Result.OK)


def test_a_late_reply_shows_that_the_worker_is_leaving() -> None:
    """The event says so, since its boot is not awaited."""
    replies = {
        state: workers.launched(worker(state), "i-1", NOW, looked_up=False)[1].leaving
        for state in (State.LAUNCHING, State.RUNNING, State.STOPPING)
    }
    assert replies == {State.LAUNCHING: False, State.RUNNING: False, State.STOPPING: True}


@pytest.mark.parametrize(
    ("launched_at", "seconds"),
    [(NOW - timedelta(seconds=40), 40.0), (None, 90.0), (NOW + timedelta(seconds=1), 0.0)],
)
def test_boot_seconds(launched_at: datetime | None, seconds: float) -> None:
    """Time since the reply, or since the intent if it registered before the reply."""
    state = State.LAUNCHING if launched_at is None else State.STARTING
    after, event = workers.registered(worker(state, launched_at=launched_at), "i-1", "hash", NOW)
    assert (event.boot_seconds, after.idle_since, after.last_seen_at) == (seconds, NOW, NOW)


def test_only_the_first_claim_ends_the_claim_stage() -> None:
    """Later claims are no evidence about the start."""
    first, event = workers.claimed(worker(State.RUNNING, idle_since=NOW), "t1", "q", NOW)
    assert (event.outcome, first.idle_since, first.first_claimed_at) == (Outcome(Stage.CLAIM, Result.OK), None, NOW)
    second, event = workers.claimed(first, "t2", "q", NOW + timedelta(seconds=5))
    assert (event.outcome, second.first_claimed_at) == (None, NOW)


def test_no_stage_ends_while_stopping() -> None:
    """Stopping has ended them: a boot that timed out and then succeeds would count twice."""
    late, event = workers.registered(worker(State.STOPPING), "i-1", "hash", NOW)
    assert (late.registered_at, event.outcome) == (NOW, Outcome(Stage.UNKNOWN, Result.UNKNOWN))
    busy, event = workers.claimed(late, "t", "q", NOW)
    assert (busy.first_claimed_at, event.outcome) == (NOW, None)


def test_vanishing_before_registration_is_a_failed_boot() -> None:
    """In other states a lost worker ends no stage."""
    assert workers.lost(worker(State.STARTING), "gone", NOW)[1].outcome.stage is Stage.BOOT
    for state in LIVE - WAITING - IN_FLIGHT["boot"]:
        assert workers.lost(worker(state), "gone", NOW)[1].outcome is None


@pytest.mark.parametrize("state", sorted(SERVING))
def test_a_terminated_worker_is_no_evidence(state: State) -> None:
    """A worker without a provider call is cancelled, any other is stopping; no stage ends by it."""
    after, event = workers.terminated(worker(state), "terminated by op: drill", NOW)
    assert after.state is (State.STOPPED if state in WAITING else State.STOPPING)
    assert after.reason == event.reason == "terminated by op: drill"
    assert (after.ended_at, after.stopping_at) == ((NOW, None) if state in WAITING else (None, NOW))
    assert (getattr(event, "outcome", None), ended_stage(event), after.failed_at) == (None, None, None)


def test_the_reason_for_stopping_is_kept() -> None:
    """A stopped worker keeps the reason for which it was stopping."""
    asked_to_stop, _ = workers.stopping(worker(State.RUNNING), "idle while tasks wait", NOW)
    assert workers.stopped(asked_to_stop, "instance is gone", NOW)[0].reason == "idle while tasks wait"


def test_a_worker_that_stops_as_idle_finishes_what_it_claimed() -> None:
    """One that stops for another reason, and one that is hastened, has the grace period."""
    idle = worker(State.RUNNING, idle_since=NOW)
    leaving, event = workers.stopping_idle(idle, "more workers than wanted", NOW)
    assert (leaving.state, event.reason, leaving.is_finishing) == (State.STOPPING, "more workers than wanted", False)
    busy, _ = workers.claimed(leaving, "t", "q", NOW)
    assert busy.is_finishing
    assert not workers.idle(busy, NOW)[0].is_finishing
    assert not workers.claimed(workers.stopping(idle, "terminated by op", NOW)[0], "t", "q", NOW)[0].is_finishing
    later = NOW + timedelta(hours=1)
    hastened = workers.hastened(busy, "drain deadline", later)
    assert (hastened.is_finishing, hastened.stopping_at, hastened.reason) == (False, later, "drain deadline")


def test_a_notice_is_news_once() -> None:
    """An interruption after a recommendation is news, nothing after an interruption; no stage ends. What is no news
    changes nothing and is not published."""
    busy = worker(State.RUNNING)
    (_, announced), (recommended, event) = workers.noticed(busy, ReportedNotice(Notice.REBALANCE), "cap", NOW)
    why = "its provider recommends replacing the machine"
    assert (recommended.state, recommended.notice, recommended.reason) == (State.STOPPING, Notice.REBALANCE, why)
    assert (event.reason, event.outcome, recommended.stopping_at) == (why, None, NOW)
    assert (announced.kind, announced.capacity_key, announced.reason) == (events.Notice.REBALANCE, "cap", why)
    assert workers.noticed(recommended, ReportedNotice(Notice.REBALANCE), "cap", NOW) == []
    ((interrupted, announced),) = workers.noticed(recommended, ReportedNotice(Notice.INTERRUPTION, NOW), "cap", NOW)
    assert (interrupted.state, interrupted.notice) == (State.STOPPING, Notice.INTERRUPTION)
    assert interrupted.reason == why, "the reason that it was asked to stop for"
    assert (announced.kind, announced.ends_at) == (events.Notice.INTERRUPTION, NOW)
    for kind in (Notice.REBALANCE, Notice.INTERRUPTION):
        assert workers.noticed(interrupted, ReportedNotice(kind), "cap", NOW) == []


def test_reasons_of_notices() -> None:
    at = datetime(2026, 8, 1, 17, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    notices = [
        ReportedNotice(Notice.REBALANCE, None, "euw1-az2"),
        ReportedNotice(Notice.INTERRUPTION, at, "euw1-az2"),
        ReportedNotice(Notice.INTERRUPTION),
    ]
    reasons = [notice.reason for notice in notices]
    assert reasons == [
        "its provider recommends replacing the machine in zone euw1-az2",
        "its provider will interrupt the machine in zone euw1-az2 at 15:00:05 UTC",
        "its provider will interrupt the machine",
    ]


def test_the_reason_for_a_delay_is_cleared_by_the_call() -> None:
    """A worker that was delayed by a lost lease, launched again and ended by itself."""
    after, _ = workers.delayed(worker(State.REQUESTED), "lease lost")
    after, _ = workers.launched(workers.calling(after, "b2"), "i-1", NOW, looked_up=False)
    after, _ = workers.registered(after, "i-1", "hash", NOW)
    after, _ = workers.stopped(after, "ended by itself", NOW)
    assert (after.state, after.reason) == (State.STOPPED, "ended by itself")


#         change, (config, stage, failed) that it counts for
ENDED: list[tuple[Change, tuple[str, str, bool] | None]] = [
    (workers.launch_failed(worker(State.LAUNCHING), REFUSED, NOW), ("c", "launch", True)),
    (
        workers.launch_failed(worker(State.LAUNCHING), msgspec.structs.replace(REFUSED, scope=Scope.NOTHING), NOW),
        ("c", "launch", True),
    ),
    (workers.stopping(worker(State.STARTING), "late", NOW, BOOT_FAILED), ("c", "boot", True)),
    (workers.lost(worker(State.STARTING), "gone", NOW), ("c", "boot", True)),
    (workers.launched(worker(State.LAUNCHING), "i-1", NOW, looked_up=False), ("c", "launch", False)),
    (workers.launched(worker(State.RUNNING, instance_id="i-1"), "i-1", NOW, looked_up=True), ("c", "launch", False)),
    (workers.registered(worker(State.STARTING), "i-1", "hash", NOW), None),
    (workers.claimed(worker(State.RUNNING), "t", "q", NOW), None),
    (workers.delayed(worker(State.LAUNCHING), "throttled"), None),
    (workers.stopping(worker(State.RUNNING), "drain", NOW), None),
    (workers.requested(worker(State.REQUESTED)), None),
]


@pytest.mark.parametrize(("change", "counted"), ENDED)
def test_ended_stage(change: Change, counted: tuple[str, str, bool] | None) -> None:
    """Every failed outcome counts against its config's window, whatever its scope, and sets `failed_at`. Of the
    successes only launches are counted, once each."""
    after, event = change
    assert ended_stage(event) == counted
    assert after.failed_at == (NOW if counted is not None and counted[2] else None)


LATER = NOW + timedelta(seconds=60)
DRAINED: dict[str, Any] = {"drain_left_seconds": 5.0}
STOPPED: dict[str, Any] = {"state": State.STOPPING, "reason": "r", "stopping_at": LATER, "failed_at": NOW}
LOST: dict[str, Any] = {"state": State.STOPPED, "reason": "r", "ended_at": LATER, "failed_at": NOW}
#        transition of a running worker, what it had before, and what it has afterwards
MARKS: list[tuple[Callable[[Worker], Worker], dict[str, Any], dict[str, Any]]] = [
    (lambda w: workers.marked(w, leave=True), {}, {"leave_after_task": True}),
    (lambda w: workers.marked(w, leave=False), {"leave_after_task": True}, {}),
    (lambda w: workers.draining(w, LATER), DRAINED, {"drain_until": LATER}),
    (lambda w: workers.not_draining(w, NOW), {"drain_until": LATER}, {"drain_left_seconds": 60.0}),
    (lambda w: workers.not_draining(w, LATER), {"drain_until": NOW}, {"drain_left_seconds": 0.0}),
    (lambda w: workers.not_draining(w, NOW), DRAINED, DRAINED),
    (lambda w: workers.with_new_task(w), DRAINED, {}),
    (lambda w: workers.idle(w, NOW)[0], DRAINED, {"idle_since": NOW}),
    (lambda w: workers.stopping(w, "r", LATER)[0], {"failed_at": NOW}, STOPPED),
    (lambda w: workers.lost(w, "r", LATER)[0], {"failed_at": NOW}, LOST),
    (
        lambda w: workers.termination_refused(w, LATER, stuck_after_seconds=600),
        {"termination_refusals": 7, "termination_refused_at": NOW, "stuck_at": NOW},
        {"termination_refusals": 8, "termination_refused_at": NOW, "stuck_at": NOW},
    ),
]


@pytest.mark.parametrize(("change", "before", "after"), MARKS)
def test_what_a_running_worker_remembers(
    change: Callable[[Worker], Worker], before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert change(worker(State.RUNNING, **before)) == worker(**{"state": State.RUNNING} | after)


@pytest.mark.parametrize(
    ("state", "leave", "leaves"),
    [(State.RUNNING, True, True), (State.RUNNING, False, False), (State.STOPPING, True, False)],
)
def test_a_worker_that_was_to_leave_after_its_task(state: State, leave: bool, leaves: bool) -> None:
    """It is asked once, as one that may finish what it claims meanwhile."""
    busy = worker(state, leave_after_task=leave)
    asked = [workers.stopping_idle(busy, "more workers than wanted", NOW)] if leaves else []
    assert workers.left_after_task(busy, NOW) == asked


def test_events_name_the_instance_and_batch_as_far_as_they_are_known() -> None:
    there, here = worker(State.STARTING, instance_id="i-1"), worker(State.LAUNCHING, batch_id=None)
    changes = [
        workers.seen_running(there, NOW),
        workers.adopted(there, NOW),
        workers.stopping(there, "r", NOW),
        workers.lost(there, "r", NOW),
    ]
    assert [event.instance_id for _, event in changes] == ["i-1"] * 4
    assert workers.launched(here, "i-1", NOW, looked_up=False)[1].batch_id == ""
    assert workers.launch_failed(here, REFUSED, NOW)[1].batch_id == ""


@pytest.mark.parametrize(
    ("state", "idle_since", "has_task"),
    [(State.RUNNING, None, True), (State.RUNNING, NOW, False), (State.STARTING, None, False)],
)
def test_a_registered_worker_that_is_not_idle_has_a_task(
    state: State, idle_since: datetime | None, has_task: bool
) -> None:
    assert worker(state, idle_since=idle_since).has_task is has_task
