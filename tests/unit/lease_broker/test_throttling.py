"""Reports of throttling: which of them move the pool, as laws over sequences of reports."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain.throttling import (
    REPORTERS_MAX,
    RETRY_AFTER_SECONDS_MAX,
    ThrottleReport,
    is_major,
    judge,
    pause_until,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOLD = 1200.0
HELD = st.dictionaries(st.sampled_from("abc"), st.integers(0, 20))
REPORTS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 2000), HELD), max_size=20)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@given(REPORTS)
def test_a_report_moves_the_pool_by_weight_or_by_confirmation(reports: list[tuple[str, float, dict[str, int]]]) -> None:
    """A reporter that holds less than half moves it only within one hold of a report by another."""
    now = 0.0
    before: tuple[ThrottleReport, ...] = ()
    last: dict[str, float] = {}
    for reporter, passed, held in reports:
        now += passed
        judged = judge(
            ThrottleReport(reporter, at(now), at(now + 60)), before, is_adapter=False, held=held, hold_seconds=HOLD
        )
        confirmed = any(other != reporter and now - then <= HOLD for other, then in last.items())
        assert judged.moves_pool == (confirmed or is_major(reporter, held))
        assert len(judged.reports) <= REPORTERS_MAX
        assert judged.until is not None
        last[reporter] = now
        before = judged.reports


@given(st.sampled_from("abc"), HELD)
def test_the_adapter_is_believed(reporter: str, held: dict[str, int]) -> None:
    judged = judge(ThrottleReport(reporter, NOW, None), (), is_adapter=True, held=held, hold_seconds=HOLD)
    assert (judged.moves_pool, judged.until) == (True, None)


@given(HELD)
def test_at_most_two_reporters_hold_half(held: dict[str, int]) -> None:
    """Of nothing held nobody does."""
    major = [name for name in held if is_major(name, held)]
    assert len(major) <= 2
    assert bool(major) <= (sum(held.values()) > 0)


@pytest.mark.parametrize(
    ("asked", "maximum", "seconds"),
    [
        (None, 300.0, None),
        (0.0, 300.0, None),
        (-1.0, 300.0, None),
        (9.0, 300.0, 9.0),
        (86_400.0, 300.0, 300.0),
        (86_400.0, 86_400.0, RETRY_AFTER_SECONDS_MAX),
    ],
)
def test_a_pause_is_bounded(asked: float | None, maximum: float, seconds: float | None) -> None:
    assert pause_until(asked, NOW, maximum) == (None if seconds is None else at(seconds))
