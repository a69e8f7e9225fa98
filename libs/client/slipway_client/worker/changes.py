"""Change notification between the loops of one process."""

import asyncio
from typing import Any

from slipway_common.base.clock import monotonic_seconds


class Changes:
    """Notifies every waiting loop of a change. Loops read the state before they wait, so none misses a change."""

    def __init__(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()

    def notify(self) -> None:
        """Wake all loops that wait."""
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    async def wait(self, until: float | None) -> None:
        """Wait until a change, or until that time (monotonic seconds)."""
        seconds = None if until is None else max(0.0, until - monotonic_seconds())
        await asyncio.wait({self._changed}, timeout=seconds)

    async def wait_or_done(self, work: "asyncio.Task[Any]") -> None:
        """Wait until a change, or until the work is done."""
        await asyncio.wait({self._changed, work}, return_when=asyncio.FIRST_COMPLETED)
