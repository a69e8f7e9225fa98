"""An HTTP server beside the work of a process, which starts and ends it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

from slipway_common.web.listening import ListenerSettings, server_options


class _Server(uvicorn.Server):
    """A server without signal handlers: its process handles the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def served(app: Any, settings: ListenerSettings, host: str, port: int) -> AsyncIterator[int]:
    """Serve an ASGI app, with the TLS and the time limits of `settings`. Gives the port, which the system chooses for
    0. Raises OSError when it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=2048)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
            **server_options(settings),
        )
    )
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait([task], timeout=7)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        listening.close()
