"""HTTP servers in the process of a test."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import uvicorn

TICK_SECONDS: Final = 0.1
POLL_SECONDS: Final = 0.005


class Server(uvicorn.Server):
    """A server without signal handlers, which ends when it is told to: that of uvicorn looks ten times a second whether
    it should, and then waits a tenth of a second, which hundreds of tests would wait for."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()

    def end(self) -> None:
        """Begin to end, from any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._told.set)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self._loop, ticks = asyncio.get_running_loop(), 0
        while not await self.on_tick(ticks):
            ticks += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._told.wait()

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """End as uvicorn does: requests in progress are answered, for a limited time."""
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        state = self.server_state
        for connection in [*state.connections]:
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:
                    await asyncio.sleep(POLL_SECONDS)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@contextlib.asynccontextmanager
async def serving(config: uvicorn.Config, *sockets: socket.socket) -> AsyncIterator[None]:
    """Serve on the address of `config`, or on sockets."""
    server = Server(config)
    task = asyncio.create_task(server.serve([*sockets] or None))
    while not (server.started or task.done()):
        await asyncio.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        server.end()
        await task


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """URL of an application, without its lifespan."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with serving(uvicorn.Config(app, log_config=None, lifespan="off"), listener):
            yield url
