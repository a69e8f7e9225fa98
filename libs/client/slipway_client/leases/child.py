"""The command under a lease, as a process that behaves as if its caller had started it directly."""

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from slipway_common.base.process.groups import Group, ignored_signals

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# A terminal sends these to its whole foreground process group.
FROM_TERMINAL: Final = frozenset({signal.SIGINT, signal.SIGQUIT})


class Child:
    """A child process with our input, output and environment, and the signals that we get.

    On a terminal it stays in our process group, where Ctrl-C reaches it, us and our caller at once, and is not
    forwarded again. Elsewhere, also in the background of a script, it leads a group of its own, so that a signal to our
    group and one to us alone both reach it and its children once.

    Signals that we ignore get their default action in the child, except SIGHUP, which `nohup` ignores on purpose.
    """

    def __init__(self, group: Group, *, on_terminal: bool) -> None:
        self._group = group
        self._on_terminal = on_terminal

    @classmethod
    def start(
        cls, command: Sequence[str], environment: Mapping[str, str], death_signal: signal.Signals | None
    ) -> "Child":
        """Start the command. `death_signal` is sent to it if we are killed (Linux only). Raises CannotStart."""
        # A shell without job control gives commands in its background no terminal as standard input.
        in_background = bool(FROM_TERMINAL & ignored_signals()) and not os.isatty(0)
        on_terminal = in_front_of_terminal() and not in_background
        group = Group.start(
            command,
            environment,
            stdin=None,
            leads=not on_terminal,
            ignored=[signal.SIGHUP],
            death_signal=death_signal,
        )
        return cls(group, on_terminal=on_terminal)

    async def wait(self) -> int:
        """Wait for its exit code; negative for the signal that ended it."""
        return await self._group.wait()

    def forward(self, signum: signal.Signals) -> None:
        """Forward a signal that we got."""
        if not (self._on_terminal and signum in FROM_TERMINAL):
            self.send(signum)

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the command, unless it has exited; to its whole group if it leads one."""
        self._group.send(signum)


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
