"""Laws of the relay's queues: whatever partitions fail, each has one batch in flight, in order, and delays no other."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.messaging.partition_queues import RETRY_SECONDS, ROWS_MAX, PartitionQueues, Place, Rows

PLACES = [("a", 0), ("a", 1), ("b", 0)]


def rows(place: Place, first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"topic": place[0], "partition": place[1], "sequence_number": number} for number in range(first, first + count)
    ]


class Database:
    """Numbered rows that are not deleted yet, as the relay sees them."""

    def __init__(self) -> None:
        self.rows: dict[Place, list[dict[str, Any]]] = defaultdict(list)
        self.numbers: dict[Place, int] = defaultdict(int)

    def number(self, place: Place, count: int) -> Rows:
        new = rows(place, self.numbers[place] + 1, count)
        self.numbers[place] += count
        self.rows[place] += new
        return new

    def lowest(self, places: list[Place]) -> Rows:
        return [row for place in sorted(places) for row in self.rows[place][:ROWS_MAX]]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("number"), st.sampled_from(PLACES), st.integers(1, ROWS_MAX + 10)),
        st.tuples(st.just("acknowledge"), st.sampled_from(PLACES), st.integers(1, ROWS_MAX)),
        st.tuples(st.just("fail"), st.sampled_from(PLACES), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from(PLACES), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(STEPS)
def test_batches_follow_each_other(steps: list[tuple[str, Place, int]]) -> None:
    """Each batch begins with the lowest row that is not acknowledged and has no gap; one of a partition is in flight;
    in the end everything is sent."""
    database, queues, now = Database(), PartitionQueues(PLACES[:1]), 0.0
    in_flight: dict[Place, Rows] = {}

    def send() -> None:
        if places := queues.unloaded(now):
            queues.load(places, database.lowest(places))
        for place, batch in queues.start(now):
            assert place not in in_flight
            assert list(batch) == database.rows[place][: len(batch)]
            in_flight[place] = batch

    def acknowledge(place: Place, count: int) -> None:
        sent = in_flight.pop(place)
        done = queues.acknowledge(place, min(count, len(sent)))
        assert list(done) == list(sent[:count])
        del database.rows[place][: len(done)]

    for step, place, number in steps:
        if step == "number":
            queues.add(database.number(place, number))
        elif step == "acknowledge" and place in in_flight:
            acknowledge(place, number)
        elif step == "fail" and place in in_flight:
            del in_flight[place]
            queues.fail(place, now)
        elif step == "wait":
            now += number
        send()
    for _ in range(10_000):
        if not any(database.rows.values()):
            break
        now += max(RETRY_SECONDS)
        send()
        for place in list(in_flight):
            acknowledge(place, ROWS_MAX)
    assert not any(database.rows.values())
    assert queues.failing() == []


@given(st.integers(0, 20))
def test_a_failing_partition_delays_no_other(failures: int) -> None:
    """While one partition fails, another sends at every time; the first is tried again after its own delay."""
    database, queues, now = Database(), PartitionQueues([]), 0.0
    bad, good = PLACES[0], PLACES[1]
    queues.add(database.number(bad, 1))
    for _ in range(failures):
        queues.add(database.number(good, 1))
        if places := queues.unloaded(now):
            queues.load(places, database.lowest(places))
        assert [place for place, _ in queues.start(now)] == [bad, good]
        queues.acknowledge(good, 1)
        queues.fail(bad, now)
        retry_at = queues.next_retry_at()
        assert retry_at is not None
        assert now + min(RETRY_SECONDS) <= retry_at <= now + max(RETRY_SECONDS)
        assert bad not in queues.unloaded(retry_at - 0.01)
        now = retry_at
    assert queues.failing() == ([bad] if failures else [])


def test_rows_of_a_failing_partition_take_no_memory() -> None:
    database, queues = Database(), PartitionQueues([])
    queues.add(database.number(PLACES[0], 10))
    ((place, _),) = queues.start(0.0)
    queues.fail(place, 0.0)
    for _ in range(5):
        queues.add(database.number(PLACES[0], 10))
    assert queues.start(RETRY_SECONDS[0]) == []
    assert queues.unloaded(RETRY_SECONDS[0]) == [place]
    queues.load([place], database.lowest([place]))
    assert [len(batch) for _, batch in queues.start(RETRY_SECONDS[0])] == [60]


def test_rows_that_another_relay_deleted() -> None:
    """A failed partition without rows is not tried again."""
    queues = PartitionQueues([])
    queues.add(rows(PLACES[0], 1, 1))
    queues.start(0.0)
    queues.fail(PLACES[0], 0.0)
    queues.load([PLACES[0]], [])
    assert queues.failing() == []
    assert queues.next_retry_at() is None


@pytest.mark.parametrize("count", [ROWS_MAX, ROWS_MAX + 1])
def test_rows_in_memory_are_bounded(count: int) -> None:
    queues = PartitionQueues([])
    queues.add(rows(PLACES[0], 1, count))
    assert [len(batch) for _, batch in queues.start(0.0)] == ([ROWS_MAX] if count == ROWS_MAX else [])
