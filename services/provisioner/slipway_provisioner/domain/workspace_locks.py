"""Lapsed locks of workspaces, and for how long one replica has observed each of them. Pure.

A lock lapses by the database's clock. If that clock is set ahead, or the database is unavailable for a while, all locks
lapse although their runs go on. If other replicas took them over then, the states of these runs would be rejected, and
their resources might be created twice. A replica therefore takes over a lock only after it has observed it as lapsed
for a minute, by its own clock and while the database answered.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

TAKEOVER_SECONDS: Final = 60.0
"""Time for which a lock is observed as lapsed before it is taken over: three intervals of renewals."""
GAP_SECONDS_MAX: Final = 5.0
"""Longest time between two observations that counts. In a longer one the database may have been unavailable."""


class Lock(msgspec.Struct, frozen=True):
    """Lock of a run, with its fencing token. Each renewal changes `locked_until`."""

    id: str
    fence: int
    locked_until: datetime


class LapsedLocks:
    """Lapsed locks that this replica has observed."""

    def __init__(self) -> None:
        self._seconds: dict[Lock, float] = {}
        self._at: float | None = None

    def observe(self, lapsed: Sequence[Lock], *, at: float) -> list[Lock]:
        """Record the locks that are lapsed `at` a monotonic time, and return those that may be taken over."""
        since = 0.0 if self._at is None else min(at - self._at, GAP_SECONDS_MAX)
        self._at = at
        self._seconds = {lock: self._seconds[lock] + since if lock in self._seconds else 0.0 for lock in lapsed}
        return [lock for lock, seconds in self._seconds.items() if seconds >= TAKEOVER_SECONDS]
