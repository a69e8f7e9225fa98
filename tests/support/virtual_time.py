"""Event loop on a virtual clock: hours pass in milliseconds, and the same seed gives the same run."""

import asyncio
import heapq
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Every task waits, and no time will wake one."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Loop whose clock jumps to the next timer once nothing else is ready. For tasks without I/O."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_seconds = 0.0

    def time(self) -> float:
        return self._virtual_seconds

    def _run_once(self) -> None:
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            heapq.heappop(timers)._scheduled = False
        if not self._ready:  # type: ignore[attr-defined]
            if not timers:
                raise Deadlock("every task waits for another one")
            self._virtual_seconds = max(self._virtual_seconds, timers[0]._when)
        super()._run_once()  # type: ignore[misc]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def now() -> float:
    """Time of the running loop."""
    return asyncio.get_running_loop().time()
