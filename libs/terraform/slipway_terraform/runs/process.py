"""One process of the CLI: a program that is interrupted with a grace, as a terminal does."""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from slipway_common.base.process.guard import Guard
from slipway_common.base.process.programs import Program
from slipway_common.base.process.users import ChildUser

LINE_BYTES_MAX: Final = 64 * 2**20
"""What exceeds it is dropped. The longest lines are states that the CLI could write to no file."""


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
    user: ChildUser | None = None,
) -> Ended:
    """Run a program to its end, as `user` [default: ours], and `feed` each line that it prints, also those of stderr.

    When interrupted it gets SIGINT; what is left of its process group after `grace_seconds` gets SIGKILL, and so does
    all that it leaves behind there. A process that has left the group, such as a daemon of a module, delays nothing. A
    process that the kernel does not end is reported, and counts as killed. `guard` kills the group if we are killed.
    Raises OSError if the program cannot be started.
    """
    program = Program(
        argv,
        environment=environment,
        folder=folder,
        guard=guard,
        on_line=feed,
        on_error=feed,
        line_bytes_max=LINE_BYTES_MAX,
        user=user,
    )
    running = asyncio.ensure_future(_run(program))
    interrupting = asyncio.ensure_future(_interrupt(program, interruption, grace_seconds))
    try:
        await asyncio.wait({running, interrupting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        interrupting.cancel()
        if not await program.kill():
            running.cancel()  # in uninterruptible sleep: it does nothing more, but only the kernel can end it
        await asyncio.gather(running, interrupting, return_exceptions=True)
    return Ended(-signal.SIGKILL if running.cancelled() else running.result(), interruption.reason)


async def _run(program: Program) -> int:
    await program.spawn()
    return await program.exited()


async def _interrupt(program: Program, interruption: Interruption, grace_seconds: float) -> None:
    await interruption.wait()
    program.send(signal.SIGINT)  # as a terminal does; plugins of the CLI ignore it
    await asyncio.sleep(grace_seconds)
