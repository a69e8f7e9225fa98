"""Server of the Boskos API on its own port, off by default."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn

from slipway_common.observability.telemetry import logger
from slipway_common.web.access import Tokens
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.boskos.app import App
from slipway_lease_broker.boskos.calls import Calls
from slipway_lease_broker.boskos.transactions import SlotTerms, SlotTransactions
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.settings import Settings

LOG = logger(__name__)


class _Server(uvicorn.Server):
    """A server without signal handlers: it stops with its service, which handles the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Port:
    """The port of the Boskos API. `number` is the port once it is bound, also when the system chose it."""

    def __init__(
        self,
        settings: Settings,
        *,
        runtime: Callable[[], Runtime],
        caught_up: Callable[[str], bool],
        decided: Callable[[Decision], None],
        published: Callable[[bool], None],
    ) -> None:
        terms = SlotTerms(
            expired_state=settings.boskos_expired_state,
            request_ttl_seconds=settings.boskos_request_ttl_seconds,
            lost_linger_seconds=settings.lost_linger_seconds,
            waiter_ttl_seconds=settings.waiter_ttl_seconds,
        )
        transactions = SlotTransactions(terms, caught_up=caught_up, decided=decided, published=published)
        self.app = App(
            Calls(transactions),
            runtime,
            Tokens(settings.tokens_file),
            open_to_all=settings.boskos_open,
            proxy_wait_seconds=settings.boskos_proxy_wait_seconds,
        )
        self.number = settings.boskos_port or 0
        self._host = settings.boskos_host

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
