"""A tenant whose operations fail waits longer each time before its next start, so that a broken one leaves the units to
the others. Pure."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

DOUBLINGS_MAX: Final = 30  # beyond any longest wait; keeps the power small


class BackoffTerms(msgspec.Struct, frozen=True):
    seconds: float = 30.0
    max_seconds: float = 900.0


class Backoff(msgspec.Struct, frozen=True):
    """Of one tenant in one lease pool. `until` is None while it may start."""

    failures: int = 0  # in a row
    failed_at: datetime | None = None
    until: datetime | None = None

    def waits(self, now: datetime) -> bool:
        return self.until is not None and now < self.until


def after_failure(backoff: Backoff, granted_at: datetime, now: datetime, terms: BackoffTerms) -> Backoff:
    """seconds × 2^(failures in a row − 1), at most `max_seconds`, from now.

    What was granted before the last failure adds none: many that fail together are one failure seen many times.
    """
    if backoff.failed_at is not None and granted_at < backoff.failed_at:
        return backoff
    failures = backoff.failures + 1
    seconds = min(terms.max_seconds, terms.seconds * 2 ** min(failures - 1, DOUBLINGS_MAX))
    return Backoff(failures, now, now + timedelta(seconds=seconds))


def after_success() -> Backoff:
    """One success ends it: the tenant can."""
    return Backoff()
