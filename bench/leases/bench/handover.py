"""Handover latency: from a release to the moment at which the next holder receives its grant."""

import asyncio
from collections.abc import Iterable
from itertools import count
from random import Random
from typing import Any, Final

import msgspec

from bench.leases.bench.http_client import HttpClient
from bench.leases.bench.kafka_client import KafkaClient, release, request
from bench.leases.bench.system import SECRET, System
from bench.spread import percentile
from slipway_api.events.lease import LeaseGranted
from slipway_common.base.clock import monotonic_seconds

WARM_UP: Final = 3
SECONDS_MIN: Final = 4.0
"""Shortest measurement: .8 s after heavy loads had 30 handovers, and the median of seven rounds was × 1.19 between two
trees that are equally fast in 5 s."""
PLAIN: Final = 50
CHANCE: Final = Random(1)
UNSENT: Final = "SELECT count(*) FROM outbox"
UNSENT_MAX: Final = 100  # as many as the handovers themselves may leave at a time
PUBLISHED_SECONDS: Final = 60.0
_names = count()


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from before the release is sent until the next holder has its grant.

    `ratio` is p50 over `plain_ms`: a durable commit of one row, or a record that passes through Apache Kafka alone.
    """

    samples: int
    p50: float
    p99: float
    plain_ms: float
    ratio: float


def handover(milliseconds: Iterable[list[float]], plain_ms: float) -> Handover:
    measured = [one for lane in milliseconds for one in lane[WARM_UP:]]
    p50 = percentile(measured, 50)
    return Handover(
        samples=len(measured),
        p50=p50,
        p99=percentile(measured, 99),
        plain_ms=round(plain_ms, 2),
        ratio=round(p50 / plain_ms, 1),
    )


async def plain(client: KafkaClient) -> float:
    """Median milliseconds from before a record is handed to the producer until it is read."""
    found = []
    for number in range(PLAIN + WARM_UP):
        began = monotonic_seconds()
        appending = asyncio.create_task(client.append(b"%d" % number))
        await client.plain.get()
        found.append((monotonic_seconds() - began) * 1000)
        await appending
    return percentile(found[WARM_UP:], 50)


async def over_http(system: System, pool: str, seconds: float) -> list[float]:
    """Milliseconds of each handover between two clients that alternate at a lease pool of one unit, once the events of
    earlier measurements are published: more are left the more leases these have granted. For SECONDS_MIN at least."""
    async with asyncio.timeout(PUBLISHED_SECONDS):
        while await system.database.fetchval(UNSENT) > UNSENT_MAX:  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.1)
    async with HttpClient(system.port, SECRET) as one, HttpClient(system.port, SECRET) as other:
        holder, waiter = one, other
        found: list[float] = []
        lease = await holder.acquire(pool, f"turn-{next(_names)}")
        end = monotonic_seconds() + max(seconds, SECONDS_MIN)
        while monotonic_seconds() < end:
            request_id = f"turn-{next(_names)}"
            waiting = asyncio.create_task(waiter.acquire(pool, request_id, wait_seconds=10.0))
            await _until_waiting(system, pool, request_id)
            began = monotonic_seconds()
            releasing = asyncio.create_task(holder.release(lease))
            lease = await waiting
            found.append((monotonic_seconds() - began) * 1000)
            await releasing
            holder, waiter = waiter, holder
        await holder.release(lease)
    return found


async def _until_waiting(system: System, pool: str, request_id: str) -> None:
    """Wait until the request is in the queue; otherwise its arrival would be measured as well."""
    query = "SELECT count(*) FROM requests WHERE lease_pool_id = $1 AND id = $2"
    while not await system.database.fetchval(query, pool, request_id):  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(0.005)  # a shorter interval would load the database with this query
    await asyncio.sleep(0.005)  # the broker may not have registered the waiting connection yet


async def over_kafka(client: KafkaClient, pool: str, seconds: float) -> list[float]:
    """Milliseconds of each handover at a lease pool of one unit; each request is sent before the last release. For
    SECONDS_MIN at least."""
    grants: asyncio.Queue[LeaseGranted] = asyncio.Queue()

    def handle(event: Any) -> None:
        if isinstance(event, LeaseGranted):
            grants.put_nowait(event)

    client.handlers[pool] = handle
    found = []
    await client.send([request(pool, f"turn-{next(_names)}")])
    grant = await grants.get()
    end = monotonic_seconds() + max(seconds, SECONDS_MIN)
    while monotonic_seconds() < end:
        await client.send([request(pool, f"turn-{next(_names)}")])
        # Until it waits, and at any phase of the broker's long poll: a release that always came at the same one would
        # measure how that falls, 10 ms in one run and 25 ms in another.
        await asyncio.sleep(0.06 + CHANCE.random() * 0.1)
        began = monotonic_seconds()
        await client.send([release(grant)])
        grant = await grants.get()
        found.append((monotonic_seconds() - began) * 1000)
    await client.send([release(grant)])
    del client.handlers[pool]
    return found
