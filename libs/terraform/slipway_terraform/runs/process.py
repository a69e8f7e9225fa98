"""One process of the CLI: own process group, ended with its parent, interrupted with a grace, always reaped."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from slipway_terraform.plugins import launch
from slipway_terraform.plugins.guard import Guard

LOG = logging.getLogger(__name__)
KILL_SECONDS: Final = 5.0
"""Time from SIGKILL to the end of a process that the kernel can end."""
DRAIN_SECONDS: Final = 2.0
"""Time from the end of a process to that of its output, which is in our pipes then."""
LINE_BYTES_MAX: Final = 64 * 2**20
"""Longer lines are dropped. The longest are states that the CLI could write to no file."""
CHUNK_BYTES: Final = 64 * 2**10


class Ended(msgspec.Struct, frozen=True):
    """End of a process. `exit_code` is negative if a signal ended it; `interrupted` is why it was interrupted."""

    exit_code: int
    interrupted: str


class Interruption:
    """Request to interrupt a process, with its reason. It may come before the process starts; the first one counts."""

    def __init__(self) -> None:
        self.reason = ""
        self._event = asyncio.Event()

    def request(self, reason: str) -> None:
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


async def run_process(
    argv: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    feed: Callable[[bytes], None],
    interruption: Interruption,
    grace_seconds: float,
    guard: Guard,
) -> Ended:
    """Run a program to its end and `feed` each line that it prints, also those of stderr.

    When interrupted it gets SIGINT; what is left of its process group after `grace_seconds` gets SIGKILL, and so does
    all that it leaves behind there. A process that has left the group, such as a daemon of a module, delays nothing. A
    process that the kernel does not end is reported, and counts as killed. `guard` kills the group if we are killed.
    Raises OSError if the program cannot be started.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)  # what the kernel does not end may hold it open
    with FileIO(read_end) as status, FileIO(write_end, "w") as inherited:
        async with _output(feed) as (stdout, printed), _output(feed) as (stderr, complained):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", launch.__file__, str(write_end), str(os.getpid()), "", *argv),
                cwd=folder,
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=(write_end,),
            )
            for ours in (inherited, stdout, stderr):
                ours.close()
            code = await _follow(process, {printed, complained}, interruption, grace_seconds, guard)
        if error := status.read(CHUNK_BYTES):
            raise OSError(int(error), os.strerror(int(error)), argv[0])
    return Ended(code, interruption.reason)


async def _follow(
    process: asyncio.subprocess.Process,
    reading: set[asyncio.Task[None]],
    interruption: Interruption,
    grace_seconds: float,
    guard: Guard,
) -> int:
    """Wait until a process ends, nothing of its group is left, and what it printed is read; its exit code."""
    guard.add(process.pid)
    interrupting = asyncio.ensure_future(_interrupt(process, interruption, grace_seconds))
    ending = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({ending, interrupting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        interrupting.cancel()
        with contextlib.suppress(ProcessLookupError):  # its children
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait({ending}, timeout=KILL_SECONDS)
        if ending.done():
            guard.remove(process.pid)
            await asyncio.wait(reading, timeout=DRAIN_SECONDS)
        else:  # in uninterruptible sleep: it does nothing more, but only the kernel can end it
            LOG.error("process %d did not end after SIGKILL; check its state and its disks", process.pid)
            ending.cancel()
        await asyncio.gather(ending, interrupting, return_exceptions=True)
    return -signal.SIGKILL if ending.cancelled() else ending.result()


async def _interrupt(process: asyncio.subprocess.Process, interruption: Interruption, grace_seconds: float) -> None:
    await interruption.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does; plugins of the CLI ignore it
        await asyncio.sleep(grace_seconds)
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def _output(feed: Callable[[bytes], None]) -> AsyncIterator[tuple[FileIO, asyncio.Task[None]]]:
    """Write end of a pipe for output, and the task that reads it. The pipe is ours, since asyncio reports the end
    of a process only after that of its own pipes, which a descendant may hold open."""
    read_end, write_end = os.pipe()
    reader = asyncio.StreamReader()
    with FileIO(read_end) as source, FileIO(write_end, "w") as sink:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), source
        )
        reading = asyncio.create_task(_lines(reader, feed))
        try:
            yield sink, reading
        finally:
            reading.cancel()
            transport.close()
            await asyncio.wait({reading})


async def _lines(stream: asyncio.StreamReader, feed: Callable[[bytes], None]) -> None:
    """Read to the end, so that the process never waits for us, in whole lines."""
    pending = bytearray()
    while chunk := await stream.read(CHUNK_BYTES):
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            feed(bytes(pending + part))
            pending.clear()
        if len(pending) + len(rest) <= LINE_BYTES_MAX:
            pending += rest
    if pending:
        feed(bytes(pending))
