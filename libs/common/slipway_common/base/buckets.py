"""Token buckets that limit callers. Pure: `now` (monotonic seconds) is an argument.

A bucket is the time at which it is full, so that a full one needs no memory. A refusal follows a request that was
admitted less than `1 / per_second` before: a caller that is refused has just been heard.
"""

from collections import OrderedDict
from typing import Final

import msgspec

KEYS_MAX: Final = 10_000
"""Buckets that are remembered at a time. With more, those that were taken from longest ago are full again."""
ROUNDING_SECONDS: Final = 1e-6
FORGOTTEN_AT_ONCE: Final = 2
"""Full buckets that are forgotten whenever one is taken from: more than can become new."""


class Limit(msgspec.Struct, frozen=True):
    """A rate of requests, and how many may come at once."""

    per_second: float
    burst: int

    @property
    def interval_seconds(self) -> float:
        return 1 / self.per_second


def taken(full_at: float, limit: Limit, now: float) -> tuple[float, float]:
    """The bucket after a request, and the seconds until it may be made: 0 if it was admitted; a refused one has taken
    nothing."""
    after = max(full_at, now) + limit.interval_seconds
    wait_seconds = after - now - limit.burst * limit.interval_seconds
    return (full_at, wait_seconds) if wait_seconds > ROUNDING_SECONDS else (after, 0.0)


class Buckets:
    """Buckets by key, all with one limit."""

    def __init__(self, limit: Limit, *, keys_max: int = KEYS_MAX) -> None:
        self.limit = limit
        self._keys_max = keys_max
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: str, now: float) -> float:
        """Take for one request; returns the seconds until there is room for it, and 0 if there was."""
        full_at, wait_seconds = taken(self._full_at.get(key, now), self.limit, now)
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        self._forget(now)
        return wait_seconds

    def give_back(self, key: str) -> None:
        """Undo the taking for a request that turned out to be one that is not counted."""
        if key in self._full_at:
            self._full_at[key] -= self.limit.interval_seconds

    def wait_seconds(self, key: str, now: float) -> float:
        """Seconds until there is room for a request, without taking it."""
        full_at = self._full_at.get(key)
        return 0.0 if full_at is None else taken(full_at, self.limit, now)[1]

    def _forget(self, now: float) -> None:
        for _ in range(FORGOTTEN_AT_ONCE):
            oldest = next(iter(self._full_at), None)
            if oldest is None or (self._full_at[oldest] > now and len(self._full_at) <= self._keys_max):
                return
            del self._full_at[oldest]
