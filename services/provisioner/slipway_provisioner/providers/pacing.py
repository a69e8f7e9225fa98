"""Token buckets of provider APIs, from which a provider takes before it calls."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from slipway_common.base.clock import monotonic_seconds

WAIT_SECONDS_MAX: Final = 60.0
"""Longest wait for tokens, whatever the timeout of a call."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that a call takes from one bucket, which holds `size` at most. It leaves `spared` tokens to others."""

    bucket: str
    units: float
    size: float
    refill_per_second: float
    spared: float = 0.0

    @property
    def units_seconds(self) -> float:
        """Time in which the bucket regains the tokens."""
        return self.units / self.refill_per_second

    @property
    def burst_seconds(self) -> float:
        """Time in which an empty bucket is full again."""
        return self.size / self.refill_per_second

    @property
    def free_seconds(self) -> float:
        """Time until the bucket is full at which the call may be made."""
        return (self.size - self.spared) / self.refill_per_second

    @property
    def debt_seconds(self) -> float:
        """Longest time in which a bucket in debt is full again."""
        return self.burst_seconds + WAIT_SECONDS_MAX


class Pacing(Protocol):
    """Token buckets. A call that finds too few tokens goes into debt and waits until it is paid, so that calls go in
    the order in which they asked."""

    async def take(self, shares: Sequence[Share], *, within_seconds: float) -> float:
        """Take from every bucket; returns the seconds to wait before the call. If they exceed `within_seconds`, nothing
        is taken."""
        ...

    async def empty(self, shares: Sequence[Share]) -> None:
        """Leave no token in the buckets, since the provider has just throttled a call."""
        ...


class LocalBuckets:
    """Buckets of one process, for a provider without a database. A bucket is the time at which it is full."""

    def __init__(self, clock: Callable[[], float] = monotonic_seconds) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}

    async def take(self, shares: Sequence[Share], *, within_seconds: float) -> float:
        now = self._clock()
        full_at = {s.bucket: max(self._full_at.get(s.bucket, now), now) + s.units_seconds for s in shares}
        wait = max(0.0, *(full_at[s.bucket] - now - s.free_seconds for s in shares))
        if wait <= within_seconds:
            self._full_at |= full_at
        return wait

    async def empty(self, shares: Sequence[Share]) -> None:
        now = self._clock()
        for share in shares:
            self._full_at[share.bucket] = max(self._full_at.get(share.bucket, now), now + share.burst_seconds)


async def paced(pacing: Pacing, shares: Sequence[Share], *, within_seconds: float) -> float:
    """Wait for the tokens of a call; returns the seconds that are still missing, and have not been waited for, if these
    are more than `within_seconds`, else 0."""
    if not shares:
        return 0.0
    within_seconds = min(within_seconds, WAIT_SECONDS_MAX)
    wait = await pacing.take(shares, within_seconds=within_seconds)
    if wait > within_seconds:
        return wait
    if wait > 0:
        await asyncio.sleep(wait)
    return 0.0
