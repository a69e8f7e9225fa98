"""Locks of workspaces that have lapsed, and for how long one replica has seen each of them so. Pure.

A lock lapses by the database's clock. That clock may be set ahead, and during an outage of the database no run can
renew its lock. Either would have every run taken over by another replica while it goes on, so that its state is
rejected, and its resources may be made twice. So a replica takes over a lock only after it has seen it lapsed, and not
renewed, for long enough by its own clock, and while the database answered.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

LOST_SECONDS: Final = 60.0
"""Time for which a lock is seen lapsed before it is taken over, three times the interval of renewals."""
GAP_SECONDS_MAX: Final = 5.0
"""Time between two observations that counts; in a longer one the database may have been unavailable."""


class Lock(msgspec.Struct, frozen=True):
    """Lock of a run under a fencing token. A renewal changes `locked_until`."""

    id: str
    fence: int
    locked_until: datetime


class LapsedLocks:
    """Lapsed locks as this replica has seen them."""

    def __init__(self) -> None:
        self._seconds: dict[Lock, float] = {}
        self._at: float | None = None

    def seen(self, lapsed: Sequence[Lock], *, at: float) -> list[Lock]:
        """Record the locks that have lapsed `at` a time of a clock that never jumps; returns those that are lost."""
        since = 0.0 if self._at is None else min(at - self._at, GAP_SECONDS_MAX)
        self._at = at
        self._seconds = {lock: self._seconds[lock] + since if lock in self._seconds else 0.0 for lock in lapsed}
        return [lock for lock, seconds in self._seconds.items() if seconds >= LOST_SECONDS]
