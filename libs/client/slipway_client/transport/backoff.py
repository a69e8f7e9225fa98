"""Pauses between retries of a call to a service. Pure: `now` (monotonic seconds) and chance are arguments."""

from typing import Final

import msgspec

# Pause between retries: long enough not to overload a service that restarts.
FIRST_RETRY_SECONDS: Final = 0.2
LONGEST_RETRY_SECONDS: Final = 10.0
RETRY_AFTER_SECONDS_MAX: Final = 60.0
"""Longest pause that an answer can ask for."""


class Backoff(msgspec.Struct, frozen=True):
    """Retry state of one service: unanswered since when, and when to try again. Empty: the last call was answered."""

    since: float | None = None
    failures: int = 0
    retry_at: float = 0.0


def next_backoff(backoff: Backoff, now: float, chance: float, retry_after_seconds: float = 0.0) -> Backoff:
    """Backoff after one more failure: doubling pauses, each between half and all of its length, and at least as long as
    the answer asked for."""
    pause_seconds = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(backoff.failures, 10))
    since = now if backoff.since is None else backoff.since
    pause_seconds = max(pause_seconds * (0.5 + chance / 2), asked_pause_seconds(retry_after_seconds, chance))
    return Backoff(since, backoff.failures + 1, now + pause_seconds)


def asked_pause_seconds(retry_after_seconds: float, chance: float) -> float:
    """Pause for an answer that asks to retry after some time: up to half as long again, so that many callers that were
    refused together do not come back together."""
    return min(retry_after_seconds, RETRY_AFTER_SECONDS_MAX) * (1 + chance / 2)


def retry_after_seconds(header: str) -> float:
    """Seconds of a header Retry-After; 0 for a date, or for anything else."""
    return float(header) if header.isascii() and header.isdecimal() else 0.0
