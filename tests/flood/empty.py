"""An empty server: it answers every request with nothing, as soon as its header is there."""

import asyncio
import sys
from typing import Final

ANSWER: Final = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"


class Empty(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if b"\r\n\r\n" in data:
            self._transport.write(ANSWER)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Empty, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
