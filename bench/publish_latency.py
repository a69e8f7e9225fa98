"""Latency from an outcome to the first published weight that counts it, with a weight-calculator in its own process.

Outcomes are appended at a steady rate and the published weights are read. The yardstick runs between the same outcomes:
records that are appended and read, without a service. Times run from before a record is handed to a producer until a
reader has it, so that both clients are included, which a broker's timestamps would leave out.
"""

import asyncio
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench import worker_events
from bench.spread import Spread, percentile, spread
from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import LAUNCH_CONFIG_WEIGHT, POOL_DEMAND, TOPIC_OF, WORKER_LIFECYCLE
from slipway_api.events.weight import WeightChanged
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerEvent, WorkerLaunched, WorkerLaunchFailed
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.database import migrate
from slipway_common.messaging import topic_admin
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.relay import partition_for
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Service, Supervisor, http_ready
from tests.support.harness import until

SERVICE: Final = "weight-calculator"
PREFIX: Final = "bench."
PARTITIONS: Final = 4
CONFIGS: Final = 200
PER_SECOND: Final = 200
WARM_UP_SECONDS: Final = 2.0  # left out: a new broker compiles its code, connections and query plans are new


class PublishLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from an outcome that must be published to the first weight record that counts it.

    `plain`: from a record to its own arrival, without a service. `ratio`: median latency over median `plain`.
    """

    per_second: int
    events: int
    latency: Spread
    p50: float
    p99: float
    plain_p50: float
    plain_p99: float
    ratio: float


class Sent(msgspec.Struct, frozen=True):
    """A record handed to the producer `at` this process's clock; `appended` resolves to its place in the topic."""

    at: float
    key: str
    appended: Any


async def measure(
    supervisor: Supervisor, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, folder: Path, seconds: float
) -> PublishLatency:
    """Measure for `seconds`. Half of the outcomes are failures of scope nothing, each of which is published at once."""
    await topic_admin.create(kafka.bootstrap, prefix=PREFIX, partitions=PARTITIONS)
    url = await postgres.create_database("publish_latency")
    await migrate.upgrade(url, SERVICE)
    await supervisor.start(_calculator(kafka.bootstrap, url, folder))
    configs, chance = worker_events.launch_configs(CONFIGS), Random(worker_events.SEED)
    seen: dict[str, list[tuple[float, WeightChanged]]] = defaultdict(list)
    plain: dict[str, float] = {}

    def see_weight(record: Any) -> None:
        weight = msgspec.json.decode(record.value, type=WeightChanged)
        seen[weight.launch_config_id].append((time.perf_counter(), weight))

    def see_plain(record: Any) -> None:
        plain[record.key.decode()] = time.perf_counter()

    async with (
        _producer(kafka.bootstrap) as send,
        _reading(kafka.bootstrap, LAUNCH_CONFIG_WEIGHT.name, see_weight),
        _reading(kafka.bootstrap, POOL_DEMAND.name, see_plain),
    ):
        for config in configs:
            await send(config)
        await until(lambda: len(seen) == CONFIGS, "every config has a published weight")
        failures, plains = [], []
        began = time.perf_counter() + 0.5
        for n in range(int(PER_SECOND * (seconds + WARM_UP_SECONDS))):
            due = began + n / PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            config = chance.choice(configs)
            failed = chance.random() < 0.5
            sent = await send(outcome(config.launch_config_id, f"w{n}", failed=failed))
            if due - began >= WARM_UP_SECONDS and failed:
                failures.append((config.launch_config_id, sent))
            if not n % 2:
                plains.append(await send(report(f"p{n}")))
        appended = [(config_id, sent, await sent.appended) for config_id, sent in failures]
        await until(
            lambda: all(_counted_at(seen[config_id], record) for config_id, _, record in appended),
            "every failure is counted in a published weight",
        )
        await until(lambda: len(plain) == len(plains), "all plain records are read")
    latencies = [(_counted_at(seen[config_id], record) - sent.at) * 1000 for config_id, sent, record in appended]
    others = [(plain[sent.key] - sent.at) * 1000 for sent in plains if sent.at - began >= WARM_UP_SECONDS]
    return PublishLatency(
        per_second=PER_SECOND,
        events=len(latencies),
        latency=spread(latencies),
        p50=percentile(latencies, 50),
        p99=percentile(latencies, 99),
        plain_p50=percentile(others, 50),
        plain_p99=percentile(others, 99),
        ratio=round(percentile(latencies, 50) / percentile(others, 50), 2),
    )


