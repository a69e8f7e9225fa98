"""Process of a plugin, started and awaited by a thread of its own, which kills its descendants after its end."""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slipway_terraform.domain.redaction import redacted
from slipway_terraform.plugins import launch
from slipway_terraform.plugins.guard import Guard

LOG = logging.getLogger(__name__)
LINES_KEPT: Final = 50
LINE_CHARACTERS_MAX: Final = 500
# The part of a longer line beyond this is dropped, so that no output fills our memory.
LINE_BYTES_MAX: Final = 64 * 1024
DRAIN_SECONDS: Final = 2.0
# Killed descendants end within milliseconds; zombies may stay where the system's first process does not reap them.
GROUP_SECONDS: Final = 0.5
KILL_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.02
# Flag of a process that is being shut down: linux/sched.h.
PF_EXITING: Final = 0x4
# ValueError: an argument or a variable with a zero byte.
NOT_EXECUTED: Final = (OSError, ValueError, subprocess.SubprocessError)


class PluginProcess:
    """One process with its own session, a private folder and a ring of its last lines of output.

    The parent-death signal is sent when the *thread* ends that started a process. So each process has a thread that
    starts it and waits for its end.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        secrets: Sequence[str],
        guard: Guard,
        on_line: Callable[[str], None],
    ) -> None:
        self._command, self._environment, self._folder = command, environment, folder
        self._secrets, self._guard, self._on_line = secrets, guard, on_line
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[subprocess.Popen[bytes]] = self._loop.create_future()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._output: deque[str] = deque(maxlen=LINES_KEPT)
        self._errors: deque[str] = deque(maxlen=LINES_KEPT)
        self._drains: list[asyncio.Task[None]] = []
        self.pid = 0

    async def spawn(self) -> None:
        """Start the process. Raises one of NOT_EXECUTED. Call `kill` after any error."""
        try:
            threading.Thread(target=self._live, name="terraform-plugin", daemon=True).start()
        except RuntimeError as error:
            self._report(self._started, OSError(errno.EAGAIN, str(error)))
        process = await asyncio.shield(self._started)
        assert process.stdout is not None
        assert process.stderr is not None
        self._drains = [
            asyncio.create_task(self._drain(process.stdout, self._output, self._on_line)),
            asyncio.create_task(self._drain(process.stderr, self._errors, lambda line: None)),
        ]

    def is_alive(self) -> bool:
        if not self.pid or self._exited.done():
            return False
        try:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
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

    async def kill(self) -> None:
        """Kill it, whether it has started, starts, or has failed to; returns once nothing of it is left, or reports
        that the kernel does not end it: a process in uninterruptible sleep, as on a lost network disk, heeds no signal.
        """
        while not (self.pid or self._started.done()):
            await asyncio.wait([self._started], timeout=POLL_SECONDS)
        self.send(signal.SIGKILL)  # also while its execution waits for a disk
        await asyncio.wait([self._started], timeout=KILL_SECONDS)
        if self._started.done() and self._started.exception() is not None:
            return  # never executed
        if await self.exits_within(KILL_SECONDS):
            await self.exited()
        else:
            LOG.error(
                "process %d of %s did not end after SIGKILL; check its state (ps -o stat,wchan -p %d) and its disks",
                self.pid,
                self._command[0],
                self.pid,
            )

    def stderr(self) -> str:
        """Last lines of its standard error, redacted."""
        return self._redacted(self._errors)

    def stdout(self) -> str:
        """Last lines of its standard output, redacted."""
        return self._redacted(self._output)

    async def _drain(self, pipe: Any, ring: deque[str], on_line: Callable[[str], None]) -> None:
        """Read a pipe to its end, so that the plugin never blocks on it."""
        reader = asyncio.StreamReader()
        transport, _ = await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            partial = b""
            while chunk := await reader.read(LINE_BYTES_MAX):
                *lines, partial = (partial + chunk).split(b"\n")
                partial = partial[:LINE_BYTES_MAX]
                for line in lines:
                    self._keep(line, ring, on_line)
            if partial:
                self._keep(partial, ring, on_line)
        finally:
            transport.close()

    def _keep(self, line: bytes, ring: deque[str], on_line: Callable[[str], None]) -> None:
        text = line.decode(errors="replace")
        on_line(text)
        ring.append(text)

    def _redacted(self, lines: Iterable[str]) -> str:
        """Lines for people. Redacting a line takes longer than reading it, so that only lines to show are redacted."""
        return "\n".join(redacted(line, self._secrets)[:LINE_CHARACTERS_MAX] for line in lines)

    def _live(self) -> None:
        """The thread of the process: start it, wait for its end, kill what is left of its group, remove its folder."""
        try:
            process = self._popen()
        except NOT_EXECUTED as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._report(self._started, error)
            return
        self._report(self._started, process)
        # The group's number cannot be used again before its leader is reaped, so the others are killed first.
        with contextlib.suppress(ChildProcessError):  # the program ignores SIGCHLD, so that the system reaps
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        _wait_for_group(process.pid)
        self._guard.remove(process.pid)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._report(self._exited, code)

    def _popen(self) -> subprocess.Popen[bytes]:
        read_end, write_end = os.pipe()
        try:
            program = [sys.executable, "-I", "-S", launch.__file__]
            arguments = [str(write_end), str(os.getpid()), self._environment.get("LC_CTYPE", "")]
            process = subprocess.Popen(
                [*program, *arguments, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(self._environment),
                cwd=self._folder,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self.pid = process.pid
        self._guard.add(process.pid)
        with open(read_end, "rb") as status:
            error = status.read()
        if error:
            process.communicate()
            self._guard.remove(process.pid)
            raise OSError(int(error), os.strerror(int(error)), self._command[0])
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
