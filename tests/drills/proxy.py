"""TCP proxy between two parts of the system, which can be cut, or fall silent."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal

CHUNK_BYTES = 65_536


class Proxy:
    """Forwards connections from a port to another one of this host.

    `cut`: connections are closed, and new ones at once. `silent`: what clients send is read and never answered, and
    never arrives; connections stay open. Those that were open when the proxy fell silent never continue. The answer
    of a connection begins `delay()` seconds late, however many parts it has; `on_request` gets each part of a request.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.state: Literal["open", "cut", "silent"] = "open"
        self.delay: Callable[[], float] = float  # 0 s
        self.on_request: Callable[[bytes], None] = lambda part: None
        self.swallowed = 0
        """Number of chunks that were read and did not arrive."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> int:
        """Listen on a port of its own, or on this one; returns it."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        own: int = self._server.sockets[0].getsockname()[1]
        return own

    def cut(self) -> None:
        """Close all connections, and let none through until `restore`."""
        self.state = "cut"
        self._end()

    def silence(self) -> None:
        """Swallow everything until `restore`."""
        self.state = "silent"

    def is_silent(self) -> bool:
        return self.state == "silent"

    def restore(self) -> None:
        """Let new connections through; those that were swallowed are closed."""
        if self.is_silent():
            self._end()
        self.state = "open"

    def _end(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.ExitStack() as stack:
            stack.callback(writer.close)
            if self.state == "cut":
                return
            if self.is_silent():
                await self._swallow(reader)
                return
            upstream, sending = await asyncio.open_connection("127.0.0.1", self.target)
            stack.callback(sending.close)
            asking = asyncio.create_task(self._pump(reader, sending, is_answer=False))
            answering = asyncio.create_task(self._pump(upstream, writer, is_answer=True))
            stack.callback(asking.cancel)
            stack.callback(answering.cancel)
            await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
            if self.is_silent():
                await asking  # until the client gives up

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        is_late = is_answer
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self.is_silent():
                    self.swallowed += 1
                    await self._swallow(reader)
                    return
                if is_late:
                    is_late = False
                    await asyncio.sleep(self.delay())
                elif not is_answer:
                    self.on_request(chunk)
                writer.write(chunk)
                await writer.drain()

    async def _swallow(self, reader: asyncio.StreamReader) -> None:
        while await reader.read(CHUNK_BYTES):
            self.swallowed += 1
