"""Server of the Boskos API on its own port, off by default."""

import contextlib
from collections.abc import AsyncIterator

from slipway_common.observability.telemetry import logger
from slipway_common.web import beside
from slipway_common.web.tokens import Tokens
from slipway_lease_broker.admission import Admissions
from slipway_lease_broker.boskos.app import App
from slipway_lease_broker.boskos.calls import Calls
from slipway_lease_broker.boskos.transactions import SlotTransactions
from slipway_lease_broker.settings import Settings

LOG = logger(__name__)


class Port:
    """The port of the Boskos API, which has the certificate of the service. `number` is the port once it is bound, also
    when the system chose it."""

    def __init__(self, admissions: Admissions, tokens: Tokens, settings: Settings) -> None:
        self.app = App(Calls(SlotTransactions(admissions)), admissions.runtime, tokens, admissions.terms)
        self.number = settings.boskos_port or 0
        self._settings = settings

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve for as long as the service runs. Raises OSError when the port is in use."""
        host = self._settings.boskos_host
        async with beside.served(self.app, self._settings, host, self.number) as self.number:
            LOG.info("serving the Boskos API", host=host, port=self.number)
            yield
