"""A child process with its own session and a log file, which never outlives its parent.

Children lead their own session, so Ctrl-C at the terminal reaches only the parent, which ends them in order. They are
registered with the guard, which ends them if the parent is killed.
"""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from slipway_common.base.process.groups import ended
from slipway_common.base.process.guard import Held, guard, signal_group

STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.02


class StartFailed(Exception):
    """A child process did not become ready; the message ends with the end of its log."""


async def until(condition: Callable[[], bool], poll_seconds: float = POLL_SECONDS) -> None:
    """Return when the condition holds."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(poll_seconds)


class Account(NamedTuple):
    """System user and group to run a child as."""

    uid: int
    gid: int


class Child:
    """A child process. It may be started again after it has ended; its log is appended to."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path | None = None,  # None: the parent's output
        env: Mapping[str, str] | None = None,  # None: the parent's environment
        cwd: Path | None = None,
        account: Account | None = None,
        stop_signal: int = signal.SIGTERM,
        orphan_signal: int = signal.SIGKILL,  # sent by the guard
    ) -> None:
        self.name = name
        self.argv = [str(argument) for argument in argv]
        self.log = log
        self._env = None if env is None else dict(env)
        self._cwd = cwd
        self._account = account
        self._stop_signal = stop_signal
        self._orphan_signal = orphan_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._is_guarded = False
        self._log_start = 0

    def start(self) -> None:
        if self.alive:
            raise RuntimeError(f"{self.name} is already running")
        account = self._account
        with ExitStack() as stack:
            output = None
            if self.log is not None:
                self.log.parent.mkdir(parents=True, exist_ok=True)
                output = stack.enter_context(self.log.open("ab"))
                self._log_start = output.tell()
            program = self.argv[0]
            if shutil.which(program, path=(os.environ if self._env is None else self._env).get("PATH")) is None:
                raise StartFailed(f"{self.name} cannot be started: {program} is no program")
            held = stack.enter_context(Held(self.argv, over=0))
            try:
                self._process = subprocess.Popen(
                    held.argv,
                    stdin=held.descriptor,
                    stdout=output,
                    stderr=output,
                    env=self._env,
                    cwd=self._cwd,
                    start_new_session=True,
                    user=account.uid if account else None,
                    group=account.gid if account else None,
                    extra_groups=[] if account else None,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise StartFailed(f"{self.name} cannot be started: {error}") from error
            held.go(self._process.pid, self._orphan_signal)
            self._is_guarded = True

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal as in subprocess; None while it runs and before its first start."""
        if self._process is None:
            return None
        code = self._process.poll()
        if code is not None and self._is_guarded:
            guard().forget(self._process.pid)
            self._is_guarded = False
        return code

    def signal(self, signum: int) -> None:
        """Signal the child's process group; does nothing if the child has ended."""
        if self.alive and self._process is not None:
            signal_group(self._process.pid, signum)

    async def wait(self) -> int | None:
        """Wait until it has ended; returns its exit code."""
        if self._process is not None:
            await ended(self._process)
        return self.exit_code

    async def stop(self, deadline_seconds: float = STOP_SECONDS) -> None:
        """Send the stop signal, and SIGKILL after the deadline."""
        self.signal(self._stop_signal)
        self.signal(signal.SIGCONT)  # a process stopped by SIGSTOP handles no other signal
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_seconds):
                await self.wait()
        await self.kill()

    async def kill(self) -> None:
        """Send SIGKILL and wait until it has ended."""
        self.signal(signal.SIGKILL)
        await self.wait()

    async def ready(self, probe: Callable[[], Awaitable[bool]], deadline_seconds: float) -> None:
        """Return when `probe` returns True. If the child ends or the deadline passes, kill it and raise StartFailed."""
        try:
            async with asyncio.timeout(deadline_seconds):
                while not await probe():
                    if not self.alive:
                        raise StartFailed(f"{self.name} exited with code {self.exit_code}{self.log_tail()}")
                    await asyncio.sleep(POLL_SECONDS)
        except BaseException as error:
            await self.kill()
            if isinstance(error, TimeoutError):
                raise StartFailed(f"{self.name} was not ready within {deadline_seconds:g} s{self.log_tail()}") from None
            raise

    def log_tail(self, lines: int = 20) -> str:
        """Last lines of the log since the last start, each after a line break; empty if there are none."""
        if self.log is None or not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - 64 * 1024))
            tail = file.read().decode(errors="replace").splitlines()[-lines:]
        return "".join(f"\n  {line}" for line in tail)
