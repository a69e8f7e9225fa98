"""Spread starts of a group: offsets, and a minimum distance in any order of arrival."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.lease import LeaseGroup
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.spread import due_at, free_at, group_key, step

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


#   member of ten over 15 min, last start since the first arrival, may start then
CASES = [
    (0, None, 0),
    (7, None, 630),  # every member at its own offset, in any order of arrival
    (1, 0, 90),
    (9, 0, 810),
    (3, 100, 270),
    (3, 200, 290),  # never within 90 s of the last start
    (0, 10, 100),
    (12, 0, 1080),  # members beyond the announced size keep the distance
]


@pytest.mark.parametrize(("member", "last", "free"), CASES)
def test_offsets(member: int, last: float | None, free: float) -> None:
    """The arrival of the first member + k × 90 s, and 90 s after the last start."""
    apart = step(10, 900)
    assert free_at(due_at(NOW, member, apart), None if last is None else at(last), apart) == at(free)


apart = st.builds(step, st.integers(1, 20), st.floats(1, 7200))


@given(apart, st.lists(st.tuples(st.integers(0, 25), st.floats(0, 900)), min_size=2, max_size=25))
def test_no_two_starts_are_too_close(apart: timedelta, members: list[tuple[int, float]]) -> None:
    """In whatever order they arrive, and however late they start."""
    last, now = None, NOW
    for member, late in members:
        now = max(now, free_at(due_at(NOW, member, apart), last, apart)) + timedelta(seconds=late)
        assert last is None or now - last >= apart
        last = now


@given(apart, st.integers(1, 20))
def test_a_group_that_arrives_at_once_starts_at_its_offsets(apart: timedelta, size: int) -> None:
    """Member k exactly k steps after the first: the same every time."""
    last = None
    for member in range(size):
        last = free_at(due_at(NOW, member, apart), last, apart)
        assert last == NOW + member * apart


def test_a_group_is_that_of_its_name_terms_and_token() -> None:
    """Services, whose requests come over Kafka, share their groups."""
    group = LeaseGroup(name="nightly", size=10, spread_seconds=900)
    shared = group_key(group, Sender(name="provisioner", over_kafka=True))
    assert shared == group_key(group, Sender(name="other", over_kafka=True)) == "nightly (10 in 900 s)"
    own = [group_key(group, Sender(name=name)) for name in ("ci", "cd")]
    assert len({shared, *own}) == 3
    assert all(key.startswith(f"{shared} ") for key in own)
