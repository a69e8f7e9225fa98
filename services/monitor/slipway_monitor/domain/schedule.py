"""Times at which sources are read. Pure: `now` (monotonic seconds) and chance in [0, 1) are arguments."""

from typing import Final

JITTER: Final = 0.1
"""Part of an interval by which reads are spread. It only shortens the interval."""
FIRST_PER_SECOND: Final = 100
"""Sources that are read first in one second, so that a start is no burst."""
RETRY_AFTER_SECONDS_MAX: Final = 3_600.0
"""Longest time for which a queue may ask not to be read."""


def first_read(now: float, interval_seconds: float, sources: int, chance: float) -> float:
    """Time of the first read of a source."""
    return now + chance * min(interval_seconds, sources / FIRST_PER_SECOND)


def next_read(
    due: float, now: float, interval_seconds: float, chance: float, retry_after_seconds: float = 0.0
) -> float:
    """Time of the read after the one that was `due` and has ended `now`: an interval later, but not before the queue
    allows it. Reads that took longer than an interval are not made up for."""
    later = due + interval_seconds * (1 - JITTER * chance)
    return max(later, now, now + min(retry_after_seconds, RETRY_AFTER_SECONDS_MAX))
