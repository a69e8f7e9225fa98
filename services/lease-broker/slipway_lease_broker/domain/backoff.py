"""Exponential backoff of tenants whose operations fail, so that a broken tenant leaves its units to others. Pure."""

from datetime import datetime, timedelta
from typing import Final

DOUBLINGS_MAX: Final = 30  # beyond any longest wait; keeps the power small


def wait(failures: int, seconds: float, max_seconds: float) -> timedelta:
    """The wait after one or more failures in a row: seconds × 2^(failures − 1), at most `max_seconds`."""
    return timedelta(seconds=min(max_seconds, seconds * 2 ** min(failures - 1, DOUBLINGS_MAX)))


def after_failure(
    failures: int, until: datetime | None, granted_at: datetime, now: datetime, *, seconds: float, max_seconds: float
) -> tuple[int, datetime | None]:
    """Failures in a row and the end of the backoff, after a lease that was granted at `granted_at` failed now.

    A lease granted before the last failure adds none: leases that fail together are one failure. A success resets both,
    to 0 and None.
    """
    if failures and until is not None and granted_at < until - wait(failures, seconds, max_seconds):
        return failures, until
    return failures + 1, now + wait(failures + 1, seconds, max_seconds)
