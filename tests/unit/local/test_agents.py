"""What the kernel and the queue say of a run's agents, on made-up evidence."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from slipway_common.envelope import Envelope
from slipway_common.events import worker as events
from slipway_common.topics import WORKER_LIFECYCLE
from slipway_local.agents import Seen, merged, shortcomings, summary
from slipway_local.check import judge
from slipway_local.evidence import Evidence, Published, Rows
from slipway_simulator import facts

IDS: Any = {"pool_id": "p", "launch_config_id": "c", "account_id": "here", "image_revision": "i"}
OK = events.Outcome(events.Stage.LAUNCH, events.Result.OK)


def published(number: int, at: float, event: Any) -> Published:
    envelope = Envelope(
        id=str(number), type=event.type, source="/s", subject=event.worker_id, time=datetime.fromtimestamp(at, UTC),
        number=number, previous=number - 1, number_source="/s/1", revision=number,
    )  # fmt: skip
    return Published(WORKER_LIFECYCLE.name, 0, number, envelope, event)


def row(number: int, state: str) -> dict[str, Any]:
    ids = {"id": f"w{number}", "instance_id": f"i{number}", "batch_id": f"b{number}"}
    return ids | {"state": state, "requested_at": 1.0}


def seen(number: int, began_at: float, ended_at: float | None = None) -> Seen:
    return Seen(
        instance_id=f"i{number}", account_id="here", batch_id=f"b{number}", config_id="c", began_at=began_at,
        ended_at=ended_at,
    )  # fmt: skip


def claimed(at: float, task: str, instance: str) -> facts.Fact:
    return facts.TaskClaimed(
        at=at, task_id=task, pool_id="p", instance_id=instance, worker_id="w", runs_out_at=at + 20, unit=False
    )


def done(at: float, task: str, instance: str) -> facts.Fact:
    return facts.TaskEnded(at=at, task_id=task, pool_id="p", instance_id=instance, result="done", exit_code=0)


def arrived(task: str) -> facts.Fact:
    return facts.TaskArrived(at=1, task_id=task, pool_id="p", source_id="s", duration_seconds=1)


def registered(at: float, instance: str) -> facts.Fact:
    return facts.Registered(at=at, instance_id=instance, worker_id="w", pool_id="p", token="")


LEDGER = [arrived("t1"), arrived("t2"), registered(4.5, "i1"), claimed(4.5, "t1", "i1"), done(6, "t1", "i1")]


def evidence(ledger: list[facts.Fact], *told: Published, states: tuple[str, ...] = ("stopped",)) -> Evidence:
    rows = Rows(
        workers=[row(number, state) for number, state in enumerate(states, 1)],
        batches=[{"id": f"b{number}", "state": "known"} for number in range(1, len(states) + 1)], dead=0, gaps=[],
        sent={}, limits={"here": 1}, pools={"p": (0, 1)}, pool_of={"c": "p"},
    )  # fmt: skip
    return Evidence(settled_before=100.0, ledger=ledger, published=told, dead_records=0, rows=rows)


def at(found: Evidence, kind: type[facts.Fact]) -> list[float]:
    return [fact.at for fact in found.ledger if isinstance(fact, kind)]


def worker(number: int, kind: Any, **fields: Any) -> Any:
    return kind(worker_id=f"w{number}", **IDS, **fields)


def test_the_kernel_stands_for_the_clouds_ledger() -> None:
    """A process is a call of one, its instance and its end, beside what the queue has written."""
    found = merged(evidence(LEDGER), [seen(1, 2.0, 8.0), seen(2, 3.0)])
    assert (at(found, facts.Call), at(found, facts.InstanceCreated)) == ([2.0, 3.0], [2.0, 3.0])
    assert (at(found, facts.Registered), at(found, facts.Terminated)) == ([4.5], [8.0])
    assert [fact.at for fact in found.ledger] == sorted(fact.at for fact in found.ledger)
    assert len(found.ledger) == len(LEDGER) + 7


@pytest.mark.parametrize(
    ("said_at", "counts"), [(4.0, 4.0), (1.9, 6.95), (6.96, 6.95), (None, 6.95)], ids=["soon", "long ago", "late", "no"]
)
def test_what_was_told_counts_if_it_is_confirmed(said_at: float | None, counts: float) -> None:
    """The provisioner's word counts only with the queue's or the kernel's right behind it: alone it proves nothing."""
    told = [] if said_at is None else [
        published(1, said_at, worker(1, events.WorkerRegistered, instance_id="i1", boot_seconds=1.0, outcome=OK)),
        published(2, said_at, worker(1, events.WorkerStopped, reason="ended by itself")),
    ]  # fmt: skip
    found = merged(evidence([registered(6.95, "i1")], *told), [seen(1, 1.0, 6.95)])
    assert (at(found, facts.Registered), at(found, facts.Terminated)) == ([counts], [counts])


def test_two_agents_in_one_place_are_seen() -> None:
    """A second process beside the first is above both limits, whatever the topics say."""
    told = published(1, 1.0, worker(1, events.WorkerRequested, decision_id="d"))
    one = judge(merged(evidence(LEDGER, told), [seen(1, 2.0, 8.0), seen(2, 8.0, 9.0)]))
    two = judge(merged(evidence(LEDGER, told), [seen(1, 2.0, 8.0), seen(2, 3.0, 9.0)]))
    assert one.over_cap_seconds == 0
    assert two.over_cap_seconds == pytest.approx(1.5 + 5.0)  # until the first has registered, until it has ended


def test_an_agent_that_no_row_has_is_seen() -> None:
    """It runs on, and no worker is bound to it."""
    told = published(1, 1.0, worker(1, events.WorkerRequested, decision_id="d"))
    stray = msgspec.structs.replace(seen(2, 3.0), batch_id="unknown")
    assert judge(merged(evidence(LEDGER, told), [seen(1, 2.0, 8.0)])).rowless == 0
    assert judge(merged(evidence(LEDGER, told), [seen(1, 2.0, 8.0), stray])).rowless == 1


FOUR = [seen(1, 2.0, 8.0), seen(2, 3.0), seen(3, 3.0), seen(4, 3.0)]
FAULTS: list[tuple[str, list[facts.Fact], list[Seen], float, str]] = [
    ("good", LEDGER, FOUR, 2.0, ""),
    ("nobody", [*LEDGER, claimed(5, "t2", "i9"), done(6, "t2", "i9")], FOUR, 2.0, "1 tasks ran on a process"),
    ("before it began", [*LEDGER, claimed(2.9, "t2", "i2")], FOUR, 2.0, "such as ['t2']"),
    ("after its end", [*LEDGER, claimed(5, "t2", "i1"), done(8.1, "t2", "i1")], FOUR, 2.0, "such as ['t2']"),
    ("few tasks", LEDGER, FOUR, 10.0, "1 of 2 tasks were done"),
    ("few agents", LEDGER, FOUR[:3], 2.0, "3 agents were started"),
    ("no task", LEDGER[:2], FOUR, 0.0, "no task was claimed"),
]


@pytest.mark.parametrize(("ledger", "agents", "seconds", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_each_shortcoming_alone(ledger: list[facts.Fact], agents: list[Seen], seconds: float, words: str) -> None:
    problems = shortcomings(evidence(ledger), agents, seconds=seconds)
    assert (len(problems) == 1 and words in problems[0]) if words else problems == []


def test_the_summary_counts_the_witnesses() -> None:
    assert summary(evidence(LEDGER), FOUR) == "agents=4 ended=1 tasks=1 on 1 of them"
