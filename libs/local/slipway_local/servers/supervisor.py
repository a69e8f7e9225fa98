"""Supervisor of processes: starts them in order, kills and pauses them by name, stops them in reverse order.

Parts (services, the broker, the database) define for themselves when they are ready.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.child import STOP_SECONDS, Child, StartFailed, until

# A single Ctrl-C, or one `kill` of a process group under make, may arrive twice.
SAME_SIGNAL_SECONDS: Final = 1.0
WATCH_SECONDS: Final = 0.2


class Part(Protocol):
    """Interface of EmbeddedKafka, EmbeddedPostgres and Service."""

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def alive(self) -> bool: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def kill(self) -> None: ...
    def signal(self, signum: int) -> None: ...
    def log_tail(self) -> str: ...


class Service:
    """A service process. It is ready when `ready` returns True, for example `http_ready`."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str],  # the whole environment
        log: Path,
        ready: Callable[[], Awaitable[bool]] | None = None,
        start_seconds: float = 30.0,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.name = name
        self._child = Child(name, argv, env=env, log=log)
        self._ready = ready
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.alive

    @property
    def exit_code(self) -> int | None:
        return self._child.exit_code

    async def start(self) -> None:
        """Start it and return when it is ready. Raises StartFailed with the end of its log if that fails."""
        self._child.start()
        if self._ready is not None:
            await self._child.ready(self._ready, self._start_seconds)

    async def stop(self) -> None:
        await self._child.stop(self._stop_seconds)

    async def kill(self) -> None:
        await self._child.kill()

    def signal(self, signum: int) -> None:
        self._child.signal(signum)

    def log_tail(self) -> str:
        return self._child.log_tail()


class Supervisor:
    """Starts parts, and stops every part it has started. Use it through `run` or as a context manager."""

    def __init__(self) -> None:
        self._rounds: list[list[Part]] = []
        self._parts: dict[str, Part] = {}
        self._expected_down: set[str] = set()

    async def __aenter__(self) -> "Supervisor":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, *parts: Part) -> None:
        """Start parts at the same time and return when all are ready. Raises the first StartFailed."""
        for part in parts:
            if part.name in self._parts:
                raise ValueError(f"a part named {part.name} already exists")
            self._parts[part.name] = part
            self._expected_down.add(part.name)
        self._rounds.append(list(parts))  # before the start, so that an interrupted start is stopped too
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for part in parts:
                    group.create_task(part.start())
        except* StartFailed as failed:
            failure = failed.exceptions[0]
        if failure is not None:
            raise failure
        self._expected_down.difference_update(part.name for part in parts)

    def __getitem__(self, name: str) -> Part:
        return self._parts[name]

    async def kill(self, name: str) -> None:
        """Send SIGKILL to a part; it stays down until `restart`."""
        self._expected_down.add(name)
        await self._parts[name].kill()

    async def restart(self, name: str) -> None:
        """Start a part again after it exited or was killed; a running part is stopped first."""
        part = self._parts[name]
        if part.alive:
            self._expected_down.add(name)
            await part.stop()
        await part.start()
        self._expected_down.discard(name)

    def pause(self, name: str) -> None:
        """Send SIGSTOP to a part: it keeps its connections but does not answer."""
        self._parts[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._parts[name].signal(signal.SIGCONT)

    def dead(self) -> list[str]:
        """Parts that exited unexpectedly: they were started, and neither stopped nor killed by this supervisor."""
        return [name for name, part in self._parts.items() if not part.alive and name not in self._expected_down]

    async def died(self) -> str:
        """Wait until a part exits unexpectedly; returns its name."""
        await until(lambda: bool(self.dead()), WATCH_SECONDS)
        return self.dead()[0]

    async def stop(self) -> None:
        """Stop all parts in reverse order of their start, those started together at the same time. Never raises."""
        while self._rounds:
            parts = self._rounds[-1]
            self._expected_down.update(part.name for part in parts)
            outcomes = await asyncio.gather(*(part.stop() for part in parts), return_exceptions=True)
            for part, outcome in zip(parts, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    part.signal(signal.SIGKILL)
            self._rounds.pop()

    def hurry(self) -> None:
        """Send SIGKILL to all parts, so that `stop` has nothing to wait for."""
        for part in self._parts.values():
            part.signal(signal.SIGKILL)


def run(main: Callable[[Supervisor], Awaitable[int]]) -> int:
    """Run `main` under a supervisor and stop all parts afterwards; returns main's exit code.

    SIGINT, SIGTERM and SIGHUP cancel `main` at any time and make the exit code 128 + signal. A second signal, at least
    SAME_SIGNAL_SECONDS later, kills all parts instead of stopping them.
    """
    return asyncio.run(_run(main))


async def _run(main: Callable[[Supervisor], Awaitable[int]]) -> int:
    supervisor = Supervisor()
    work = asyncio.ensure_future(main(supervisor))
    caught: list[tuple[int, float]] = []

    def interrupt(signum: int) -> None:
        now = monotonic_seconds()
        if not caught:
            work.cancel()
        elif now - caught[0][1] >= SAME_SIGNAL_SECONDS:
            supervisor.hurry()
        caught.append((signum, now))

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            loop.add_signal_handler(signum, interrupt, signum)
    try:
        await asyncio.wait([work])
    finally:
        await supervisor.stop()
    if caught:
        return 128 + caught[0][0]
    return work.result()


async def http_ready(port: int, path: str = "/readyz") -> bool:
    """True if a GET on a loopback port is answered with 200."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
                status = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return len(status) >= 2 and status[1] == b"200"
