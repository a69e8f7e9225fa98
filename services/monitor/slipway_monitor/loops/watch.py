"""Watch over the event loop, which all sources share: one that blocks it stops the reports of the others."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from slipway_common.observability.telemetry import logger

LOG = logger(__name__)

BLOCKED_SECONDS: Final = 2.0


@contextlib.contextmanager
def watched(blocked_seconds: float = BLOCKED_SECONDS) -> Iterator[None]:
    """Log, from another thread, the name of the task that blocks the running event loop for so long, while it does."""
    loop, ended = asyncio.get_running_loop(), threading.Event()

    def watch() -> None:
        while not ended.wait(blocked_seconds):
            runs = threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(runs.set)
            # None after the whole process was stopped: nothing blocks the loop then.
            if not runs.wait(blocked_seconds) and (task := asyncio.current_task(loop)):
                LOG.error("a source blocks the event loop: no source is reported", source=task.get_name())
                runs.wait()

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
