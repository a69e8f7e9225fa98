"""Processes of one command: start, signals to the whole group, and their end."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import BinaryIO, Final

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
PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
HANDED_ON: Final = ("PATH", "HOME", "LANG", "TMPDIR")
"""Variables that a service hands on to a command that is not its own. Others hold passwords and keys."""
POLL_SECONDS: Final = 0.02  # where the kernel does not report the end of a process


def keep_private() -> None:
    """Hide this process from others of its user, before it starts any: root alone can then read its environment,
    memory, descriptors and folders in /proc. Unsetting a variable would not hide it. No core is dumped either."""
    if sys.platform == "linux":
        _prctl()(PR_SET_DUMPABLE, 0, 0, 0, 0)


def handed_on(more: Iterable[str] = ()) -> dict[str, str]:
    """Environment of a command that is not ours, with `more` variables that somebody has listed for it."""
    return {name: os.environ[name] for name in (*HANDED_ON, *more) if name in os.environ}


class CannotStart(Exception):
    """The program does not exist or cannot be run. `exit_code` is the shell's for this."""

    def __init__(self, program: str, error: OSError | ValueError) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        super().__init__(f"cannot start {program}: {reason}")
        self.exit_code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN


class Group:
    """A command, with our outputs unless others are given, as the leader of its own process group, or in ours."""

    def __init__(self, process: "subprocess.Popen[bytes]", *, leads: bool) -> None:
        self._process = process
        self._leads = leads

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        leads: bool = True,
        ignored: Iterable[signal.Signals] = (),
        death_signal: signal.Signals | None = None,
    ) -> "Group":
        """Start the command. Signals that we ignore get their default action in it, but for those `ignored` on purpose;
        `death_signal` is sent to it if we are killed (Linux only). Raises CannotStart."""
        try:
            if not command:
                raise ValueError("the command is empty")
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=dict(environment),
                process_group=0 if leads else -1,
                preexec_fn=_prepare(ignored_signals() - {*ignored}, death_signal),
            )
        except (OSError, ValueError) as error:
            raise CannotStart(command[0] if command else "the task", error) from error
        return cls(process, leads=leads)

    async def wait(self) -> int:
        """Wait until the command has ended; its exit code, negative for the signal that ended it."""
        await ended(self._process)
        return self._process.wait()

    async def end(self) -> int:
        """Wait until the command has ended, and kill what is left of its group; its exit code as a shell reports it,
        128 + n for signal n."""
        await ended(self._process)
        # The leader's pid, and so its group's, cannot be reused until its exit status is collected.
        self._send(signal.SIGKILL)
        code = self._process.wait()
        return 128 - code if code < 0 else code

    def send(self, signum: signal.Signals, *, leader_alone: bool = False) -> None:
        """Send a signal to the command, to its whole group if it leads one, unless it has exited. `leader_alone`: not
        to the group."""
        if self._process.returncode is None:
            self._send(signum, leader_alone=leader_alone)

    def _send(self, signum: signal.Signals, *, leader_alone: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may run as another user now
            (os.killpg if self._leads and not leader_alone else os.kill)(self._process.pid, signum)


async def output(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command to its end; its exit code, negative for a signal, and all that it printed, errors included. It is
    killed if the caller is cancelled. Raises OSError if it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        printed, _ = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise
    assert process.returncode is not None
    return process.returncode, printed.decode()


async def ended(process: "subprocess.Popen[bytes]") -> None:
    """Wait until a child has ended, in any event loop.

    Linux reports it by a pidfd, and the exit status is not collected yet. Elsewhere it is asked for at short intervals,
    which collects it: the number of a group that still has members is not given to another process.
    """
    if not hasattr(os, "pidfd_open"):
        while process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
    elif process.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # collected by another waiter
            await readable(os.pidfd_open(process.pid))


async def readable(handle: int) -> None:
    """Wait until a file descriptor is readable, and close it."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def filled_pipe(content: bytes) -> BinaryIO:
    """Read end of a pipe that holds the content, as standard input of a child. Raises OSError if it does not fit."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        if os.write(writing, content) < len(content):
            raise BlockingIOError(errno.EAGAIN, "the pipe's buffer is too small now")
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return os.fdopen(reading, "rb")


def ignored_signals() -> frozenset[signal.Signals]:
    """Signals that this process ignores and that a child would inherit as ignored."""
    return frozenset(signum for signum in DEFAULT_IN_CHILDREN if signal.getsignal(signum) is signal.SIG_IGN)


def describe_exit(exit_code: int) -> str:
    """Exit code as text for people."""
    with contextlib.suppress(ValueError):
        if exit_code > 128:
            return f"killed by {signal.Signals(exit_code - 128).name}"
    return f"exit code {exit_code}"


def _prepare(ignored: Iterable[signal.Signals], death_signal: signal.Signals | None) -> Callable[[], None] | None:
    """Function to run in the child before exec: default signal actions, and the parent-death signal, which is set with
    prctl(2)."""
    ignored = tuple(ignored)
    # Loaded before the fork: a child of a process with threads must not load anything.
    prctl = _prctl() if death_signal is not None and sys.platform == "linux" else None
    if not ignored and prctl is None:
        return None

    def prepare() -> None:
        for signum in ignored:
            signal.signal(signum, signal.SIG_DFL)
        if prctl is not None and death_signal is not None:
            prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)

    return prepare


def _prctl() -> Callable[..., int]:
    """prctl(2)."""
    import ctypes  # slow to import, and most commands start without it

    return ctypes.CDLL(None).prctl
