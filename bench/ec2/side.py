"""One side of the comparison: a process that launches machines on request, and measures its own CPU time.

It reads a `Cell` per line from its standard input, and answers with a `Sample` per line once the machines have ended.
"""

import asyncio
import contextlib
import gc
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

import httpx2
import msgspec
import uvloop

from bench.sides import READY
from slipway_common.service import GARBAGE_OBJECTS
from tests.support.harness import until

REGION: Final = "us-east-1"
ZONE: Final = "us-east-1a"
INSTANCE_TYPE: Final = "m5.large"
IMAGE: Final = "ami-0123456789abcdef0"
IDENTITY: Final = "123456789012"
KEY, SECRET = "AKIABENCH", "secret of the bench"
CALL_SECONDS: Final = 60.0
CONNECTIONS_MAX: Final = 64


class Cell(msgspec.Struct, frozen=True):
    """Launch calls of one round, each for so many machines."""

    calls: int
    size: int

    @property
    def machines(self) -> int:
        return self.calls * self.size


class Sample(msgspec.Struct, frozen=True):
    """CPU time of a round in milliseconds, of the process and of the kernel for it, and its largest memory so far."""

    cpu_ms: float
    peak_kb: float


class Meter:
    """CPU time of this process within `running`, of all of its threads."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds += time.process_time() - began


Round = Callable[[Cell, Meter], Awaitable[None]]


async def serve(play: Round) -> None:
    """Play a round for each line, until the input ends."""
    print(READY, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        meter = Meter()
        await play(msgspec.json.decode(line, type=Cell), meter)
        sample = Sample(meter.seconds * 1000, float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        print(msgspec.json.encode(sample).decode(), flush=True)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a side with the event loop and the garbage collection of a service."""
    gc.set_threshold(GARBAGE_OBJECTS)
    uvloop.run(main())


async def until_ended(url: str) -> None:
    """Wait until the stand-in has terminated all instances."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=CALL_SECONDS) as client:

        async def ended() -> bool:
            instances = (await client.get("/state")).json()["instances"]
            return set(instances) <= {"created", "terminated"}

        await until(ended, "all instances are terminated")
