"""Connections as seen by the server: dropping one without a reply, and waiting until a client has disconnected."""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class DroppableProtocol(H11Protocol):
    """Uvicorn's protocol with a table of open connections by client address."""

    open: ClassVar[dict[tuple[str, int], "DroppableProtocol"]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.lost, self.unused = asyncio.Event(), asyncio.Event()
        if self.client:
            self.open[self.client] = self

    def connection_lost(self, exc: Exception | None) -> None:
        if self.client:
            self.open.pop(self.client, None)
        super().connection_lost(exc)
        self.lost.set()
        self.unused.set()

    def shutdown(self) -> None:
        """The server stops: handlers that wait on this connection answer now."""
        super().shutdown()
        self.unused.set()


async def drop(client: tuple[str, int]) -> None:
    """Abort the client's connection; anything sent on it afterwards is discarded."""
    if connection := DroppableProtocol.open.get(client):
        connection.transport.abort()
        await connection.lost.wait()


def disconnected(client: tuple[str, int] | None) -> asyncio.Event:
    """Event that is set once the client has disconnected or the server stops."""
    connection = DroppableProtocol.open.get(client) if client else None
    return connection.unused if connection else asyncio.Event()
