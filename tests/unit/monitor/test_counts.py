"""Counts of queues, the reports that they make, and the times at which queues are read."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.pool import DemandReported
from slipway_monitor.domain.counts import Counting, Counts, Reporting, Unreadable, labelled, reports, whole
from slipway_monitor.domain.schedule import JITTER, RETRY_AFTER_SECONDS_MAX, first_read, next_read
from slipway_monitor.sources.keda import quantity
from slipway_monitor.sources.web import retry_after

AT = datetime(2030, 1, 1, tzinfo=UTC)
tasks = st.integers(0, 1_000)


def made(counting: Counting, *counts: Counts, pools: dict[str, str] | None = None) -> list[DemandReported]:
    reporting = Reporting(source="q", counting=counting, pools=pools or {"": "linux"}, valid_for_seconds=300)
    return reports(reporting, counts, AT, epoch=7)[0]


@pytest.mark.parametrize("value", [None, True, False, "5", "", [], {}, float("nan"), float("inf"), -1, 1.5])
def test_what_is_no_count(value: Any) -> None:
    """It is never taken for zero, and no text of it is quoted."""
    with pytest.raises(Unreadable) as refused:
        whole(value, "the count")
    assert "5" not in str(refused.value) or value != "5"


@given(tasks)
def test_whole_numbers_are_counts(number: int) -> None:
    assert whole(number, "n") == whole(float(number), "n") == number


@given(tasks, tasks)
def test_what_a_number_means(waiting: int, running: int) -> None:
    """Tasks that run are those that workers have claimed, unless the queue counts both."""
    (only,) = made(Counting.WAITING, Counts.of(Counting.WAITING, waiting, running))
    assert (only.pending, only.claimed, only.total) == (waiting, None, None)
    (total,) = made(Counting.WAITING_AND_RUNNING, Counts.of(Counting.WAITING_AND_RUNNING, waiting, running))
    assert (total.pending, total.claimed, total.total) == (0, None, waiting + running)
    (both,) = made(Counting.BOTH, Counts.of(Counting.BOTH, waiting, running))
    assert (both.pending, both.claimed, both.total, both.epoch) == (waiting, running, None, 7)


labels = st.sampled_from("abcdef")


@given(st.dictionaries(labels, tasks), st.dictionaries(labels, st.sampled_from("pqr"), min_size=1))
def test_pools_of_labels(counted: dict[str, int], pools: dict[str, str]) -> None:
    """A pool has the sum of its labels; one of which a label has no count has no report, never less."""
    counts = [Counts(number, None, label) for label, number in counted.items()]
    found = {each.pool_id: each.pending for each in made(Counting.WAITING, *counts, pools=pools)}
    for pool in set(pools.values()):
        of_pool = [label for label, of in pools.items() if of == pool]
        complete = all(label in counted for label in of_pool)
        assert found.get(pool) == (sum(counted[label] for label in of_pool) if complete else None)


def test_answers_by_label() -> None:
    """What the queue says of labels of no pool does not matter."""
    assert labelled({"a": 1, "b": None, "c": 3}, None, labels={"a", "z"}, is_both=False) == [Counts(1, None, "a")]
    assert labelled({"a": 1, "b": 2}, {"a": 2}, labels={"a"}, is_both=True) == [Counts(1, 2, "a")]
    for tasks_, running in ((3, None), ({"a": 1}, {}), ({"a": None}, {"a": 1}), ({"a": 1}, 3)):
        with pytest.raises(Unreadable):
            labelled(tasks_, running, labels={"a"}, is_both=True)


@given(st.floats(0, 1e6), st.floats(0, 100), st.floats(0.1, 100), st.floats(0, 0.999), st.floats(0, 1e5))
def test_times_of_reads(due: float, took: float, interval: float, chance: float, asked: float) -> None:
    """An interval later at the latest, none made up for, and not before the queue allows it."""
    now = due + took
    at = next_read(due, now, interval, chance)
    assert now <= at <= max(now, due + interval)
    assert at >= min(due + interval * (1 - JITTER), max(now, at))
    assert next_read(due, now, interval, chance, asked) >= now + min(asked, RETRY_AFTER_SECONDS_MAX)
    assert now <= first_read(now, interval, 10, chance) <= now + min(interval, 0.1)


@pytest.mark.parametrize(
    ("text", "number"), [("5", 5), ("0", 0), ("1500m", 2), ("2k", 2000), ("1Ki", 1024), ("1.5", 2)]
)
def test_quantities(text: str, number: int) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "m", "NaN", "-1", "5x", None, 5, "Infinity"])
def test_what_is_no_quantity(text: Any) -> None:
    with pytest.raises(Unreadable):
        quantity(text)


def test_retry_after() -> None:
    assert retry_after("30") == 30
    assert retry_after("") == retry_after("soon") == retry_after("-3") == retry_after("nan") == 0
    assert retry_after(f"Fri, 31 Dec {10**20} 23:59:59 GMT") == 0
    assert retry_after("Fri, 31 Dec 2100 23:59:59 GMT") > 1e9
    assert retry_after("Fri, 31 Dec 1999 23:59:59 GMT") == 0
