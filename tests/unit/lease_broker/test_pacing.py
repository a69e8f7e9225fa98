"""Pacing of starts: examples, and bounds on any sequence of requests."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain.pacing import (
    AHEAD_SECONDS_MAX,
    Pacing,
    default_pacing,
    free_at,
    most_ahead,
    repaced,
    spend,
    units_now,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TWELVE = Pacing(12)
BURST = Pacing(12, burst=3)

pacings = st.builds(Pacing, st.floats(0.001, 600), st.integers(1, 5))
arrivals = st.lists(st.tuples(st.floats(0, 900), st.integers(1, 8)), min_size=1, max_size=40)  # gap before, units


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


#   pacing, paced until, units → may start at, paced until afterwards
CASES = [
    (TWELVE, None, 1, 0, 12),
    (TWELVE, -500, 1, 0, 12),  # a pause gives no credit
    (TWELVE, 0, 1, 0, 12),
    (TWELVE, 5, 1, 5, 17),
    (TWELVE, None, 4, 0, 48),  # a whole request of more than the burst: at once, and later starts are delayed
    (TWELVE, 1, 4, 1, 49),
    (BURST, 24, 1, 0, 36),  # the third of a burst
    (BURST, 25, 1, 1, 37),
    (BURST, 12, 2, 0, 36),
    (BURST, 12, 3, 12, 48),
    (BURST, 12, 9, 12, 120),
]


@pytest.mark.parametrize(("pacing", "paced", "units", "free", "after"), CASES)
def test_examples(pacing: Pacing, paced: float | None, units: int, free: float, after: float) -> None:
    """The time at which units may start together, and `paced_until` after that start."""
    paced_until = None if paced is None else at(paced)
    start = free_at(paced_until, NOW, units, pacing)
    assert (start, spend(paced_until, start, units, pacing)) == (at(free), at(after))


def test_default() -> None:
    """Twice the rate that the limit needs: 50 units of 20 minutes every 12 s; a limit of 0 causes no division by zero.
    In a small pool the second start waits for the maximum, not for a quarter of the hold."""
    assert default_pacing(50, 1200, 30) == Pacing(12)
    assert default_pacing(2, 1200, 30) == Pacing(30)
    assert default_pacing(1, 1200, 900) == default_pacing(0, 1200, 900) == Pacing(600)


def test_off() -> None:
    """Without pacing all requests start at once and `paced_until` does not change."""
    assert free_at(at(99), NOW, 5, None) == NOW
    assert spend(at(99), NOW, 5, None) == at(99)


def starts(pacing: Pacing, arrivals: Sequence[tuple[float, int]]) -> list[tuple[datetime, int]]:
    """Starts of requests that each arrive some time after the previous start and start as soon as they may."""
    now, paced_until, found = NOW, None, []
    for gap, units in arrivals:
        now = free_at(paced_until, now + timedelta(seconds=gap), units, pacing)
        paced_until = spend(paced_until, now, units, pacing)
        found.append((now, units))
    return found


@given(pacings, arrivals)
def test_starts_in_any_window_are_bounded(pacing: Pacing, arrivals: list[tuple[float, int]]) -> None:
    """window / interval + burst; a whole request of more units than the burst counts with its size."""
    found = starts(pacing, arrivals)
    most = max([pacing.burst, *(units for _, units in found)])
    for first, (begin, _) in enumerate(found):
        for last, (end, _) in enumerate(found[first:], start=first):  # from one start to another, both included
            inside = sum(units for _, units in found[first : last + 1])
            assert inside * pacing.interval <= (end - begin) + most * pacing.interval


@given(pacings, st.floats(0, 1000), st.integers(1, 8))
def test_a_single_job_is_never_delayed(pacing: Pacing, pause: float, units: int) -> None:
    """Nor is any request that arrives once the delay of all earlier starts has passed."""
    assert free_at(None, NOW, units, pacing) == NOW
    paced_until = spend(None, NOW, units, pacing)
    assert paced_until is not None
    later = paced_until + timedelta(seconds=pause)
    assert free_at(paced_until, later, units, pacing) == later


@given(pacings, st.floats(-100, 5000), st.integers(1, 8))
def test_parts_and_times_agree(pacing: Pacing, paced: float, units: int) -> None:
    """`units_now` units may start together now, and the given units may start at `free_at`."""
    paced_until = at(paced)
    now = units_now(paced_until, NOW, pacing)
    assert 0 <= now <= pacing.burst
    assert now == 0 or free_at(paced_until, NOW, now, pacing) == NOW
    assert now == pacing.burst or free_at(paced_until, NOW, now + 1, pacing) > NOW
    free = free_at(paced_until, NOW, units, pacing)
    assert units_now(paced_until, free, pacing) >= min(units, pacing.burst)


@given(pacings, pacings, st.integers(-100, 5000))
def test_new_terms_apply_to_the_starts_ahead(before: Pacing, after: Pacing, paced: int) -> None:
    """The same number of starts at the new interval: no pool stays stopped for a mistaken interval. A longer interval
    delays no pool beyond a burst for longer than before."""
    found = repaced(at(paced), NOW, before, after)
    if paced <= 0:
        assert found is None
    else:
        assert found is not None
        starts = (at(paced) - NOW) / before.interval
        most = max(at(paced) - NOW, after.burst * after.interval) / after.interval
        assert (found - NOW) / after.interval == pytest.approx(
            min(starts, most), abs=timedelta(microseconds=1) / after.interval, rel=1e-6
        )
    assert repaced(at(paced), NOW, None, after) is repaced(at(paced), NOW, before, None) is None


#   before, seconds ahead, after, seconds ahead then
SLOWED = [
    (Pacing(0.6), 300, Pacing(600), 600),  # 500 units started together; then the limit fell to 1
    (Pacing(0.6), 900, Pacing(600), 900),
    (Pacing(1e-6), 1200, Pacing(24), 1200),  # a whole hold of a shadow pool with almost no pacing
    (Pacing(0.6), 300, Pacing(600, burst=2), 1200),
    (Pacing(12), 30, Pacing(20, burst=3), 50),  # within a burst: the same number of starts
    (Pacing(1e-6), 31_536_000, Pacing(31_536_000, burst=1_000_000), 31_536_000),
]


@pytest.mark.parametrize(("before", "ahead", "after", "expected"), SLOWED)
def test_a_pool_that_is_slowed_down_is_not_stopped(before: Pacing, ahead: int, after: Pacing, expected: int) -> None:
    """However many starts lay ahead at the old interval."""
    assert repaced(at(ahead), NOW, before, after) == at(expected)


@pytest.mark.parametrize("units", [1, 1_000_000])
def test_no_terms_lead_beyond_the_calendar(units: int) -> None:
    """The slowest pace and the largest burst that can be declared: at most a year ahead."""
    slowest = Pacing(31_536_000, burst=1_000_000)
    paced = spend(None, NOW, 1_000_000, slowest, most_ahead(slowest, 1_000_000, 1200))
    assert paced == at(AHEAD_SECONDS_MAX)
    assert free_at(paced, NOW, units, slowest) == (NOW if units == 1 else paced)


#   seconds ahead → units that may start now of a request in parts, of a burst of three
PARTS = [(None, 3), (-5, 3), (0, 3), (5, 2), (12, 2), (13, 1), (36, 0), (99, 0)]


@pytest.mark.parametrize(("ahead", "units"), PARTS)
def test_only_whole_units_start(ahead: float | None, units: int) -> None:
    found = units_now(None if ahead is None else at(ahead), NOW, BURST)
    assert (found, type(found)) == (units, int)
