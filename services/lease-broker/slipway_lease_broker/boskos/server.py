"""Server of the Boskos API on its own port, off by default."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn

from slipway_common.observability.telemetry import logger
from slipway_common.web.tokens import Tokens
from slipway_lease_broker.admission import Admissions
from slipway_lease_broker.boskos.app import App
from slipway_lease_broker.boskos.calls import Calls
from slipway_lease_broker.boskos.transactions import SlotTransactions

LOG = logger(__name__)


class _Server(uvicorn.Server):
    """A server without signal handlers: it stops with its service, which handles the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Port:
    """The port of the Boskos API. `number` is the port once it is bound, also when the system chose it."""

    def __init__(self, admissions: Admissions, tokens: Tokens, *, host: str, number: int) -> None:
        self.app = App(Calls(SlotTransactions(admissions)), admissions.runtime, tokens, admissions.terms)
        self.number = number
        self._host = host

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve for as long as the service runs. Raises OSError when the port is in use."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.create_server((self._host, self.number), family=family, backlog=2048)
        self.number = listening.getsockname()[1]
        server = _Server(
            uvicorn.Config(self.app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=5)
        )
        task = asyncio.create_task(server.serve([listening]))
        LOG.info("serving the Boskos API", host=self._host, port=self.number)
        try:
            yield
        finally:
            server.should_exit = True
            await asyncio.wait([task], timeout=7)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            listening.close()
