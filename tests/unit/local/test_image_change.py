"""Check of a roll-out, a bad image and a rollback on synthetic evidence: each single problem is found."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.launch_config import (
    LaunchConfigArchived,
    LaunchConfigCreated,
    LaunchConfigDraining,
    LaunchConfigState,
    LaunchConfigUpdated,
)
from slipway_api.events.topics import LAUNCH_CONFIG_LIFECYCLE, POOL_LIFECYCLE
from slipway_common.messaging.envelope import Envelope
from slipway_local.check.evidence import Evidence, Published, Rows
from slipway_local.check.image_change import BAD_MACHINES_MAX, Commands, judge
from slipway_local.check.roll_out import drains, launched_while_draining, lost_tasks
from slipway_simulator import facts
from tests.support.pool_events import rolled_back

OLD, NEW, BAD = "c@1", "c@2", "c@3"
IMAGES: Final = {OLD: "i-1", NEW: "i-2", BAD: "i-3"}
COMMANDS: Final = Commands(old="i-1", new="i-2", bad="i-3", replaced_at=20, bad_at=40, rolled_back_at=60)


def published(at: float, revision: int, event: Any) -> Published:
    topic = LAUNCH_CONFIG_LIFECYCLE if isinstance(event, LaunchConfigState) else POOL_LIFECYCLE
    time = datetime.fromtimestamp(at, UTC)
    envelope = Envelope(id="", type=event.type, source="/s", subject="c", time=time, revision=revision)
    return Published(topic.name, 0, 0, envelope, event)


def state(kind: Callable[..., LaunchConfigState], id_: str, state: str, *, current: bool = True, **more: Any) -> Any:
    return kind(
        launch_config_id=id_,
        name="c",
        pool_id="p",
        account_id="a",
        region="r",
        zone="z",
        instance_type="m",
        image_revision=IMAGES[id_],
        base_weight=1.0,
        price_factor=1.0,
        state=state,
        revision=1,
        current=current,
        **more,
    )


def draining(id_: str) -> Any:
    return state(LaunchConfigDraining, id_, "draining", current=False, reason="replaced", by="provisioner")


def machine(at: float, name: str, config: str) -> list[facts.Fact]:
    body: dict[str, Any] = {"account": "a", "token": name, "deployment": "d", "batch": name, "config": config}
    body |= {"zone": "z", "instance_type": "m", "image": IMAGES[config], "request": "r", "call_id": name}
    call = facts.Call(at=at, count=1, **body)
    created = facts.InstanceCreated(
        at=at, instance_id=name, visible_at=at, boots_at=None, claims=True, user_data={}, **body
    )
    return [call, created]


def task(name: str, arrived: float, started: float, done: float | None, instance: str) -> list[facts.Fact]:
    ids: dict[str, Any] = {"task_id": name, "pool_id": "p"}
    steps: list[facts.Fact] = [
        facts.TaskArrived(at=arrived, source_id="s", duration_seconds=1, **ids),
        facts.TaskStarted(at=started, instance_id=instance, ends_at=None, **ids),
    ]
    return steps + ([] if done is None else [facts.TaskEnded(at=done, instance_id=instance, result="done", **ids)])


def good() -> Evidence:
    """Evidence of a run in which all went well."""
    machines = [(10.0, "i1", OLD), (25.0, "i2", NEW), (45.0, "i3", BAD), (46.0, "i4", NEW), (70.0, "i5", NEW)]
    tasks = [("t1", 10.0, 12.0, 30.0, "i1"), ("t2", 41.0, 42.0, 50.0, "i2"), ("t3", 46.0, 48.0, 59.0, "i4")]
    ledger = [fact for each in machines for fact in machine(*each)] + [fact for each in tasks for fact in task(*each)]
    batches = [
        {"id": name, "state": "known", "launch_config_id": config, "started_at": at} for at, name, config in machines
    ]
    return Evidence(
        settled_before=100.0,
        ledger=sorted(ledger, key=lambda fact: fact.at),
        published=[
            published(0, 1, state(LaunchConfigCreated, OLD, "active")),
            published(20, 1, state(LaunchConfigCreated, NEW, "active")),
            published(20, 2, state(LaunchConfigUpdated, OLD, "active", current=False)),
            published(30, 3, draining(OLD)),
            published(35, 4, state(LaunchConfigArchived, OLD, "archived", current=False)),
            published(40, 1, state(LaunchConfigCreated, BAD, "active")),
            published(40, 2, state(LaunchConfigUpdated, NEW, "active", current=False)),
            published(60, 2, draining(BAD)),
            published(60, 3, state(LaunchConfigUpdated, NEW, "active")),
            published(60, 1, ROLLED_BACK),
            published(65, 3, state(LaunchConfigArchived, BAD, "archived", current=False)),
        ],
        dead_records=0,
        rows=Rows(
            workers=[], batches=batches, dead=0, gaps=[], sent={}, limits={}, pools={"p": (0, 9)}, pool_of={NEW: "p"}
        ),
    )


ROLLED_BACK: Final = rolled_back(pool_id="p", to_revision=5, by="op")


def with_ledger(*more: facts.Fact) -> Evidence:
    e = good()
    return msgspec.structs.replace(e, ledger=sorted([*e.ledger, *more], key=lambda fact: fact.at))


def without(kind: type[Any], id_: str) -> Evidence:
    e = good()
    return msgspec.structs.replace(
        e,
        published=[
            p
            for p in e.published
            if not (isinstance(p.event, kind) and getattr(p.event, "launch_config_id", "") == id_)
        ],
    )


def many_bad() -> Evidence:
    return with_ledger(*(fact for n in range(BAD_MACHINES_MAX) for fact in machine(50, f"b{n}", BAD)))


def waiting() -> Evidence:
    arrivals = [task(f"w{n}", 45.0, 65.0, 70.0, "i5") for n in range(BAD_MACHINES_MAX + 2)]
    return with_ledger(*(fact for each in arrivals for fact in each))


def interrupted() -> Evidence:
    ids: dict[str, Any] = {"task_id": "t3", "pool_id": "p", "instance_id": "i4"}
    again = facts.TaskStarted(at=49.5, ends_at=None, **ids)
    return with_ledger(facts.TaskEnded(at=49, result="interrupted", **ids), again)


def only_old_tasks() -> Evidence:
    e = good()
    ends = [fact for fact in e.ledger if not (isinstance(fact, facts.TaskEnded) and fact.at > 40)]
    return msgspec.structs.replace(e, ledger=ends)


def without_rollback() -> Evidence:
    e = good()
    return msgspec.structs.replace(e, published=[p for p in e.published if p.event is not ROLLED_BACK])


def without_launches_after() -> Evidence:
    e = good()
    return msgspec.structs.replace(e, ledger=[fact for fact in e.ledger if fact.at < 70])


def not_current() -> Evidence:
    e = good()
    last = published(80, 4, state(LaunchConfigUpdated, NEW, "active", current=False))
    return msgspec.structs.replace(e, published=[*e.published, last])


PLANTED: Final[list[tuple[Callable[[], Evidence], str]]] = [
    (lambda: without(LaunchConfigState, BAD), "one revision per image"),
    (lambda: without(LaunchConfigDraining, OLD), "without an event that they drain"),
    (lambda: without(LaunchConfigArchived, BAD), "workers have not all left"),
    (not_current, "did not make the earlier revisions current"),
    (without_rollback, "no pool was rolled back"),
    (without_launches_after, "nothing was launched after the rollback"),
    (many_bad, "26 machines with the bad image; at most 25"),
    (only_old_tasks, "no task was done by the revision before"),
    (only_old_tasks, "0 of 2 tasks were done under the bad image"),
    (waiting, "28 tasks waited under the bad image; at most 25"),
    (only_old_tasks, "never done: 2"),
    (interrupted, "interrupted: 1"),
]


def test_a_good_run_has_no_problem() -> None:
    report = judge(good(), COMMANDS)
    assert list(report.problems) == []
    assert dict(report.machines) == {"i-1": 1, "i-2": 3, "i-3": 1}
    assert (report.meanwhile.arrived, report.meanwhile.done, report.done_by_fallback) == (2, 2, 2)


@pytest.mark.parametrize(("plant", "text"), PLANTED)
def test_each_problem_is_found(plant: Callable[[], Evidence], text: str) -> None:
    report = judge(plant(), COMMANDS)
    assert any(text in problem for problem in report.problems), report.problems


def test_a_launch_of_a_draining_revision_is_found_by_row_and_by_ledger() -> None:
    e = good()
    late = {"id": "x", "state": "known", "launch_config_id": OLD, "started_at": 30.1}
    rows = msgspec.structs.replace(e.rows, batches=[*e.rows.batches, late])
    assert launched_while_draining(e) == []
    assert launched_while_draining(msgspec.structs.replace(e, rows=rows)) == [f"{OLD} by its row"]
    assert launched_while_draining(with_ledger(*machine(31, "sent-later", OLD))) == []
    assert launched_while_draining(with_ledger(*machine(33, "late", OLD))) == [f"{OLD} by the ledger"]


def test_a_reactivated_revision_may_launch_again() -> None:
    e = good()
    again = published(62, 4, state(LaunchConfigUpdated, BAD, "active"))
    e = msgspec.structs.replace(e, published=[p for p in [*e.published, again] if p.envelope and p.envelope.time])
    e = msgspec.structs.replace(e, published=[p for p in e.published if not isinstance(p.event, LaunchConfigArchived)])
    assert [(drain.config_id, drain.since, drain.until) for drain in drains(e)] == [
        (OLD, 30.0, float("inf")),
        (BAD, 60.0, 62.0),
    ]
    again_used = [*e.ledger, *machine(66, "again", BAD)]
    assert launched_while_draining(msgspec.structs.replace(e, ledger=again_used)) == []


def test_a_task_that_is_done_after_an_interruption_is_not_lost() -> None:
    assert lost_tasks(good()) == (0, 0)
    assert lost_tasks(interrupted()) == (0, 1)
