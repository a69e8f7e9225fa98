"""How long a failing tenant waits: one history a line."""

from datetime import UTC, datetime, timedelta

import pytest

from slipway_lease_broker.domain.backoff import Backoff, BackoffTerms, after_failure, after_success

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TERMS = BackoffTerms(30, 900)

#   (granted at, failed at) of each failure, and how long after the last one the tenant waits, in seconds
HISTORIES = [
    ([], None),
    ([(0, 10)], 30),
    ([(0, 10), (50, 60)], 60),
    ([(0, 10), (50, 60), (130, 140)], 120),
    ([(0, 10), (5, 11), (9, 12)], 28),  # all from before the first failure: one, seen three times
    ([(0, 10), (10, 12)], 60),  # granted in the same instant in which the first failed: after it
    ([(1000 * i, 1000 * i + 1) for i in range(80)], 900),
]


@pytest.mark.parametrize(("failures", "seconds"), HISTORIES)
def test_failures(failures: list[tuple[float, float]], seconds: float | None) -> None:
    """It doubles with each failure in a row, up to the most."""
    backoff, now = Backoff(), NOW
    for granted, failed in failures:
        now = NOW + timedelta(seconds=failed)
        backoff = after_failure(backoff, NOW + timedelta(seconds=granted), now, TERMS)
    assert backoff.until == (None if seconds is None else now + timedelta(seconds=seconds))
    assert backoff.waits(now) is bool(failures)
    assert not backoff.waits(now + timedelta(seconds=seconds or 0))


def test_a_success_ends_it() -> None:
    """The next failure is the first again."""
    assert after_success() == Backoff()
    assert not after_success().waits(NOW)
