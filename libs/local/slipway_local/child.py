"""One child process: its own session, a log file, an end it cannot miss. Does not decide when it is ready.

Children lead their own session, so a Ctrl-C typed at the terminal reaches only us, who end them in order; and they are
on the guard's list, so that they end even if we are killed.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from slipway_local.guard import guard, signal_group

STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.02


class StartFailed(Exception):
    """A child did not come up; the message ends with the tail of its log."""


async def until(condition: Callable[[], bool], poll_seconds: float = POLL_SECONDS) -> None:
    """Return when the condition holds. Polls: a child may be awaited in another event loop than it was started in."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(poll_seconds)


class Account(NamedTuple):
    """The system user to run as, where that is not our own."""

    uid: int
    gid: int


class Child:
    """May be started again after it has ended; the log is appended to."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path | None = None,  # None: our own output
        env: Mapping[str, str] | None = None,  # None: our own environment
        cwd: Path | None = None,
        account: Account | None = None,
        stop_signal: int = signal.SIGTERM,
        orphan_signal: int = signal.SIGKILL,  # what the guard ends it with
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
        self._log_start = 0

    def start(self) -> None:
        if self.alive:
            raise RuntimeError(f"{self.name} is running already")
        account = self._account
        with ExitStack() as stack:
            output = None
            if self.log is not None:
                self.log.parent.mkdir(parents=True, exist_ok=True)
                output = stack.enter_context(self.log.open("ab"))
                self._log_start = output.tell()
            try:
                self._process = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self._env,
                    cwd=self._cwd,
                    start_new_session=True,
                    user=account.uid if account else None,
                    group=account.gid if account else None,
                    extra_groups=[] if account else None,
                    preexec_fn=guard().pledge(self._orphan_signal),  # one write(2): safe after fork, beside threads
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise StartFailed(f"{self.name} cannot be started: {error}") from error

    @property
    def pid(self) -> int | None:
        """None when it does not run."""
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal, as in subprocess; None while it runs and before it was started."""
        if self._process is None:
            return None
        collected_before = self._process.returncode is not None
        code = self._process.poll()
        if code is not None and not collected_before:
            guard().forget(self._process.pid)
        return code

    def signal(self, signum: int) -> None:
        """Signal the child and the children it started in its group; nothing happens when it has ended."""
        if self.alive and self._process is not None:
            signal_group(self._process.pid, signum)

    async def wait(self) -> int | None:
        """Its exit code, once it has ended."""
        await until(lambda: not self.alive)
        return self.exit_code

    async def stop(self, deadline_seconds: float = STOP_SECONDS) -> None:
        """Ask it to end, and insist after the deadline."""
        self.signal(self._stop_signal)
        self.signal(signal.SIGCONT)  # a stopped process reads no other signal
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_seconds):
                await self.wait()
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        await self.wait()

    async def ready(self, probe: Callable[[], Awaitable[bool]], deadline_seconds: float) -> None:
        """Return when `probe` says yes; otherwise leave no child behind and raise StartFailed."""
        try:
            async with asyncio.timeout(deadline_seconds):
                while not await probe():
                    if not self.alive:
                        raise StartFailed(f"{self.name} ended with {self.exit_code}{self.log_tail()}")
                    await asyncio.sleep(POLL_SECONDS)
        except BaseException as error:
            await self.kill()
            if isinstance(error, TimeoutError):
                raise StartFailed(f"{self.name} was not ready in {deadline_seconds:g} s{self.log_tail()}") from None
            raise

    def log_tail(self, lines: int = 20) -> str:
        """The last lines it logged since its last start, on lines of their own; empty if there are none."""
        if self.log is None or not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - 64 * 1024))
            tail = file.read().decode(errors="replace").splitlines()[-lines:]
        return "".join(f"\n  {line}" for line in tail)
