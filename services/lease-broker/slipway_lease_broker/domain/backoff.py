"""A tenant whose operations fail waits longer each time before its next start, so that a broken one leaves the units to
the others. Pure."""

from datetime import datetime, timedelta
from typing import Final

DOUBLINGS_MAX: Final = 30  # beyond any longest wait; keeps the power small


def wait(failures: int, seconds: float, max_seconds: float) -> timedelta:
    """After so many failures in a row, at least one: seconds × 2^(failures − 1), at most `max_seconds`."""
    return timedelta(seconds=min(max_seconds, seconds * 2 ** min(failures - 1, DOUBLINGS_MAX)))


def after_failure(
    failures: int, until: datetime | None, granted_at: datetime, now: datetime, *, seconds: float, max_seconds: float
) -> tuple[int, datetime | None]:
    """Failures in a row and the end of the wait, after a lease that was granted at `granted_at` failed now.

    What was granted before the last failure adds none: many that fail together are one failure seen many times. A
    success sets both back, to 0 and None.
    """
    if failures and until is not None and granted_at < until - wait(failures, seconds, max_seconds):
        return failures, until
    return failures + 1, now + wait(failures + 1, seconds, max_seconds)
