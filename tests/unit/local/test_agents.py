"""Evidence of the kernel and the queue about a run's agents, on synthetic data."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from slipway_api.events import worker as events
from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_common.base.ids import new_id
from slipway_common.base.process import identities
from slipway_common.messaging.envelope import Envelope
from slipway_local.check.evidence import Evidence, Published, Rows
from slipway_local.check.path_check import judge
from slipway_local.demo.agents import AgentProcess, Agents, contradictions, merged, summary
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator import facts
from tests.support.harness import until
from tests.support.linux import needs_linux

IDS: Any = {"pool_id": "p", "launch_config_id": "c", "account_id": "here", "image_revision": "i"}
OK = events.Outcome(events.Stage.LAUNCH, events.Result.OK)


def published(number: int, at: float, event: Any) -> Published:
    envelope = Envelope(
        id=str(number),
        type=event.type,
        source="/s",
        subject=event.worker_id,
        time=datetime.fromtimestamp(at, UTC),
        sequence_number=number,
        previous=number - 1,
        sequence_source="/s/1",
        revision=number,
    )
    return Published(WORKER_LIFECYCLE.name, 0, number, envelope, event)


def row(number: int, state: str) -> dict[str, Any]:
    ids = {"id": f"w{number}", "instance_id": f"i{number}", "batch_id": f"b{number}"}
    return ids | {"state": state, "requested_at": 1.0}


def seen(number: int, began_at: float, ended_at: float | None = None) -> AgentProcess:
    return AgentProcess(
        instance_id=f"i{number}",
        account_id="here",
        batch_id=f"b{number}",
        config_id="c",
        began_at=began_at,
        ended_at=ended_at,
    )


def claimed(at: float, task: str, instance: str) -> facts.Fact:
    return facts.TaskClaimed(
        at=at, task_id=task, pool_id="p", instance_id=instance, worker_id="w", expires_at=at + 20, unit=False
    )


def done(at: float, task: str, instance: str) -> facts.Fact:
    return facts.TaskEnded(at=at, task_id=task, pool_id="p", instance_id=instance, result="done", exit_code=0)


def arrived(task: str) -> facts.Fact:
    return facts.TaskArrived(at=1, task_id=task, pool_id="p", source_id="s", duration_seconds=1)


def registered(at: float, instance: str) -> facts.Fact:
    return facts.Registered(at=at, instance_id=instance, worker_id="w", pool_id="p", token="")


LEDGER = [arrived("t1"), arrived("t2"), registered(4.5, "i1"), claimed(4.5, "t1", "i1"), done(6, "t1", "i1")]


def evidence(ledger: list[facts.Fact], *published: Published, states: tuple[str, ...] = ("stopped",)) -> Evidence:
    rows = Rows(
        workers=[row(number, state) for number, state in enumerate(states, 1)],
        batches=[{"id": f"b{number}", "state": "known"} for number in range(1, len(states) + 1)],
        dead=0,
        gaps=[],
        sent={},
        limits={"here": 1},
        pools={"p": (0, 1)},
        pool_of={"c": "p"},
    )
    return Evidence(settled_before=100.0, ledger=ledger, published=published, dead_records=0, rows=rows)


def at(found: Evidence, kind: type[facts.Fact]) -> list[float]:
    return [fact.at for fact in found.ledger if isinstance(fact, kind)]


def worker(number: int, kind: Any, **fields: Any) -> Any:
    return kind(worker_id=f"w{number}", **IDS, **fields)


def test_processes_become_facts_of_the_cloud() -> None:
    """An agent is one create call, its instance and its termination, in addition to the facts of the queue."""
    found, corrected_seconds = merged(evidence(LEDGER), [seen(1, 2.0, 8.0), seen(2, 3.0)])
    assert corrected_seconds == 0
    assert (at(found, facts.Call), at(found, facts.InstanceCreated)) == ([2.0, 3.0], [2.0, 3.0])
    assert (at(found, facts.Registered), at(found, facts.Terminated)) == ([4.5], [8.0])
    assert [fact.at for fact in found.ledger] == sorted(fact.at for fact in found.ledger)
    assert len(found.ledger) == len(LEDGER) + 7


@pytest.mark.parametrize(
    ("reported_at", "counts"),
    [(6.2, 6.2), (5.9, 6.95), (6.96, 6.95), (None, 6.95)],
    ids=["soon", "long ago", "late", "no"],
)
def test_a_report_counts_if_it_is_confirmed(reported_at: float | None, counts: float) -> None:
    """An event counts only if the queue or the kernel confirms it soon afterwards."""
    records = (
        []
        if reported_at is None
        else [
            published(
                1, reported_at, worker(1, events.WorkerRegistered, instance_id="i1", boot_seconds=1.0, outcome=OK)
            ),
            published(2, reported_at, worker(1, events.WorkerStopped, reason="ended by itself")),
        ]
    )
    registration, _ = merged(evidence([registered(6.95, "i1")], *records), [seen(1, 1.0)])
    end, _ = merged(evidence([], *records), [seen(1, 1.0, 6.95)])
    _, corrected_seconds = merged(evidence([registered(6.95, "i1"), registered(1, "i2")], *records), [seen(1, 1.0)])
    assert (at(registration, facts.Registered), at(end, facts.Terminated)) == ([counts], [counts])
    assert corrected_seconds == pytest.approx(6.95 - counts)


@pytest.mark.parametrize(
    ("ledger", "counts"),
    [
        ([done(8.9, "t1", "i1")], 9.0),
        ([done(9.2, "t1", "i1")], 9.5),
        ([claimed(9.2, "t1", "i1")], 9.5),
        ([claimed(8.0, "t1", "i1"), facts.TaskRenewed(at=9.2, task_id="t1", pool_id="p", expires_at=20)], 9.5),
    ],
    ids=["before", "done", "claimed", "renewed"],
)
def test_an_agent_that_still_works_has_not_ended(ledger: list[facts.Fact], counts: float) -> None:
    """A stop event does not count if the queue received a later request from the agent."""
    stopped = published(1, 9.0, worker(1, events.WorkerStopped, reason="ended by itself"))
    found, corrected_seconds = merged(evidence(ledger, stopped), [seen(1, 1.0, 9.5)])
    assert at(found, facts.Terminated) == [counts]
    assert corrected_seconds == 9.5 - counts


def test_an_early_stop_event_hides_no_second_process() -> None:
    """Two processes overlap, although the first one's stop event is earlier than the second one's start."""
    records = [
        published(1, 1.0, worker(1, events.WorkerRequested, decision_id="d")),
        published(2, 5.0, worker(1, events.WorkerStopped, reason="ended by itself")),
    ]
    ledger = [arrived("t1"), registered(2.5, "i1"), claimed(2.5, "t1", "i1"), done(9.5, "t1", "i1")]
    found, corrected_seconds = merged(evidence(ledger, *records), [seen(1, 2.0, 9.9), seen(2, 5.1, 12.0)])
    assert judge(found).over_cap_seconds == pytest.approx(9.9 - 5.1)
    assert corrected_seconds == 0


def test_two_agents_above_a_limit_are_found() -> None:
    """A second process beside the first exceeds both limits, independently of the topics."""
    requested = published(1, 1.0, worker(1, events.WorkerRequested, decision_id="d"))
    one = judge(merged(evidence(LEDGER, requested), [seen(1, 2.0, 8.0), seen(2, 8.0, 9.0)])[0])
    two = judge(merged(evidence(LEDGER, requested), [seen(1, 2.0, 8.0), seen(2, 3.0, 9.0)])[0])
    assert one.over_cap_seconds == 0
    assert two.over_cap_seconds == pytest.approx(1.5 + 5.0)  # until the first has registered, until it has ended


def test_an_orphan_agent_is_found() -> None:
    """An agent without a row still runs."""
    requested = published(1, 1.0, worker(1, events.WorkerRequested, decision_id="d"))
    orphan = msgspec.structs.replace(seen(2, 3.0), batch_id="unknown")
    assert judge(merged(evidence(LEDGER, requested), [seen(1, 2.0, 8.0)])[0]).unmatched == 0
    assert judge(merged(evidence(LEDGER, requested), [seen(1, 2.0, 8.0), orphan])[0]).unmatched == 1


FOUR = [seen(1, 2.0, 8.0), seen(2, 3.0), seen(3, 3.0), seen(4, 3.0)]


@pytest.mark.parametrize(
    ("more", "is_impossible"),
    [
        pytest.param([], False, id="good"),
        pytest.param([claimed(5, "t2", "i9"), done(6, "t2", "i9")], True, id="nobody"),
        pytest.param([claimed(2.9, "t2", "i2")], True, id="before it began"),
        pytest.param([claimed(5, "t2", "i1"), done(8.1, "t2", "i1")], True, id="after its end"),
    ],
)
def test_tasks_on_processes_that_did_not_exist_are_named(more: list[facts.Fact], is_impossible: bool) -> None:
    problems = contradictions(evidence([*LEDGER, *more]), FOUR)
    assert [problem.rpartition(" ")[2] for problem in problems] == (["['t2']"] if is_impossible else [])


def test_summary() -> None:
    line = "agents: 4 started, 1 ended, 1 task done by 1 of them; times corrected by 0.2 s"
    assert summary(evidence(LEDGER), FOUR, 0.25) == line


class Place:
    """The part of a deployment that Agents use."""

    def __init__(self, folder: Path) -> None:
        self.id = new_id()
        self.folder = folder
        self.providers: dict[str, Any] = {}


@needs_linux
async def test_a_running_agent_without_its_tag_is_counted(tmp_path: Path) -> None:
    """An agent that has cleared its environment is counted until its process has ended."""
    agents = Agents(cast("Deployment", Place(tmp_path)))
    await agents.start(Supervisor())
    child = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        identity = identities.child_identity(child.pid)
        start = identity.split("-")[1]
        with agents.path.open("a") as lines:
            lines.write(f"{child.pid} {start} {agents.tag}here/b1/1/c/i\n")
        await until(lambda: identity in agents.seen, "it was observed")
        await agents.count()
        assert agents.left == 1
    finally:
        child.kill()
        await child.wait()
    await agents.count()
    assert agents.left == 0


async def test_a_failed_observation_is_raised(tmp_path: Path) -> None:
    """A count without a working observation would be too low."""
    agents = Agents(cast("Deployment", Place(tmp_path)))
    await agents.start(Supervisor())
    agents.path.write_text("1 2 \n")
    assert agents._watching is not None
    await asyncio.wait({agents._watching}, timeout=60)
    with pytest.raises(ValueError, match="without SLIPWAY_INSTANCE_TAG"):
        await agents.count()
    with pytest.raises(ValueError, match="without SLIPWAY_INSTANCE_TAG"):
        await agents.leave()
