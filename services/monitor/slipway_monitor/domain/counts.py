"""Counts of a queue, and the demand reports that they make. Pure.

A count that is missing or no whole number is never taken for zero: nothing is reported of it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

import msgspec

from slipway_api.events.pool import DemandReported
from slipway_api.http.provisioner.demand import TASKS_MAX


class Counting(StrEnum):
    """Tasks that a source counts: those that wait, those that wait or run, or both apart."""

    WAITING = "waiting"
    WAITING_AND_RUNNING = "waiting_and_running"
    BOTH = "both"


class Counts(msgspec.Struct, frozen=True):
    """Counts of one label of a queue: `tasks` of the kind that the source counts, and those that run, if it counts
    both. A source of one pool has the label ""."""

    tasks: int
    running: int | None = None
    label: str = ""

    @classmethod
    def of(cls, counting: Counting, waiting: int, running: int, label: str = "") -> Self:
        """Counts of a queue that tells the tasks that wait from those that run."""
        match counting:
            case Counting.WAITING:
                return cls(waiting, None, label)
            case Counting.WAITING_AND_RUNNING:
                return cls(waiting + running, None, label)
            case Counting.BOTH:
                return cls(waiting, running, label)


class Unreadable(Exception):
    """A queue that could not be counted; the text says why. `retry_after_seconds`: it asks not to be read before."""

    def __init__(self, reason: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


class Reporting(msgspec.Struct, frozen=True, kw_only=True):
    """The reports of one source: its name, its counting, and the pools of its labels."""

    source: str
    counting: Counting
    pools: Mapping[str, str]
    valid_for_seconds: float


def whole(value: Any, name: str) -> int:
    """The value as a number of tasks. Raises Unreadable for anything else, such as null, a boolean, text and NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"{name} is {_shown(value)}, not a number")
    if not 0 <= value <= TASKS_MAX or value != int(value):  # nor does NaN, whose comparisons are all false
        shown = "huge" if abs(value) > TASKS_MAX**9 else f"{value:.15g}"
        raise Unreadable(f"{name} is {shown}, not a number of tasks from 0 to {TASKS_MAX:,}")
    return int(value)


def labelled(tasks: Any, running: Any, *, labels: Collection[str] | None, is_both: bool) -> list[Counts]:
    """Counts of the answers of a queue: two numbers, or two mappings from labels to numbers, of which those of other
    labels do not matter. Raises Unreadable."""
    if labels is None:
        return [Counts(whole(tasks, "the count"), whole(running, "the running count") if is_both else None)]
    for answer, name in ((tasks, "the counts"), (running if is_both else {}, "the running counts")):
        if not isinstance(answer, Mapping):
            raise Unreadable(f"{name} are {_shown(answer)}, not a number for each label")
    return [
        Counts(
            whole(number, f"the count of {label!r}"),
            whole(running.get(label), f"the running count of {label!r}") if is_both else None,
            label,
        )
        for label, number in tasks.items()
        if label in labels
    ]


def reports(
    reporting: Reporting, counts: Iterable[Counts], observed_at: datetime, epoch: int | None
) -> tuple[list[DemandReported], list[str]]:
    """Reports of the pools of a source, each the sum of its labels; and the labels without a count, whose pools get no
    report. Labels of no pool are left out. Raises Unreadable for what is no count, which a source from elsewhere may
    give."""
    by_label: dict[str, Counts] = {}
    for each in counts:
        _check(each, reporting.counting)
        if each.label in by_label:
            raise Unreadable(f"label {each.label!r} is counted twice")
        by_label[each.label] = each
    missing = [label for label in reporting.pools if label not in by_label]
    incomplete = {reporting.pools[label] for label in missing}
    of_pool: dict[str, list[Counts]] = {}
    for label, pool in reporting.pools.items():
        if pool not in incomplete:
            of_pool.setdefault(pool, []).append(by_label[label])
    return [_report(reporting, pool, found, observed_at, epoch) for pool, found in of_pool.items()], missing


def _check(counts: Counts, counting: Counting) -> None:
    if not isinstance(counts, Counts):
        raise Unreadable(f"the source gives a {type(counts).__name__} instead of Counts, which is a mistake of it")
    name = f"the count of {counts.label!r}" if counts.label else "the count"
    whole(counts.tasks, name)
    if counting is Counting.BOTH:
        whole(counts.running, f"{name} of tasks that run")


def _report(
    reporting: Reporting, pool: str, found: Sequence[Counts], observed_at: datetime, epoch: int | None
) -> DemandReported:
    tasks = whole(sum(each.tasks for each in found), f"the sum of pool {pool}")
    is_total = reporting.counting is Counting.WAITING_AND_RUNNING
    return DemandReported(
        pool_id=pool,
        source=reporting.source,
        pending=0 if is_total else tasks,
        claimed=sum(each.running or 0 for each in found) if reporting.counting is Counting.BOTH else None,
        total=tasks if is_total else None,
        observed_at=observed_at,
        valid_for_seconds=reporting.valid_for_seconds,
        epoch=epoch,
    )


def _shown(value: Any) -> str:
    """A value of an answer for people: nothing of a text, which may be a secret."""
    if value is None:
        return "null"
    return f"a {type(value).__name__}" if isinstance(value, str | list | dict) else f"{value}"
