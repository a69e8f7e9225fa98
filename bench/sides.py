"""Sides of a benchmark: processes that answer requests, a line of JSON each, on their standard input and output."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, Final, TypeVar

import msgspec

READY: Final = "ready"
"""Line of a side that takes requests from now on."""
STOP_SECONDS: Final = 10.0
LINE_BYTES_MAX: Final = 16 * 1024 * 1024

Answer = TypeVar("Answer")


class Side:
    """A running side."""

    def __init__(self, process: asyncio.subprocess.Process, module: str) -> None:
        self._process = process
        self._module = module

    def send(self, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(value) + b"\n")

    async def ready(self) -> None:
        """Wait until it takes requests. It may print other lines before."""
        while (await self._line()).decode().strip() != READY:
            continue

    async def ask(self, question: Any, type_: type[Answer]) -> Answer:
        self.send(question)
        return msgspec.json.decode(await self._line(), type=type_)

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        if line := await self._process.stdout.readline():
            return line
        raise RuntimeError(f"the process of {self._module} has ended, for the reason above")


@contextlib.asynccontextmanager
async def started(module: str, *arguments: str) -> AsyncIterator[Side]:
    """A side in a process of its own, without settings of this environment. It ends with its input."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        env={name: value for name, value in os.environ.items() if not name.startswith(("SLIPWAY_", "AWS_"))},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        start_new_session=True,
    )
    try:
        yield Side(process, module)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
