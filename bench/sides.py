"""Sides of a benchmark: processes that answer requests, a line of JSON each, on their standard input and output."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

READY: Final = "ready"
"""Line of a side that takes requests from now on."""
STOP_SECONDS: Final = 30.0  # some have servers to stop
LINE_BYTES_MAX: Final = 16 * 1024 * 1024

Answer = TypeVar("Answer")


class Figure(msgspec.Struct, frozen=True):
    """A throughput per second, or a p50 in milliseconds with its p99."""

    value: float
    p99: float | None = None

    def __str__(self) -> str:
        return f"{self.value:,.0f}/s" if self.p99 is None else f"p50 {self.value:g} ms, p99 {self.p99:g} ms"


Measure = Callable[[str], Awaitable[Figure]]
"""Measures the figure of a name for a moment."""


async def answer(measure: Measure) -> None:
    """Answer with the figure of each name on the standard input, until it ends."""
    print(READY, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        figure = await measure(msgspec.json.decode(line, type=str))
        print(msgspec.json.encode(figure).decode(), flush=True)


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
async def started(
    module: str, *arguments: str, python: str = sys.executable, tree: Path | None = None, **variables: str
) -> AsyncIterator[Side]:
    """A side in a process of its own, without settings of this environment but with `variables`; of another tree by its
    own `python`. It ends with its input."""
    process = await asyncio.create_subprocess_exec(
        *(python, "-m", module, *arguments),
        cwd=tree,
        env={name: value for name, value in os.environ.items() if not name.startswith(("SLIPWAY_", "AWS_"))}
        | variables,
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
