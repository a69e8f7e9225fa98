"""Roll-outs in one run's evidence: states of revisions by the topic, their launches and tasks by the ledger. Pure."""

from collections import defaultdict
from typing import Final

import msgspec

from slipway_api.events.launch_config import LaunchConfigDraining, LaunchConfigState
from slipway_local.check.evidence import Evidence
from slipway_simulator import facts

# A start that was committed before a drain sends its call a little later.
SENT_SECONDS: Final = 2.5


class DrainInterval(msgspec.Struct, frozen=True):
    """Interval in which a revision launched nothing, by its events; `until` is infinite if it never came back."""

    config_id: str
    since: float
    until: float

    def has(self, at: float, *, after_seconds: float = 0.0) -> bool:
        return self.since + after_seconds < at < self.until


class TaskCounts(msgspec.Struct, frozen=True):
    """Tasks in an interval: arrived, done, and the largest number that waited at the same time."""

    arrived: int
    done: int
    waiting_max: int


def revisions(evidence: Evidence) -> dict[str, LaunchConfigState]:
    """Newest state of each revision, by the topic."""
    newest: dict[str, tuple[int, LaunchConfigState]] = {}
    for published in evidence.published:
        event, envelope = published.event, published.envelope
        if isinstance(event, LaunchConfigState) and envelope is not None:
            revision = envelope.revision or 0
            if revision >= newest.get(event.launch_config_id, (-1, event))[0]:
                newest[event.launch_config_id] = revision, event
    return {id_: event for id_, (_, event) in newest.items()}


def drains(evidence: Evidence) -> list[DrainInterval]:
    """Intervals between the event that a revision drains and the one that it may launch again."""
    history: dict[str, dict[int, tuple[float, LaunchConfigState]]] = defaultdict(dict)
    for published in evidence.published:
        event, envelope = published.event, published.envelope
        if isinstance(event, LaunchConfigState) and envelope is not None:
            history[event.launch_config_id][envelope.revision or 0] = envelope.time.timestamp(), event
    found = []
    for id_, by_revision in history.items():
        since: float | None = None
        for _, (at, event) in sorted(by_revision.items(), key=lambda item: item[0]):
            if since is None and isinstance(event, LaunchConfigDraining):
                since = at
            elif since is not None and event.state in ("active", "paused"):
                found.append(DrainInterval(id_, since, at))
                since = None
        if since is not None:
            found.append(DrainInterval(id_, since, float("inf")))
    return found


def launched_while_draining(evidence: Evidence) -> list[str]:
    """Starts of draining revisions: committed after the drain, or calls that no earlier start explains."""
    by_config: dict[str, list[DrainInterval]] = defaultdict(list)
    for drain in drains(evidence):
        by_config[drain.config_id].append(drain)
    late = [
        f"{batch['launch_config_id']} by its row"
        for batch in evidence.rows.batches
        if any(drain.has(batch["started_at"]) for drain in by_config.get(batch.get("launch_config_id", ""), ()))
    ]
    return late + [
        f"{fact.config} by the ledger"
        for fact in evidence.ledger
        if isinstance(fact, facts.Call)
        and any(drain.has(fact.at, after_seconds=SENT_SECONDS) for drain in by_config.get(fact.config, ()))
    ]


def machines(evidence: Evidence) -> dict[str, list[facts.InstanceCreated]]:
    """Machines ever created, by revision."""
    found: dict[str, list[facts.InstanceCreated]] = defaultdict(list)
    for fact in evidence.ledger:
        if isinstance(fact, facts.InstanceCreated):
            found[fact.config].append(fact)
    return found


def tasks(evidence: Evidence, since: float, until: float) -> TaskCounts:
    """Tasks between two times, by the ledger."""
    arrived = done = waiting = waiting_max = 0
    for fact in evidence.ledger:
        if fact.at > until:
            break
        match fact:
            case facts.TaskArrived() | facts.TaskEnded(result="interrupted"):
                waiting += 1
            case facts.TaskStarted() | facts.TaskClaimed():
                waiting -= 1
        if fact.at >= since:
            arrived += isinstance(fact, facts.TaskArrived)
            done += isinstance(fact, facts.TaskEnded) and fact.result == "done"
            waiting_max = max(waiting_max, waiting)
    return TaskCounts(arrived, done, waiting_max)


def lost_tasks(evidence: Evidence) -> tuple[int, int]:
    """Numbers of tasks that were never done, and of tasks that were interrupted."""
    arrived = {fact.task_id for fact in evidence.ledger if isinstance(fact, facts.TaskArrived)}
    ends = [fact for fact in evidence.ledger if isinstance(fact, facts.TaskEnded)]
    done = {fact.task_id for fact in ends if fact.result == "done"}
    return len(arrived - done), len({fact.task_id for fact in ends if fact.result == "interrupted"})
