"""How long a failing tenant waits: one history a line."""

from datetime import UTC, datetime, timedelta

import pytest

from slipway_lease_broker.domain.backoff import after_failure

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)

#   (granted at, failed at) of each failure, and how long after the last one the tenant waits, in seconds
HISTORIES = [
    ([(0, 10)], 30),
    ([(0, 10), (50, 60)], 60),
    ([(0, 10), (50, 60), (130, 140)], 120),
    ([(0, 10), (5, 11), (9, 12)], 28),  # all from before the first failure: one, seen three times
    ([(0, 10), (10, 12)], 60),  # granted in the same instant in which the first failed: after it
    ([(1000 * i, 1000 * i + 1) for i in range(80)], 900),
]


@pytest.mark.parametrize(("failures", "seconds"), HISTORIES)
def test_failures(failures: list[tuple[float, float]], seconds: float) -> None:
    """It doubles with each failure in a row, up to the most."""
    in_a_row, until, now = 0, None, NOW
    for granted, failed in failures:
        now = NOW + timedelta(seconds=failed)
        granted_at = NOW + timedelta(seconds=granted)
        in_a_row, until = after_failure(in_a_row, until, granted_at, now, seconds=30, max_seconds=900)
    assert until == now + timedelta(seconds=seconds)


def test_the_first_after_a_success_is_the_first_again() -> None:
    """A success sets the count back; the most counts from the first failure on."""
    assert after_failure(0, None, NOW, NOW, seconds=30, max_seconds=900) == (1, NOW + timedelta(seconds=30))
    assert after_failure(0, None, NOW, NOW, seconds=30, max_seconds=20) == (1, NOW + timedelta(seconds=20))
