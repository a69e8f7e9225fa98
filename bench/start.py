"""`make bench-start`: how long a service takes to be ready in a large deployment, and how much memory it takes more.

Each service starts twice, on empty tables and topics and on those of a large deployment, and is then left alone for a
while. The provisioner has 100,000 workers in its tables and 100,000 weight records in its topic, which its view reads
to the end before it is ready; the weight-calculator reads 6,000 launch configs; the lease-broker has 1,000 pools and
50,000 waiting requests. Times are without those in which the service waited for a processor. Prints seconds until ready
and MB, then the claims; exits with 1 if one is false. WORKERS=100000 RECORDS=100000.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import structlog
from aiokafka import AIOKafkaProducer

from bench import worker_events
from bench.claims import report
from bench.leases.bench import prefill
from bench.loops.fleet import Size, fill
from bench.own_time import waited_seconds
from bench.publish_latency import numbered
from slipway_api.events.topics import TOPIC_OF
from slipway_common.database import migrate, postgres
from slipway_common.messaging import topic_admin
from slipway_common.messaging.envelope import encode
from slipway_common.messaging.relay import partition_for
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Service, Supervisor, http_ready, run
from tests.support.folders import disk_folder
from tests.support.provisioner import KEY, weight

WORKERS, RECORDS = 100_000, 100_000
CONFIGS: Final = 6_000
LEASE_POOLS, WAITING = 1_000, 50_000
PARTITIONS: Final = 4
LEFT_SECONDS: Final = 4.0
"""Time after it is ready in which a service makes the first passes of its loops."""
READY_CLAIM: Final = 10.0
MEMORY_CLAIM: Final = 150.0
MODULES: Final = {
    "provisioner": "slipway_provisioner.main",
    "weight-calculator": "slipway_weight_calculator.main",
    "lease-broker": "slipway_lease_broker.main",
}
POOLS: Final = """
INSERT INTO lease_pools (id, limit_units, hold_seconds, ttl_seconds, reserve_seconds)
SELECT 'pool-' || n, 1, 3600, 3600, 3600 FROM generate_series(0, $1::int - 1) AS n"""


class Start(msgspec.Struct, frozen=True):
    """A start: seconds until the service was ready, and the memory of its process afterwards in MB."""

    seconds: float
    memory_mb: float


async def _publish(bootstrap: str, prefix: str, events: Iterable[Any]) -> None:
    """Append events to their topics, as a relay does."""
    numbers: dict[tuple[str, int], int] = {}
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, max_batch_size=1 << 20)
    await producer.start()
    try:
        sent = []
        for event in events:
            topic = TOPIC_OF[type(event)]
            key = topic.key(event)
            place = (topic.name, partition_for(key, PARTITIONS))
            number = numbers[place] = numbers.get(place, 0) + 1
            envelope = numbered(event, number, f"00-{number:032x}-{number:016x}-01")
            sent.append(
                await producer.send(
                    f"{prefix}{topic.name}",
                    msgspec.json.encode(event),
                    key.encode(),
                    partition=place[1],
                    headers=list(encode(envelope)),
                )
            )
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


async def _filled(server: EmbeddedPostgres, service: str, workers: int) -> str:
    """URL of the database of a service in a large deployment."""
    if service == "provisioner":
        provisioner = await fill(server, Size(workers))
        await provisioner.stop()
        await provisioner.database.close()
        return server.url(f"fleet_{workers}")
    url = await server.create_database(f"filled_{service}")
    await migrate.upgrade(url, service)
    if service == "lease-broker":
        database = await postgres.connect(url, service)
        await database.execute(POOLS, LEASE_POOLS)
        for number in range(LEASE_POOLS):
            await prefill.wait(database, f"pool-{number}", WAITING // LEASE_POOLS)
        await database.close()
    return url


def _records(service: str, number: int) -> Iterable[Any]:
    """Records in the topics that a service reads at its start."""
    if service == "provisioner":
        return (weight(f"pool-{n}/a@{n:06x}", pool_id=f"pool-{n}") for n in range(number))
    return worker_events.launch_configs(CONFIGS) if service == "weight-calculator" else ()


async def _start(
    supervisor: Supervisor, folder: Path, service: str, url: str, kafka: EmbeddedKafka, name: str
) -> Start:
    """Start a service and wait until it is ready; end it afterwards."""
    (port,) = free_ports(1)
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")} | {
        "SLIPWAY_KAFKA": kafka.bootstrap,
        "SLIPWAY_TOPIC_PREFIX": f"{name}.",
        "SLIPWAY_PARTITIONS": str(PARTITIONS),
        "SLIPWAY_DATABASE_URL": url,
        "SLIPWAY_PORT": str(port),
        "SLIPWAY_REGISTRATION_KEYS": KEY,
        "SLIPWAY_SECRETS_IN_ENVIRONMENT": "yes",
        "SLIPWAY_LAUNCHING": "false",
    }
    argv = [sys.executable, "-m", MODULES[service]]
    ready = partial(http_ready, port)
    process = Service(name, argv, env=env, log=folder / f"{name}.log", ready=ready, start_seconds=120.0)
    began = time.monotonic()
    await supervisor.start(process)
    assert process.pid is not None
    seconds = time.monotonic() - began - waited_seconds(process.pid)
    await asyncio.sleep(LEFT_SECONDS)
    memory = psutil.Process(process.pid).memory_info().rss / 1e6
    await supervisor.kill(name)
    return Start(round(seconds, 2), round(memory, 1))


async def measure(supervisor: Supervisor, *, workers: int, records: int) -> int:
    """Start all services on both deployments."""
    found: dict[str, dict[str, Start]] = {}
    with disk_folder("slipway-bench-") as folder:
        kafka, server = EmbeddedKafka(folder / "kafka"), EmbeddedPostgres(folder / "postgres")
        await supervisor.start(kafka, server)
        for service in MODULES:
            for size in ("empty", "large"):
                print(f"{service}, {size} …", flush=True)
                place = f"{service}-{size}"
                await topic_admin.create(kafka.bootstrap, prefix=f"{place}.", partitions=PARTITIONS)
                if size == "empty":
                    url = await server.create_database(f"empty_{service}")
                    await migrate.upgrade(url, service)
                else:
                    url = await _filled(server, service, workers)
                    await _publish(kafka.bootstrap, f"{place}.", _records(service, records))
                started = await _start(supervisor, folder, service, url, kafka, place)
                found.setdefault(service, {})[size] = started
        await supervisor.stop()
    return report(_judged(found))


def _judged(found: Mapping[str, Mapping[str, Start]]) -> dict[str, bool]:
    """Print the starts; the claims with their figures."""
    print(f"\n{'':<20}{'ready, empty':>14}{'large':>10}{'memory, empty':>16}{'large':>10}")
    claims = {}
    for service, sizes in found.items():
        empty, large = sizes["empty"], sizes["large"]
        print(
            f"{service:<20}{empty.seconds:>12g} s{large.seconds:>8g} s{empty.memory_mb:>13g} MB{large.memory_mb:>7g} MB"
        )
        more = large.memory_mb - empty.memory_mb
        claims[f"{service} ready in {large.seconds:g} ≤ {READY_CLAIM:g} s"] = large.seconds <= READY_CLAIM
        claims[f"{service} +{more:.0f} ≤ +{MEMORY_CLAIM:g} MB"] = more <= MEMORY_CLAIM
    return claims


def main() -> int:
    try:
        workers = int(os.environ.get("WORKERS") or WORKERS)
        records = int(os.environ.get("RECORDS") or RECORDS)
    except ValueError as error:
        print(f"WORKERS and RECORDS are numbers: {error}", file=sys.stderr)
        return 2
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return run(partial(measure, workers=workers, records=records))


if __name__ == "__main__":
    sys.exit(main())
