"""Pace of unleased launches while the lease-broker is unavailable."""

import itertools
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from slipway_provisioner.domain.unleased import Pace, next_start

LAST = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return LAST + timedelta(seconds=seconds)


def test_a_lease_pool_that_granted_nothing_has_no_pace() -> None:
    assert next_start(None, None, LAST) is None


def test_the_first_start_comes_when_the_broker_would_have_let_one_go() -> None:
    """Four units in a hold of 1200 s: one start per 300 s, counted from the last grant."""
    pace = Pace(units=4, hold_seconds=1200, last_at=LAST)
    assert next_start(pace, None, at(299)) is None
    assert next_start(pace, None, at(300)) == at(600)
    assert next_start(pace, at(600), at(599)) is None
    assert next_start(pace, at(600), at(5000)) == at(5300)


@given(
    units=st.integers(1, 200),
    hold_seconds=st.floats(1, 86_400),
    tries=st.lists(st.floats(0, 3_600), min_size=1, max_size=80),
)
def test_in_no_hold_more_start_than_were_granted_in_the_last(
    units: int, hold_seconds: float, tries: list[float]
) -> None:
    """No two starts, nor the last grant and a start, are closer than hold ÷ units."""
    pace = Pace(units=units, hold_seconds=hold_seconds, last_at=LAST)
    now, not_before, starts = LAST, None, [LAST]
    for wait in tries:
        now += timedelta(seconds=wait)
        if (after := next_start(pace, not_before, now)) is not None:
            starts.append(now)
            not_before = after
    assert all(later - earlier >= pace.interval for earlier, later in itertools.pairwise(starts))
