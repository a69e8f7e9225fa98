"""The command under a lease, as a process that behaves as if its caller had started it directly."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from slipway_common.base.process_group import CannotStart, ignored_signals, restore_default

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# A terminal sends these to its whole foreground process group.
FROM_TERMINAL: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
PR_SET_PDEATHSIG: Final = 1


class Child:
    """A child process with our input, output and environment, and the signals that we get.

    On a terminal it stays in our process group, where Ctrl-C reaches it, us and our caller at once, and is not
    forwarded again. Elsewhere, also in the background of a script, it leads a group of its own, so that a signal to our
    group and one to us alone both reach it and its children once.

    Signals that we ignore get their default action in the child, except SIGHUP, which `nohup` ignores on purpose: a
    shell without job control starts background commands with SIGINT and SIGQUIT ignored.
    """

    def __init__(self, process: asyncio.subprocess.Process, *, on_terminal: bool) -> None:
        self._process = process
        self._on_terminal = on_terminal

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], death_signal: signal.Signals | None
    ) -> "Child":
        """Start the command. `death_signal` is sent to it if we are killed (Linux only). Raises CannotStart."""
        # A shell without job control gives commands in its background no terminal as standard input.
        in_background = bool(FROM_TERMINAL & ignored_signals()) and not os.isatty(0)
        on_terminal = in_front_of_terminal() and not in_background
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(environment),
                process_group=-1 if on_terminal else 0,
                preexec_fn=_prepare_child(death_signal),
            )
        except (OSError, ValueError) as error:
            raise CannotStart(command[0], error) from error
        return cls(process, on_terminal=on_terminal)

    async def wait(self) -> int:
        """Wait for its exit code; negative for the signal that ended it."""
        return await self._process.wait()

    def forward(self, signum: signal.Signals) -> None:
        """Forward a signal that we got."""
        if not (self._on_terminal and signum in FROM_TERMINAL):
            self.send(signum)

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the command, unless it has exited; to its whole group if it leads one."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.kill if self._on_terminal else os.killpg)(self._process.pid, signum)


def in_front_of_terminal() -> bool:
    """True if our process group is the foreground group of a terminal, to which Ctrl-C is sent."""
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


def _prepare_child(death_signal: signal.Signals | None) -> Callable[[], None] | None:
    """Function to run in the child before exec: default signal actions, and the parent-death signal, which is set with
    prctl(2)."""
    ignored = ignored_signals() - {signal.SIGHUP}
    # Loaded before the fork: a child of a process with threads must not load anything.
    prctl = ctypes.CDLL(None).prctl if death_signal is not None and sys.platform == "linux" else None
    if not ignored and prctl is None:
        return None

    def prepare() -> None:
        restore_default(ignored)
        if prctl is not None and death_signal is not None:
            prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)

    return prepare
