"""Pauses between retries of a call to a service. Pure: `now` (monotonic seconds) and chance are arguments."""

from typing import Final

import msgspec

# Pause between retries: long enough not to overload a service that restarts.
FIRST_RETRY_SECONDS: Final = 0.2
LONGEST_RETRY_SECONDS: Final = 10.0


class Backoff(msgspec.Struct, frozen=True):
    """Retry state of one service: unanswered since when, and when to try again. Empty: the last call was answered."""

    since: float | None = None
    failures: int = 0
    retry_at: float = 0.0


def next_backoff(backoff: Backoff, now: float, chance: float) -> Backoff:
    """Backoff after one more failure: doubling pauses, each between half and all of its length."""
    pause_seconds = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(backoff.failures, 10))
    since = now if backoff.since is None else backoff.since
    return Backoff(since, backoff.failures + 1, now + pause_seconds * (0.5 + chance / 2))
