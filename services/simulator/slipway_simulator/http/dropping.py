"""How a connection is dropped without a reply, and when one is over: what HTTP itself has no words for."""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class DroppableProtocol(H11Protocol):
    """Uvicorn's protocol, with its open connections by the client's address."""

    open: ClassVar[dict[tuple[str, int], "DroppableProtocol"]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.lost, self.over = asyncio.Event(), asyncio.Event()
        if self.client:
            self.open[self.client] = self

    def connection_lost(self, exc: Exception | None) -> None:
        if self.client:
            self.open.pop(self.client, None)
        super().connection_lost(exc)
        self.lost.set()
        self.over.set()

    def shutdown(self) -> None:
        """The server ends: whoever waits for something on this connection is answered now."""
        super().shutdown()
        self.over.set()


async def drop(client: tuple[str, int]) -> None:
    """End the client's connection now; whatever is sent to it afterwards goes nowhere."""
    if connection := DroppableProtocol.open.get(client):
        connection.transport.abort()
        await connection.lost.wait()


def over(client: tuple[str, int] | None) -> asyncio.Event:
    """Set once nobody waits for an answer on this connection any more, or the server ends."""
    connection = DroppableProtocol.open.get(client) if client else None
    return connection.over if connection else asyncio.Event()
