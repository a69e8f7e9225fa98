"""A lease-broker of a benchmark in turns: 7,500 leases are held and 71,000 requests wait."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from bench.leases.bench import handover, prefill
from bench.leases.bench.kafka_client import KafkaClient, connect
from bench.leases.bench.pairs import KafkaPool, Work, measured, over_http
from bench.leases.bench.system import System
from bench.sides import Figure, Measure
from bench.spread import percentile
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor
from tests.support.folders import disk_folder
from tests.support.harness import until

CLIENTS: Final = 32
LANES: Final = 4  # lease pools of one unit whose handovers are measured at the same time
HELD: Final = 7_500
# More than are granted at once, so that each request of each pool waits and is announced once.
WAITING: Final = (1_000, 20_000, 50_000)
FREE: Final = 400  # units in addition to those that are held
WORKING: Final = 100  # units of the pools with waiters
DUE: Final = "SELECT count(*) FROM lease_pools WHERE dirty"
DECIDED_SECONDS: Final = 180.0
FIGURES: Final = (
    "HTTP, 32 clients",
    "Kafka, 32 clients",
    "Kafka, 7,500 held",
    "Kafka, 20,000 waiting",
    "HTTP handover",
    "Kafka handover",
)


async def fill(system: System) -> None:
    """Have leases held and requests waiting, and those granted that find a unit: their clients read these grants."""
    await system.declare(
        {"http": 1_000, "kafka": 10_000, "held": HELD + FREE}
        | {f"waiting-{number}": WORKING for number in WAITING}
        | {f"{way}-handover-{lane}": 1 for way in ("http", "kafka") for lane in range(LANES)}
    )
    await prefill.hold(system.database, "held", HELD)
    for number in WAITING:
        await prefill.wait(system.database, f"waiting-{number}", number + WORKING)
    await system.database.execute(prefill.ANALYZE)

    async def decided() -> bool:
        return not await system.database.fetchval(DUE)

    await until(decided, "all lease pools are decided", seconds=DECIDED_SECONDS)


def figures(system: System, client: KafkaClient, seconds: float) -> list[Callable[[], Awaitable[Figure]]]:
    """Measurements of FIGURES, in their order."""
    kafka, held, waiting = (KafkaPool(client, pool) for pool in ("kafka", "held", f"waiting-{WAITING[1]}"))

    async def pairs(clients: int, work: Callable[[], Work], share: float = 0.1) -> Figure:
        await asyncio.to_thread(os.sync)  # commits wait while the system writes what earlier loads have left
        rate, _ = await measured(system, seconds * share, [work() for _ in range(clients)])
        return Figure(rate)

    async def handovers(lane: Callable[[str, float], Awaitable[list[float]]], way: str) -> Figure:
        lanes = await asyncio.gather(*(lane(f"{way}-handover-{number}", seconds / 5) for number in range(LANES)))
        found = [one for milliseconds in lanes for one in milliseconds[handover.WARM_UP :]]
        return Figure(percentile(found, 50), percentile(found, 99))

    return [
        partial(pairs, CLIENTS, partial(over_http, system, "http")),
        # Grants come in lumps of all requests of many clients: 2 s count few of these, or none.
        partial(pairs, CLIENTS, kafka.client, 0.3),
        partial(pairs, 2, held.client),
        partial(pairs, 1, waiting.refill, 0.2),
        partial(handovers, partial(handover.over_http, system), "http"),
        partial(handovers, partial(handover.over_kafka, client), "kafka"),
    ]


@asynccontextmanager
async def of_a_broker(supervisor: Supervisor, seconds: float) -> AsyncIterator[Measure]:
    """Pairs per second, or milliseconds of handovers, of a lease-broker that has been filled."""
    with disk_folder("slipway-bench-") as folder:
        kafka, server = EmbeddedKafka(folder / "kafka"), EmbeddedPostgres(folder / "postgres")
        await supervisor.start(kafka, server)
        system = System(supervisor, folder, kafka, server)
        await system.start()
        gc.collect()
        gc.freeze()  # a full garbage collection in this process would look like a slow broker
        async with connect(kafka.bootstrap) as client:
            measurements = dict(zip(FIGURES, figures(system, client, seconds), strict=True))
            await fill(system)
            yield lambda name: measurements[name]()
        await system.database.close()
        await supervisor.stop()
