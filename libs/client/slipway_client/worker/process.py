"""A process of its own group, and the end of all of it."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

# What the file with the user data is called is nobody else's business.
OWN_VARIABLES: Final = frozenset({"SLIPWAY_USER_DATA"})
CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127


class CannotStart(Exception):
    """There is no such program, or it cannot be run. `exit_code` is what a shell would say."""

    def __init__(self, program: str, error: OSError | ValueError) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        super().__init__(f"{program} cannot be started: {reason}")
        self.exit_code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN


class Group:
    """A command as the leader of its own process group, with our standard output and nothing to read."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @classmethod
    def start(cls, command: Sequence[str], variables: Mapping[str, str]) -> "Group":
        """With our own environment and `variables`. Raises CannotStart."""
        own = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        try:
            if not command:
                raise ValueError("there is no command")
            return cls(subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**own, **variables}, process_group=0))
        except (OSError, ValueError) as error:
            raise CannotStart(command[0] if command else "the task", error) from error

    async def wait(self) -> int:
        """Its exit code, 128 + n for signal n; whatever it left in its group has ended then too."""
        ended = asyncio.Event()
        handle = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(handle, ended.set)
        try:
            await ended.wait()
        finally:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)
        # Until its exit status is collected the leader's number is nobody else's, and so is its group's.
        self._send(signal.SIGKILL)
        code = self._process.wait()
        return 128 - code if code < 0 else code

    def send(self, signum: signal.Signals) -> None:
        """To the whole group, unless its leader has ended."""
        if self._process.returncode is None:
            self._send(signum)

    def _send(self, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has become another user's
            os.killpg(self._process.pid, signum)


def words(exit_code: int) -> str:
    """An exit code for people."""
    with contextlib.suppress(ValueError):
        if exit_code > 128:
            return f"killed by {signal.Signals(exit_code - 128).name}"
    return f"exit code {exit_code}"
