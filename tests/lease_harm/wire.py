"""The network between commands and the broker: slow, and counting renewals."""

import asyncio
import contextlib
from collections import Counter
from random import Random
from typing import Final

CHUNK_BYTES: Final = 65_536
LATENCY_SECONDS: Final = 0.08


class Wire:
    """Forwards connections to a port of this host, one request each. An answer is late by a random latency, and by
    `slow_seconds`."""

    def __init__(self, target: int, rng: Random) -> None:
        self.port = 0
        self.slow_seconds = 0.0
        self.renewals: Counter[str] = Counter()
        """Number of renewals by lease id."""
        self._target = target
        self._rng = rng
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1")
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.ExitStack() as stack:
            stack.callback(writer.close)
            upstream, sending = await asyncio.open_connection("127.0.0.1", self._target)
            stack.callback(sending.close)
            both = [
                asyncio.create_task(self._send(reader, sending)),
                asyncio.create_task(self._answer(upstream, writer)),
            ]
            for task in both:
                stack.callback(task.cancel)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            chunk = await reader.read(CHUNK_BYTES)
            await asyncio.sleep(self.slow_seconds + self._rng.uniform(0.0, LATENCY_SECONDS))
            while chunk:
                writer.write(chunk)
                await writer.drain()
                chunk = await reader.read(CHUNK_BYTES)

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            chunk = await reader.read(CHUNK_BYTES)
            self._count(chunk.partition(b"\r\n")[0].decode("latin-1"))
            while chunk:
                writer.write(chunk)
                await writer.drain()
                chunk = await reader.read(CHUNK_BYTES)

    def _count(self, request_line: str) -> None:
        method, _, path = request_line.partition(" ")
        parts = path.split(" ")[0].split("/")
        if method == "POST" and len(parts) == 4 and parts[1] == "leases" and parts[3] == "renew":
            self.renewals[parts[2]] += 1
