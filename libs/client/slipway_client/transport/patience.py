"""Timeout of calls to a service, from how long its answers take. Pure.

A service that answers slowly is slow, not unavailable: a timeout below the time of its answers would make every call
fail, and each would be repeated on top of its load.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

LEAST_SECONDS: Final = 5.0
MOST_SECONDS: Final = 60.0
# An answer may take this many times as long as the slowest of the recent ones.
ANSWERS: Final = 3.0
# A faster answer lets the slowest one count for less: a service that has recovered is waited for as before.
FADE: Final = 0.8


class Patience(msgspec.Struct, frozen=True):
    """Timeout of the next call to one service: `slowest_seconds` of its recent answers, three times."""

    slowest_seconds: float = 0.0
    least_seconds: float = LEAST_SECONDS

    @property
    def seconds(self) -> float:
        return min(max(self.least_seconds, ANSWERS * self.slowest_seconds), MOST_SECONDS)


def answered(patience: Patience, seconds: float) -> Patience:
    """Apply an answer that took so long."""
    return replace(patience, slowest_seconds=max(seconds, FADE * patience.slowest_seconds))


def timed_out(patience: Patience, seconds: float) -> Patience:
    """Apply a call that was not answered within `seconds`: the next one gets twice as long."""
    return replace(patience, slowest_seconds=max(patience.slowest_seconds, 2 * seconds / ANSWERS))
