"""Network between the machines and the provisioner of a simulated deployment."""

import httpx2


class Network(httpx2.AsyncBaseTransport):
    """Transport that answers no request while it `is_down`."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self.transport = transport
        self.is_down = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass a request on, unless the network is down."""
        return httpx2.Response(503) if self.is_down else await self.transport.handle_async_request(request)
