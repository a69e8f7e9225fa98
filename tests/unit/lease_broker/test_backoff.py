"""Backoff of failing tenants: one history per line."""

from datetime import UTC, datetime, timedelta

import pytest

from slipway_lease_broker.domain.backoff import after_failure

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)

#   (granted at, failed at) of each failure, and the wait after the last one in seconds
HISTORIES = [
    ([(0, 10)], 30),
    ([(0, 10), (50, 60)], 60),
    ([(0, 10), (50, 60), (130, 140)], 120),
    ([(0, 10), (5, 11), (9, 12)], 28),  # all granted before the first failure: they count as one
    ([(0, 10), (10, 12)], 60),  # granted in the same instant as the first failure: counts as after it
    ([(1000 * i, 1000 * i + 1) for i in range(80)], 900),
]


@pytest.mark.parametrize(("failures", "seconds"), HISTORIES)
def test_failures(failures: list[tuple[float, float]], seconds: float) -> None:
    """The wait doubles with each failure in a row, up to the maximum."""
    in_a_row, until, now = 0, None, NOW
    for granted, failed in failures:
        now = NOW + timedelta(seconds=failed)
        granted_at = NOW + timedelta(seconds=granted)
        in_a_row, until = after_failure(in_a_row, until, granted_at, now, seconds=30, max_seconds=900)
    assert until == now + timedelta(seconds=seconds)


def test_the_first_after_a_success_is_the_first_again() -> None:
    """A success resets the count; the maximum applies from the first failure on."""
    assert after_failure(0, None, NOW, NOW, seconds=30, max_seconds=900) == (1, NOW + timedelta(seconds=30))
    assert after_failure(0, None, NOW, NOW, seconds=30, max_seconds=20) == (1, NOW + timedelta(seconds=20))
