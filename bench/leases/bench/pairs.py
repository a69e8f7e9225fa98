"""How many leases a second are granted and given back, each commit durable: over HTTP one by one, over Kafka in
batches; and what a pair costs of processor time, of the broker and its database together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Final

import msgspec

from bench.leases.bench.bus import Bus, ask, release
from bench.leases.bench.caller import Caller
from bench.leases.bench.system import SECRET, System
from bench.spread import Spread, spread
from slipway_common.clock import monotonic_seconds
from slipway_common.events.lease import LeaseGranted, LeaseReleased

BATCH: Final = 50  # requests that one asker on Kafka has under way
WARM_UP: Final = 0.4  # of the time that is measured
REFILL: Final = "refill"  # begins the ids of requests that others follow
_names = count()


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """`ratio` is of the median to durable commits of one row by as many sessions in the same run."""

    way: str
    clients: int
    pairs_per_second: Spread
    cpu_ms_per_pair: Spread
    ratio: float


Work = Callable[[Callable[[], bool], Callable[[], None]], Awaitable[None]]
"""Works until told to stop, and tells of each pair."""


async def measured(system: System, seconds: float, works: list[Work]) -> tuple[float, float]:
    """(pairs a second, processor milliseconds per pair) of all these at once, after a warm-up."""
    done, going = 0, True

    def pair() -> None:
        nonlocal done
        done += 1

    tasks = [asyncio.create_task(_run(work, lambda: going, pair)) for work in works]
    await asyncio.sleep(seconds * WARM_UP)
    began, used, before = monotonic_seconds(), system.used_seconds(), done
    await asyncio.sleep(seconds)
    took, used, pairs = monotonic_seconds() - began, system.used_seconds() - used, done - before
    going = False
    await asyncio.gather(*tasks)
    return round(pairs / took, 1), round(1000 * used / max(1, pairs), 3)


async def _run(work: Work, going: Callable[[], bool], pair: Callable[[], None]) -> None:
    await work(going, pair)


def over_http(system: System, pool: str) -> Work:
    """One client: it acquires, gives back, and begins again."""

    async def work(going: Callable[[], bool], pair: Callable[[], None]) -> None:
        async with Caller(system.port, SECRET) as caller:
            while going():
                lease = await caller.acquire(pool, f"http-{next(_names)}", wait_seconds=10.0)
                await caller.release(lease)
                pair()

    return work


class Askers:
    """Those of one lease pool on Kafka share what is heard of it."""

    def __init__(self, bus: Bus, pool: str) -> None:
        self.bus = bus
        self.pool = pool
        self._waiting: dict[str, asyncio.Queue[LeaseGranted]] = {REFILL: asyncio.Queue()}
        self._pair: Callable[[], None] = lambda: None
        bus.hears[pool] = self.hear

    def hear(self, event: object) -> None:
        if isinstance(event, LeaseGranted):
            if (queue := self._waiting.get(event.request_id.partition("/")[0])) is not None:
                queue.put_nowait(event)
        elif isinstance(event, LeaseReleased):
            self._pair()

    def refill(self) -> Work:
        """For whom there always wait as many: each grant is given back and followed by a new request."""

        async def work(going: Callable[[], bool], pair: Callable[[], None]) -> None:
            self._pair = pair
            grants = self._waiting[REFILL]
            while going():
                granted = [await grants.get()]
                while not grants.empty():
                    granted.append(grants.get_nowait())
                await self.bus.send(
                    [*map(release, granted), *(ask(self.pool, f"{REFILL}/{next(_names)}") for _ in granted)]
                )

        return work

    def asker(self, batch: int = BATCH) -> Work:
        """One client: it asks for a batch, gives each part back as it is granted, and asks again once all were."""

        async def work(going: Callable[[], bool], pair: Callable[[], None]) -> None:
            self._pair = pair
            name = f"kafka-{next(_names)}"
            grants = self._waiting[name] = asyncio.Queue()
            while going():
                await self.bus.send([ask(self.pool, f"{name}/{next(_names)}") for _ in range(batch)])
                left = batch
                while left:
                    granted = [await grants.get()]
                    while not grants.empty():
                        granted.append(grants.get_nowait())
                    await self.bus.send([release(grant) for grant in granted])
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
