"""Proxies between clients and a broker, and the resource guarded by leases."""

import asyncio
import contextlib
from random import Random

from slipway_common.base.clock import monotonic_seconds
from tests.histories.history import Write

CHUNK_BYTES = 65_536


class Proxy:
    """Forwards connections to a port. For a share of them, drawn from `rng`, it drops the answer: the request has been
    sent and perhaps executed, but no client learns of it. While it is `cut` nothing passes."""

    def __init__(self, target: int, rng: Random) -> None:
        self.target = target
        self.share = 0.0
        self.dropped = 0
        self.cut = False
        self._rng = rng
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen on its own port."""
        self._server = await asyncio.start_server(self._pass, "127.0.0.1")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def cut_off(self) -> None:
        """Close open connections and let nothing through until `cut` is reset."""
        self.cut = True
        for writer in list(self._open):
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(writer.close)
            if self.cut:
                return
            self._open.add(writer)
            stack.callback(self._open.discard, writer)
            upstream, sending = await asyncio.open_connection("127.0.0.1", self.target)
            stack.callback(sending.close)
            asking = asyncio.create_task(_pump(reader, sending))
            stack.callback(asking.cancel)
            first = await upstream.read(CHUNK_BYTES)
            if self._rng.random() < self.share:
                self.dropped += 1
                return
            writer.write(first)
            await _pump(upstream, writer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()


class Resource:
    """The resource guarded by leases: for each pool it accepts a write whose fencing token is not below the highest one
    seen. It records all attempts in order."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self._highest: dict[str, int] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            pool, lease_id, token = (await reader.readline()).decode().split()
            accepted = self.take(pool, lease_id, int(token))
            writer.write(b"accepted\n" if accepted else b"refused\n")
            await writer.drain()

    def take(self, pool: str, lease_id: str, token: int) -> bool:
        accepted = token >= self._highest.get(pool, 0)
        if accepted:
            self._highest[pool] = token
        self.writes.append(
            Write(at=monotonic_seconds(), pool=pool, lease_id=lease_id, fencing_token=token, accepted=accepted)
        )
        return accepted
