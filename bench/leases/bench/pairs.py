"""Throughput of pairs of acquire and release with durable commits: over HTTP one by one, over Kafka in batches.

Also measures the CPU time of a pair, of the broker and its database together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Final

import msgspec

from bench.leases.bench import prefill
from bench.leases.bench.http_client import HttpClient
from bench.leases.bench.kafka_client import KafkaClient, release, request
from bench.leases.bench.system import SECRET, System
from bench.spread import Spread, spread
from slipway_api.events.lease import LeaseGranted, LeaseReleased
from slipway_common.base.clock import monotonic_seconds

BATCH: Final = 50  # requests that one Kafka client has outstanding
WARM_UP: Final = 0.4  # as a fraction of the measured time
SENT_MAX: Final = 10
"""Grants that are released and requested anew at once. All of them would go around as one lump, whose rate is that of
the long polls on its way: 900 a second in one round and 1,900 in the next."""
REFILL: Final = "refill"  # prefix of the IDs of requests that are replaced once granted
_names = count()


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of acquire and release per second.

    `ratio` is the median over durable commits of one row by as many sessions in the same run.
    """

    way: str
    clients: int
    pairs_per_second: Spread
    cpu_ms_per_pair: Spread
    ratio: float


Work = Callable[[Callable[[], bool], Callable[[], None]], Awaitable[None]]
"""Client loop: runs while its first argument returns true and calls the second after each half of a pair. Many requests
are granted at once, then released at once: counted by releases alone, a short time would hold none or two of these."""


async def measured(system: System, seconds: float, works: list[Work]) -> tuple[float, float]:
    """Run all works at once; return pairs per second and CPU milliseconds per pair, without a warm-up."""
    halves, going = 0, True

    def half() -> None:
        nonlocal halves
        halves += 1

    tasks = [asyncio.create_task(_run(work, lambda: going, half)) for work in works]
    await asyncio.sleep(seconds * WARM_UP)
    # As autovacuum does within a minute. Plans that were made while the tables were small read them whole.
    await system.database.execute(prefill.ANALYZE)
    began, used, before = monotonic_seconds(), system.used_seconds(), halves
    await asyncio.sleep(seconds)
    took, used, pairs = monotonic_seconds() - began, system.used_seconds() - used, (halves - before) / 2
    going = False
    await asyncio.gather(*tasks)
    return round(pairs / took, 1), round(1000 * used / max(1.0, pairs), 3)


async def _run(work: Work, going: Callable[[], bool], half: Callable[[], None]) -> None:
    await work(going, half)


def over_http(system: System, pool: str) -> Work:
    """One HTTP client that acquires and releases in a loop."""

    async def work(going: Callable[[], bool], half: Callable[[], None]) -> None:
        async with HttpClient(system.port, SECRET) as client:
            while going():
                lease = await client.acquire(pool, f"http-{next(_names)}", wait_seconds=10.0)
                half()
                await client.release(lease)
                half()

    return work


class KafkaPool:
    """Benchmark clients of one lease pool over Kafka; they share its events."""

    def __init__(self, kafka: KafkaClient, pool: str) -> None:
        self.kafka = kafka
        self.pool = pool
        self._waiting: dict[str, asyncio.Queue[LeaseGranted]] = {REFILL: asyncio.Queue()}
        self._half: Callable[[], None] = lambda: None
        kafka.handlers[pool] = self.handle

    def handle(self, event: object) -> None:
        if isinstance(event, LeaseGranted):
            if (queue := self._waiting.get(event.request_id.partition("/")[0])) is not None:
                queue.put_nowait(event)
                self._half()
        elif isinstance(event, LeaseReleased):
            self._half()

    def refill(self) -> Work:
        """One client that keeps the number of waiting requests constant: each grant is released and requested anew."""

        async def work(going: Callable[[], bool], half: Callable[[], None]) -> None:
            self._half = half
            grants = self._waiting[REFILL]
            while going():
                granted = [await grants.get()]
                while not grants.empty() and len(granted) < SENT_MAX:
                    granted.append(grants.get_nowait())
                await self.kafka.send(
                    [*map(release, granted), *(request(self.pool, f"{REFILL}/{next(_names)}") for _ in granted)]
                )

        return work

    def client(self, batch: int = BATCH) -> Work:
        """One client that requests a batch, releases each lease once granted, and starts again after the last one."""

        async def work(going: Callable[[], bool], half: Callable[[], None]) -> None:
            self._half = half
            name = f"kafka-{next(_names)}"
            grants = self._waiting[name] = asyncio.Queue()
            while going():
                await self.kafka.send([request(self.pool, f"{name}/{next(_names)}") for _ in range(batch)])
                left = batch
                while left:
                    granted = [await grants.get()]
                    while not grants.empty():
                        granted.append(grants.get_nowait())
                    await self.kafka.send([release(grant) for grant in granted])
                    left -= len(granted)
            del self._waiting[name]

        return work


def pairs(way: str, clients: int, found: Sequence[tuple[float, float]], commits_per_second: float) -> Pairs:
    rate = spread([pairs_per_second for pairs_per_second, _ in found])
    return Pairs(
        way=way,
        clients=clients,
        pairs_per_second=rate,
        cpu_ms_per_pair=spread([cpu for _, cpu in found]),
        ratio=round(rate.median / commits_per_second, 3),
    )