def _counted_at(weights: Sequence[tuple[float, WeightChanged]], record: Any) -> float:
    """Time at which the first weight that counts this record was read; 0 if there is none yet."""
    place = f"{WORKER_LIFECYCLE.name}/{record.partition}"
    return next((at for at, weight in weights if weight.offsets.get(place, 0) > record.offset), 0.0)


def _calculator(kafka: str, url: str, folder: Path) -> Service:
    """A weight-calculator process with default settings."""
    (port,) = free_ports(1)
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")} | {
        "SLIPWAY_KAFKA": kafka,
        "SLIPWAY_TOPIC_PREFIX": PREFIX,
        "SLIPWAY_PARTITIONS": str(PARTITIONS),
        "SLIPWAY_DATABASE_URL": url,
        "SLIPWAY_PORT": str(port),
    }
    argv = [sys.executable, "-m", "slipway_weight_calculator.main"]
    return Service(
        SERVICE, argv, env=env, log=folder / f"{SERVICE}.log", ready=partial(http_ready, port), start_seconds=60.0
    )


def numbered(event: Any, number: int, traceparent: str = "") -> Envelope:
    """Envelope of an event with the sequence number that a relay would assign."""
    return Envelope(
        id=new_id(),
        type=event.type,
        source="/slipway/bench",
        subject=TOPIC_OF[type(event)].subject(event),
        time=utc_now(),
        sequence_number=number,
        previous=number - 1,
        sequence_source="/slipway/bench/1",
        revision=1,
        traceparent=traceparent,
    )


@asynccontextmanager
async def _producer(bootstrap: str) -> AsyncIterator[Any]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all")
    numbers: Counter[tuple[str, int]] = Counter()

    async def send(event: Any) -> Sent:
        """Hand an event to the producer, with a sequence number as the relay assigns it."""
        topic = TOPIC_OF[type(event)]
        key = topic.key(event)
        partition = partition_for(key, PARTITIONS)
        numbers[topic.name, partition] += 1
        number = numbers[topic.name, partition]
        envelope = numbered(event, number)
        at = time.perf_counter()
        appended = await producer.send(
            PREFIX + topic.name,
            msgspec.json.encode(event),
            key=key.encode(),
            partition=partition,
            headers=encode(envelope),
        )
        return Sent(at, key, appended)

    await producer.start()
    try:
        yield send
    finally:
        await producer.stop()


@asynccontextmanager
async def _reading(bootstrap: str, topic: str, see: Any) -> AsyncIterator[None]:
    """Call `see` with each record of a topic as soon as it is read."""
    reader = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await reader.start()
    partitions = [TopicPartition(PREFIX + topic, p) for p in range(PARTITIONS)]
    reader.assign(partitions)
    await reader.seek_to_beginning(*partitions)

    async def read() -> None:
        async for record in reader:
            see(record)

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await reader.stop()


def outcome(config_id: str, worker_id: str, *, failed: bool) -> WorkerEvent:
    ids: dict[str, Any] = {
        "worker_id": worker_id,
        "pool_id": "pool",
        "launch_config_id": config_id,
        "account_id": "account",
        "image_revision": "image",
    }
    if failed:
        outcome = Outcome(Stage.LAUNCH, Result.FAILED, Scope.NOTHING, code="Throttled")
        return WorkerLaunchFailed(batch_id="batch", outcome=outcome, **ids)
    return WorkerLaunched(
        instance_id=f"i-{worker_id}", batch_id="batch", outcome=Outcome(Stage.LAUNCH, Result.OK), **ids
    )


def report(name: str) -> DemandReported:
    return DemandReported(pool_id=name, source="", pending=0, claimed=0, observed_at=utc_now())
