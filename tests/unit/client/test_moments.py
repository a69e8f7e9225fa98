"""Durations and times as text."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_client.view import moments

HERE = timezone(timedelta(hours=2))
NOW = datetime(2026, 8, 1, 14, 3, 7, 500_000, tzinfo=HERE)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d12h", 129_600), ("1h5s", 3605), ("0.5s", 0.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert moments.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "30", "m", "-5m", "5m1h", "1.5h", "five", "5 m"])
def test_other_words_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration such as"):
        moments.seconds(text)


@given(st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_a_duration_is_the_sum_of_its_parts(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    assert moments.seconds(f"{days}d{hours}h{minutes}m{seconds}s") == total


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("17:30", datetime(2026, 8, 1, 17, 30, tzinfo=HERE)),
        ("9:05:10", datetime(2026, 8, 2, 9, 5, 10, tzinfo=HERE)),  # today's has passed
        ("2026-08-01T17:30", datetime(2026, 8, 1, 17, 30, tzinfo=HERE)),
        ("2026-08-01T15:30Z", datetime(2026, 8, 1, 15, 30, tzinfo=UTC)),
    ],
)
def test_times(text: str, at: datetime) -> None:
    assert moments.moment(text, NOW) == at


@pytest.mark.parametrize("text", ["", "25:00", "noon", "2026-13-01"])
def test_other_words_are_no_times(text: str) -> None:
    with pytest.raises(ValueError, match="not a time such as"):
        moments.moment(text, NOW)


@pytest.mark.parametrize(
    ("seconds", "spelled", "about"),
    [
        (0.04, "0 s", "0 s"),
        (0.44, "0.4 s", "0.4 s"),
        (12.4, "12 s", "12 s"),
        (60, "1 min", "1 min"),
        (185, "3 min 5 s", "3 min"),
        (7800, "2 h 10 min", "2 h"),
        (360_000, "4 d 4 h", "4 d"),
        (59.7, "1 min", "1 min"),
    ],
)
def test_two_units_are_enough(seconds: float, spelled: str, about: str) -> None:
    assert (moments.spelled(seconds), moments.about(seconds)) == (spelled, about)


def test_a_time_of_another_day_has_its_date() -> None:
    assert moments.clock(datetime(2026, 8, 1, 12, 3, 7, tzinfo=UTC), NOW) == "14:03:07"
    assert moments.clock(datetime(2026, 7, 31, 21, 59, tzinfo=UTC), NOW) == "2026-07-31 23:59"


def test_extreme_times_have_a_text() -> None:
    """Times that no zone can shift, and lower case, as RFC 3339 allows it."""
    for at in (datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))):
        assert moments.clock(at, NOW) == at.isoformat()
    assert moments.at("2026-08-01t12:03:07z") == datetime(2026, 8, 1, 12, 3, 7, tzinfo=UTC)
