"""From a release to the grant that it makes possible, as the next holder hears of it."""

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import Any, Final

import msgspec

from bench.leases.bench.bus import Bus, ask, release
from bench.leases.bench.caller import Caller
from bench.leases.bench.system import SECRET, System
from bench.spread import percentile
from slipway_common.clock import monotonic_seconds
from slipway_common.events.lease import LeaseGranted

WARM_UP: Final = 3
PLAIN: Final = 50
_names = count()


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from before the release was sent until the next holder had its grant. `ratio` is of p50 to
    `plain_ms`: a durable commit of one row, or a record that went through Apache Kafka and nothing else."""

    samples: int
    p50: float
    p99: float
    plain_ms: float
    ratio: float


def handover(milliseconds: Iterable[list[float]], plain_ms: float) -> Handover:
    kept = [one for lane in milliseconds for one in lane[WARM_UP:]]
    p50 = percentile(kept, 50)
    return Handover(
        samples=len(kept),
        p50=p50,
        p99=percentile(kept, 99),
        plain_ms=round(plain_ms, 2),
        ratio=round(p50 / plain_ms, 1),
    )


async def plain(bus: Bus) -> float:
    """Milliseconds from before a record is handed to the producer until it is read; the median of some."""
    told = []
    for number in range(PLAIN + WARM_UP):
        began = monotonic_seconds()
        appending = asyncio.create_task(bus.append(b"%d" % number))
        await bus.plain.get()
        told.append((monotonic_seconds() - began) * 1000)
        await appending
    return percentile(told[WARM_UP:], 50)


async def over_http(system: System, pool: str, seconds: float) -> list[float]:
    """Two that take turns at a lease pool of one unit, each staying for its grant."""
    async with Caller(system.port, SECRET) as one, Caller(system.port, SECRET) as other:
        holder, waiter, told = one, other, []
        lease = await holder.acquire(pool, f"turn-{next(_names)}")
        end = monotonic_seconds() + seconds
        while monotonic_seconds() < end:
            request_id = f"turn-{next(_names)}"
            waiting = asyncio.create_task(waiter.acquire(pool, request_id, wait_seconds=10.0))
            await _until_waiting(system, pool, request_id)
            began = monotonic_seconds()
            releasing = asyncio.create_task(holder.release(lease))
            lease = await waiting
            told.append((monotonic_seconds() - began) * 1000)
            await releasing
            holder, waiter = waiter, holder
        await holder.release(lease)
    return told


async def _until_waiting(system: System, pool: str, request_id: str) -> None:
    """Until it has its place in the queue; otherwise its arrival would be measured."""
    asked = "SELECT count(*) FROM requests WHERE lease_pool_id = $1 AND id = $2"
    while not await system.pool.fetchval(asked, pool, request_id):  # noqa: ASYNC110 - another process sees to it
        await asyncio.sleep(0.005)  # more often, and what is measured is this question
    await asyncio.sleep(0.005)  # its answer may still be on the way to where it stays


async def over_kafka(bus: Bus, pool: str, seconds: float) -> list[float]:
    """One after another at a lease pool of one unit, each asked for before the last is given back."""
    heard: asyncio.Queue[LeaseGranted] = asyncio.Queue()

    def hear(event: Any) -> None:
        if isinstance(event, LeaseGranted):
            heard.put_nowait(event)

    bus.hears[pool] = hear
    told = []
    await bus.send([ask(pool, f"turn-{next(_names)}")])
    grant = await heard.get()
    end = monotonic_seconds() + seconds
    while monotonic_seconds() < end:
        await bus.send([ask(pool, f"turn-{next(_names)}")])
        await asyncio.sleep(0.06)  # until it waits
        began = monotonic_seconds()
        await bus.send([release(grant)])
        grant = await heard.get()
        told.append((monotonic_seconds() - began) * 1000)
    await bus.send([release(grant)])
    del bus.hears[pool]
    return told
