"""A program that never outlives us, with its output in lines, of which nothing is left once it has ended."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slipway_common.base.process import launch
from slipway_common.base.process.guard import Guard
from slipway_common.base.process.users import ChildUser

LOG = logging.getLogger(__name__)
CHUNK_BYTES: Final = 64 * 2**10
DRAIN_SECONDS: Final = 2.0
"""Time from the end of a process to that of its output, which is in our pipes then."""
# Killed descendants end within milliseconds; zombies may stay where the system's first process does not reap them.
GROUP_SECONDS: Final = 0.5
KILL_SECONDS: Final = 5.0
"""Time from SIGKILL to the end of a process that the kernel can end."""
POLL_SECONDS: Final = 0.02
# Flag of a process that is being shut down: linux/sched.h.
PF_EXITING: Final = 0x4
# ValueError: an argument or a variable with a zero byte.
NOT_EXECUTED: Final = (OSError, ValueError, subprocess.SubprocessError)


class Launched:
    """Arguments of a process that becomes a program by `launch`, and the pipe by which it reports that it cannot."""

    def __init__(self, argv: list[str], read_end: int, write_end: int, program: str) -> None:
        self.argv, self.pass_fds = argv, (write_end,)
        self._ends = [read_end, write_end]
        self._program = program

    def check(self) -> None:
        """Wait until the started process has become the program. Raises OSError if it has not."""
        read_end, write_end = self._ends
        self._ends = []
        os.close(write_end)
        with open(read_end, "rb") as status:
            error = status.read()
        if error:
            raise OSError(int(error), os.strerror(int(error)), self._program)

    def close(self) -> None:
        while self._ends:
            os.close(self._ends.pop())


@contextlib.contextmanager
def launching(
    command: Sequence[str], environment: Mapping[str, str], *, user: ChildUser | None = None, parent: int = 0
) -> Iterator[Launched]:
    """A program that runs the command as `user` [default: that of this process] and ends with the process `parent`, if
    given."""
    read_end, write_end = os.pipe()
    program = [sys.executable, "-I", "-S", launch.__file__]
    own = [str(write_end), str(parent), environment.get("LC_CTYPE", ""), str(user) if user is not None else ""]
    launched = Launched([*program, *own, *command], read_end, write_end, command[0])
    try:
        yield launched
    finally:
        launched.close()


class Program:
    """One process with its own session, started and awaited by a thread of its own, which kills its descendants after
    its end, and then calls `cleanup`. `guard` kills them if we are killed. `on_line` and `on_error` get the lines of
    its outputs; what exceeds `line_bytes_max` in a line is dropped, so that no output fills our memory. It runs as
    `user` [default: ours].

    The parent-death signal is sent when the *thread* ends that started a process, hence the thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        guard: Guard,
        on_line: Callable[[bytes], None],
        on_error: Callable[[bytes], None],
        line_bytes_max: int,
        cleanup: Callable[[], None] = lambda: None,
        user: ChildUser | None = None,
    ) -> None:
        self._command, self._environment, self._folder, self._user = command, environment, folder, user
        self._guard, self._cleanup = guard, cleanup
        self._outputs = (on_line, on_error)
        self._line_bytes_max = line_bytes_max
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[subprocess.Popen[bytes]] = self._loop.create_future()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._drains: list[asyncio.Task[None]] = []
        self.pid = 0

    async def spawn(self) -> None:
        """Start the process. Raises one of NOT_EXECUTED. Call `kill` after any error."""
        try:
            threading.Thread(target=self._live, name="program", daemon=True).start()
        except RuntimeError as error:
            self._report(self._started, OSError(errno.EAGAIN, str(error)))
        process = await asyncio.shield(self._started)
        pipes = (process.stdout, process.stderr)
        self._drains = [asyncio.create_task(self._drain(*each)) for each in zip(pipes, self._outputs, strict=True)]

    def is_alive(self) -> bool:
        if not self.pid or self._exited.done():
            return False
        try:
            if (
                hasattr(os, "waitid")
                and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            ):
                return False
            return not is_exiting(Path(f"/proc/{self.pid}/stat").read_bytes())
        except (ChildProcessError, ProcessLookupError):
            return False
        except FileNotFoundError:  # its thread has just awaited it, or there is no /proc
            return not Path("/proc/self").exists()

    async def exited(self) -> int:
        """Wait for its end and the end of its output; its exit code, negative for a signal."""
        code = await asyncio.shield(self._exited)
        if self._drains:
            await asyncio.wait(self._drains, timeout=DRAIN_SECONDS)  # a descendant outside the group may hold the pipe
            for drain in self._drains:
                drain.cancel()
        return code

    async def exits_within(self, seconds: float) -> bool:
        """True if it ends in this time."""
        done, _ = await asyncio.wait([self._exited], timeout=seconds)
        return bool(done)

    def send(self, signum: int) -> None:
        """Signal its process group; does nothing once it has ended."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)

    async def kill(self) -> bool:
        """Kill it, whether it has started, starts, or has failed to; returns once nothing of it is left, or reports
        that the kernel does not end it, and returns False: a process in uninterruptible sleep, as on a lost network
        disk, heeds no signal.
        """
        while not (self.pid or self._started.done()):
            await asyncio.wait([self._started], timeout=POLL_SECONDS)
        self.send(signal.SIGKILL)  # also while its execution waits for a disk
        await asyncio.wait([self._started], timeout=KILL_SECONDS)
        if self._started.done() and self._started.exception() is not None:
            return True  # never executed
        if await self.exits_within(KILL_SECONDS):
            await self.exited()
            return True
        LOG.error(
            "process %d of %s did not end after SIGKILL; check its state (ps -o stat,wchan -p %d) and its disks",
            self.pid,
            self._command[0],
            self.pid,
        )
        return False

    async def _drain(self, pipe: Any, on_line: Callable[[bytes], None]) -> None:
        """Read a pipe to its end, so that the process never blocks on it."""
        reader = asyncio.StreamReader()
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            partial = bytearray()
            while chunk := await reader.read(CHUNK_BYTES):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    on_line(bytes(partial + line)[: self._line_bytes_max])
                    partial.clear()
                partial += rest[: self._line_bytes_max - len(partial)]
            if partial:
                on_line(bytes(partial))
        finally:
            transport.close()

    def _live(self) -> None:
        """The thread of the process: start it, wait for its end, kill what is left of its group, clean up."""
        try:
            process = self._popen()
        except NOT_EXECUTED as error:
            self._cleanup()
            self._report(self._started, error)
            return
        self._report(self._started, process)
        if hasattr(os, "waitid"):
            # The group's number cannot be used again before its leader is reaped, so the others are killed first.
            with contextlib.suppress(ChildProcessError):  # the program ignores SIGCHLD, so that the system reaps
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        _wait_for_group(process.pid)
        self._guard.forget(process.pid)
        self._cleanup()
        self._report(self._exited, code)

    def _popen(self) -> subprocess.Popen[bytes]:
        with launching(self._command, self._environment, user=self._user, parent=os.getpid()) as launched:
            process = subprocess.Popen(
                launched.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(self._environment),
                cwd=self._folder,
                pass_fds=launched.pass_fds,
                start_new_session=True,
            )
            self.pid = process.pid
            self._guard.add(process.pid)
            try:
                launched.check()
            except OSError:
                process.communicate()
                self._guard.forget(process.pid)
                raise
        return process

    def _report(self, future: asyncio.Future[Any], result: Any) -> None:
        def settle() -> None:
            if not future.done():
                if isinstance(result, Exception):
                    future.set_exception(result)
                    future.exception()  # retrieved: nobody may be left to await it
                else:
                    future.set_result(result)

        with contextlib.suppress(RuntimeError):  # the loop was closed: the process ends with us
            self._loop.call_soon_threadsafe(settle)


def is_exiting(stat: bytes) -> bool:
    """True if a process is exiting according to its /proc/PID/stat, even if it cannot be awaited yet.

    A killed process releases its memory and sockets, then becomes a zombie, and can be awaited once its last thread has
    ended. Runs on it fail as soon as it begins to exit.
    """
    fields = stat.rpartition(b") ")[2].split()  # from the third on, see proc_pid_stat(5)
    return fields[0] == b"Z" or bool(int(fields[6]) & PF_EXITING)


def _wait_for_group(group: int) -> None:
    """Wait until a killed process group is empty."""
    deadline = time.monotonic() + GROUP_SECONDS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.002)
