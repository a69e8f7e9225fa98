"""Judgement of a run: reports beside what the queue counted itself, launches beside what its ledger needed. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, pairwise
from math import inf
from typing import Final

import msgspec

ADD_SECONDS: Final = 0.1
"""Longest time that a task takes to be added."""
Count = tuple[int, int | None]
"""Tasks of a queue of the kind that its source counts, and those that run if it counts both."""


class Entry(msgspec.Struct, frozen=True):
    """An entry of the ledger that workers keep in the queue: a task began or ended, at a time in epoch seconds."""

    what: str
    task: str
    at: float


class Task(msgspec.Struct, frozen=True):
    """A task of a pool, from before it was added until its end."""

    name: str
    added_at: float
    ended_at: float = inf


class Machine(msgspec.Struct, frozen=True):
    """A machine of a pool, from the decision to launch it until it could take no more tasks."""

    worker_id: str
    requested_at: float
    finished_at: float = inf


class Sample(msgspec.Struct, frozen=True):
    """Counts of the queue by pool, and the times before and after it was asked."""

    asked_at: float
    answered_at: float
    counts: Mapping[str, Count]


def surplus(machines: Iterable[Machine], tasks: Sequence[Task], allowance_seconds: float) -> list[Machine]:
    """Machines whose launch no moment of the `allowance_seconds` before it needed: at each, the pool had as many
    machines as tasks that waited or ran. The allowance is for what a report and a decision take."""
    ordered = sorted(machines, key=lambda machine: machine.requested_at)
    moments = sorted({*(task.added_at for task in tasks), *(m.finished_at for m in ordered)} - {inf})
    found: list[Machine] = []
    for place, machine in enumerate(ordered):
        begin, end = machine.requested_at - allowance_seconds, machine.requested_at
        earlier = [other for other in ordered[:place] if other not in found]
        if not any(
            _needed(tasks, at) > sum(at < other.finished_at for other in earlier)
            for at in chain((begin, end), (moment for moment in moments if begin <= moment <= end))
        ):
            found.append(machine)
    return found


def _needed(tasks: Sequence[Task], at: float) -> int:
    return sum(task.added_at <= at < task.ended_at for task in tasks)


def is_right(
    pool: str,
    count: Count,
    observed_at: datetime,
    samples: Sequence[Sample],
    within_seconds: float,
    added_at: Collection[float] = (),
) -> bool | None:
    """True if the queue counted that itself within so many seconds of a report; None if it counted something else and
    was not asked all that time. Of two neighbouring samples also what lies between them is right, and fewer tasks than
    in both if some were added in between, each shortly after one of these times: others were taken before them."""
    begin, end = observed_at.timestamp() - within_seconds, observed_at.timestamp() + within_seconds
    pairs = [(one, other) for one, other in pairwise(samples) if other.asked_at >= begin and one.answered_at <= end]
    if not pairs or any(other.answered_at - one.asked_at > within_seconds for one, other in pairs):
        return None
    near = [
        (
            one.counts[pool],
            other.counts[pool],
            sum(one.asked_at - ADD_SECONDS < at < other.answered_at for at in added_at),
        )
        for one, other in pairs
    ]
    if all(
        any(
            min(one[part], other[part] - (0 if part else added)) <= value <= max(one[part], other[part])  # type: ignore[type-var,operator]
            for one, other, added in near
        )
        for part, value in enumerate(count)
        if value is not None
    ):
        return True
    was_asked_always = pairs[0][0].asked_at <= begin and pairs[-1][1].answered_at >= end
    return False if was_asked_always else None
