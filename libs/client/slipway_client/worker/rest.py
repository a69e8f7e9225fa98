"""How several loops wait for the same changes."""

import asyncio
from typing import Any

from slipway_common.clock import monotonic_seconds


class Rests:
    """Every rest ends when something has changed. A change while nobody rests is seen by whoever looks next."""

    def __init__(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Something has changed."""
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    async def rest(self, until: float | None) -> None:
        """Until a change, or that time (monotonic seconds)."""
        seconds = None if until is None else max(0.0, until - monotonic_seconds())
        await asyncio.wait({self._changed}, timeout=seconds)

    async def rest_beside(self, work: "asyncio.Task[Any]") -> None:
        """Until a change, or the end of the work."""
        await asyncio.wait({self._changed, work}, return_when=asyncio.FIRST_COMPLETED)
