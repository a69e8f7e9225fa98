"""Processes that lead a group of their own, and the termination of the whole group."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

# The path of the user data is not passed on to tasks.
OWN_VARIABLES: Final = frozenset({"SLIPWAY_USER_DATA"})
# Signals that commands rely on to be stopped. A shell without job control starts background commands with SIGINT and
# SIGQUIT ignored; a child would inherit that.
DEFAULT_IN_CHILDREN: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127


class CannotStart(Exception):
    """The program does not exist or cannot be run. `exit_code` is the shell's for this."""

    def __init__(self, program: str, error: OSError | ValueError) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        super().__init__(f"cannot start {program}: {reason}")
        self.exit_code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN


class Group:
    """A command as the leader of its own process group, with our standard output and an empty standard input."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @classmethod
    def start(cls, command: Sequence[str], variables: Mapping[str, str]) -> "Group":
        """Start the command with our environment and `variables`. Raises CannotStart."""
        environment = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        ignored = ignored_signals()
        prepare = partial(restore_default, ignored) if ignored else None
        try:
            if not command:
                raise ValueError("the command is empty")
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={**environment, **variables},
                process_group=0,
                preexec_fn=prepare,
            )
        except (OSError, ValueError) as error:
            raise CannotStart(command[0] if command else "the task", error) from error
        return cls(process)

    async def wait(self) -> int:
        """Wait for its exit code, 128 + n for signal n; what is left of its group is killed then."""
        ended = asyncio.Event()
        handle = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(handle, ended.set)
        try:
            await ended.wait()
        finally:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)
        # The leader's pid, and so its group's, cannot be reused until its exit status is collected.
        self._send(signal.SIGKILL)
        code = self._process.wait()
        return 128 - code if code < 0 else code

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the whole group, unless its leader has exited."""
        if self._process.returncode is None:
            self._send(signum)

    def _send(self, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may run as another user now
            os.killpg(self._process.pid, signum)


def ignored_signals() -> frozenset[signal.Signals]:
    """Signals that this process ignores and that a child would inherit as ignored."""
    return frozenset(signum for signum in DEFAULT_IN_CHILDREN if signal.getsignal(signum) is signal.SIG_IGN)


def restore_default(signums: Iterable[signal.Signals]) -> None:
    """Restore the default action of signals; called in a child between fork and exec."""
    for signum in signums:
        signal.signal(signum, signal.SIG_DFL)


def describe_exit(exit_code: int) -> str:
    """Exit code as text for people."""
    with contextlib.suppress(ValueError):
        if exit_code > 128:
            return f"killed by {signal.Signals(exit_code - 128).name}"
    return f"exit code {exit_code}"
