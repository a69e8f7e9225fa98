"""Starts of a group: its offsets, and that no two meet in whatever order members come."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain.spread import Group, Started, after_start, free_at, is_over

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TEN = Group("payload-4.22", 10, 900)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


#   member, first and last start, may start at
CASES = [
    (0, None, 0),
    (7, None, 0),  # whoever is first starts at once
    (1, (0, 0), 90),
    (9, (0, 0), 810),
    (3, (-500, -400), 0),  # late already: at once
    (3, (-500, -50), 40),  # but never within 90 s of the last
    (0, (-10, -10), 80),
    (12, (0, 0), 1080),  # more members than were announced keep the distance
]


@pytest.mark.parametrize(("member", "started", "free"), CASES)
def test_offsets(member: int, started: tuple[float, float] | None, free: float) -> None:
    """The first start + k × 90 s, and 90 s after the last start."""
    known = None if started is None else Started(at(started[0]), at(started[1]))
    assert free_at(TEN, member, known, NOW) == at(free)


groups = st.builds(Group, st.just("g"), st.integers(1, 20), st.floats(1, 7200))


@given(groups, st.lists(st.tuples(st.integers(0, 25), st.floats(0, 900)), min_size=2, max_size=25))
def test_no_two_starts_meet(group: Group, members: list[tuple[int, float]]) -> None:
    """In whatever order they come, and however long after they might they start."""
    started, last, now = None, None, NOW
    for member, late in members:
        now = free_at(group, member, started, now) + timedelta(seconds=late)
        started = after_start(started, now)
        assert last is None or now - last >= group.step
        last = now


@given(groups)
def test_a_group_that_comes_at_once_starts_at_its_offsets(group: Group) -> None:
    """Member k exactly k steps after the first, the whole group within its spread."""
    started = None
    for member in range(group.size):
        now = free_at(group, member, started, NOW)
        started = after_start(started, now)
        assert now == NOW + member * group.step
        assert not is_over(group, started, now)
        assert is_over(group, started, now + timedelta(seconds=group.spread_seconds))
