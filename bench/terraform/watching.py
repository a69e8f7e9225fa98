"""Memory and number of the processes that a process has started, sampled while it runs."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import msgspec
import psutil

EVERY_SECONDS: Final = 0.2


class Peaks(msgspec.Struct, kw_only=True):
    """Highest values of one sample: resident memory of all descendants, their number, and plugins among them."""

    memory_bytes: int = 0
    processes: int = 0
    plugins: int = 0


async def watch(pid: int, plugin: Path, peaks: Peaks) -> None:
    """Raise `peaks` until cancelled. Processes whose executable is `plugin` are counted among all others."""
    process = psutil.Process(pid)
    while True:
        memory_bytes = processes = plugins = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
                    memory_bytes += child.memory_info().rss
                    processes += 1
                    plugins += child.exe() == str(plugin)
        peaks.memory_bytes = max(peaks.memory_bytes, memory_bytes)
        peaks.processes = max(peaks.processes, processes)
        peaks.plugins = max(peaks.plugins, plugins)
        await asyncio.sleep(EVERY_SECONDS)
