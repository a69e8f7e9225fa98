"""Loops of one process that run side by side and notify each other of changes."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from slipway_common.base.clock import monotonic_seconds

Result = TypeVar("Result")


async def beside(work: Coroutine[object, object, Result], *others: Coroutine[object, object, None]) -> Result:
    """Run the others until the work is done; returns its result. A failure of one ends them all."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(other) for other in others]
        result = await work
        for task in running:
            task.cancel()
    return result


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

    async def wait_or_done(self, work: "asyncio.Task[object]") -> None:
        """Wait until a change, or until the work is done."""
        await asyncio.wait({self._changed, work}, return_when=asyncio.FIRST_COMPLETED)
