"""The command that a lease covers, as a process that behaves as if nothing stood between it and its caller."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from slipway_client.worker.process import CannotStart

PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# A terminal sends these to everybody in front of it at once.
FROM_TERMINAL: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
PR_SET_PDEATHSIG: Final = 1


class Child:
    """Our input, output and environment, and the signals that we get.

    On a terminal it stays in our process group, where Ctrl-C reaches it, us and our caller at once, and is not passed
    on a second time. Elsewhere it leads a group of its own, so that a signal to our group and one to us alone both
    reach it once, and what it has started with it.
    """

    def __init__(self, process: asyncio.subprocess.Process, *, on_terminal: bool) -> None:
        self._process = process
        self._on_terminal = on_terminal

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], if_we_die: signal.Signals | None
    ) -> "Child":
        """`if_we_die` is sent to it if we are killed, where the system can do that. Raises CannotStart."""
        on_terminal = in_front_of_terminal()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(environment),
                process_group=-1 if on_terminal else 0,
                preexec_fn=_told_if_we_die(if_we_die),
            )
        except (OSError, ValueError) as error:
            raise CannotStart(command[0], error) from error
        return cls(process, on_terminal=on_terminal)

    async def wait(self) -> int:
        """Its exit code; negative for the signal that ended it."""
        return await self._process.wait()

    def pass_on(self, signum: signal.Signals) -> None:
        """A signal that we got."""
        if not (self._on_terminal and signum in FROM_TERMINAL):
            self.send(signum)

    def send(self, signum: signal.Signals) -> None:
        """To the command, unless it has ended; with all that it has started, where its group is its own."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.kill if self._on_terminal else os.killpg)(self._process.pid, signum)


def in_front_of_terminal() -> bool:
    """Whether what is typed at a terminal becomes signals to our process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _told_if_we_die(signum: signal.Signals | None) -> Callable[[], None] | None:
    """For the child, before it becomes the command. Nobody else could tell it: who is killed does nothing more."""
    if signum is None or sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # before the fork: a child of a process with threads must not load anything

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)

    return arrange
