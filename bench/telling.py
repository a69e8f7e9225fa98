"""How soon a calculator of its own process tells what an outcome has changed: outcomes are appended at a steady rate,
and its records read. The yardstick, in between the same outcomes: appended and read, with nobody between.

Times run from before a record is handed to a producer until a reader has it, so both ends are included that a
broker's own times would leave out.
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

from bench import lives
from bench.spread import Spread, percentile, spread
from slipway_common import migrate, topic_admin
from slipway_common.clock import utc_now
from slipway_common.envelope import Envelope, encode
from slipway_common.events.pool import DemandReported
from slipway_common.events.weight import WeightChanged
from slipway_common.events.worker import Outcome, Result, Scope, Stage, WorkerEvent, WorkerLaunched, WorkerLaunchFailed
from slipway_common.ids import new_id
from slipway_common.relay import partition_for
from slipway_common.topics import LAUNCH_CONFIG_WEIGHT, POOL_DEMAND, TOPIC_OF, WORKER_LIFECYCLE
from slipway_local.kafka import EmbeddedKafka
from slipway_local.ports import free_ports
from slipway_local.postgres import EmbeddedPostgres
from slipway_local.supervisor import Service, Supervisor, http_ready
from tests.harness import until

SERVICE: Final = "weight-calculator"
PREFIX: Final = "bench."
PARTITIONS: Final = 4
CONFIGS: Final = 200
PER_SECOND: Final = 200
WARM_UP_SECONDS: Final = 2.0  # left out: a fresh broker compiles its code, connections and plans are new


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from an outcome that has to be told to the first record that counts it; `plain`: from a record to
    itself. `ratio` is of their medians."""

    per_second: int
    events: int
    told: Spread
    told_p50: float
    told_p99: float
    plain_p50: float
    plain_p99: float
    ratio: float


class Sent(msgspec.Struct, frozen=True):
    """`at` by this process's clock. `appended` becomes where the broker has put it."""

    at: float
    key: str
    appended: Any


async def measure(
    supervisor: Supervisor, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, folder: Path, seconds: float
) -> Telling:
    """Half of the outcomes are failures that speak of nothing: they move no weight, and each has to be told at once."""
    await topic_admin.create(kafka.bootstrap, prefix=PREFIX, partitions=PARTITIONS)
    url = await postgres.create_database("telling")
    await migrate.upgrade(url, SERVICE)
    await supervisor.start(_calculator(kafka.bootstrap, url, folder))
    configs, chance = lives.declared(CONFIGS), Random(lives.SEED)
    seen: dict[str, list[tuple[float, WeightChanged]]] = defaultdict(list)
    plain: dict[str, float] = {}

    def see_weight(record: Any) -> None:
        told = msgspec.json.decode(record.value, type=WeightChanged)
        seen[told.launch_config_id].append((time.perf_counter(), told))

    def see_plain(record: Any) -> None:
        plain[record.key.decode()] = time.perf_counter()

    async with (
        _producer(kafka.bootstrap) as send,
        _reading(kafka.bootstrap, LAUNCH_CONFIG_WEIGHT.name, see_weight),
        _reading(kafka.bootstrap, POOL_DEMAND.name, see_plain),
    ):
        for config in configs:
            await send(config)
        await until(lambda: len(seen) == CONFIGS, "every config is told of")
        failures, plains = [], []
        began = time.perf_counter() + 0.5
        for n in range(int(PER_SECOND * (seconds + WARM_UP_SECONDS))):
            due = began + n / PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            config = chance.choice(configs)
            failed = chance.random() < 0.5
            sent = await send(_outcome(config.launch_config_id, f"w{n}", failed=failed))
            if due - began >= WARM_UP_SECONDS and failed:
                failures.append((config.launch_config_id, sent))
            if not n % 2:
                plains.append(await send(_report(f"p{n}")))
        appended = [(config_id, sent, await sent.appended) for config_id, sent in failures]
        await until(lambda: all(_told_at(seen[config_id], record) for config_id, _, record in appended), "all is told")
        await until(lambda: len(plain) == len(plains), "all plain records are read")
    told = [(_told_at(seen[config_id], record) - sent.at) * 1000 for config_id, sent, record in appended]
    others = [(plain[sent.key] - sent.at) * 1000 for sent in plains if sent.at - began >= WARM_UP_SECONDS]
    return Telling(
        per_second=PER_SECOND,
        events=len(told),
        told=spread(told),
        told_p50=percentile(told, 50),
        told_p99=percentile(told, 99),
        plain_p50=percentile(others, 50),
        plain_p99=percentile(others, 99),
        ratio=round(percentile(told, 50) / percentile(others, 50), 2),
    )


def _told_at(told: Sequence[tuple[float, WeightChanged]], record: Any) -> float:
    """When the first record was seen that has counted what stands there; 0: not yet."""
    place = f"{WORKER_LIFECYCLE.name}/{record.partition}"
    return next((at for at, weight in told if weight.offsets.get(place, 0) > record.offset), 0.0)


def _calculator(kafka: str, url: str, folder: Path) -> Service:
    """As it is deployed, with everything at its default."""
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


@asynccontextmanager
async def _producer(bootstrap: str) -> AsyncIterator[Any]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all")
    numbers: Counter[tuple[str, int]] = Counter()

    async def send(event: Any) -> Sent:
        """Hand it over, numbered as the relay numbers."""
        topic = TOPIC_OF[type(event)]
        key = topic.key(event)
        partition = partition_for(key, PARTITIONS)
        numbers[topic.name, partition] += 1
        number = numbers[topic.name, partition]
        envelope = Envelope(
            id=new_id(),
            type=event.type,
            source="/slipway/bench",
            subject=topic.subject(event),
            time=utc_now(),
            number=number,
            previous=number - 1,
            number_source="/slipway/bench/1",
            revision=1,
        )
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
    """Every record of a topic, as soon as it can be read."""
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


def _outcome(config_id: str, worker_id: str, *, failed: bool) -> WorkerEvent:
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


def _report(name: str) -> DemandReported:
    return DemandReported(pool_id=name, source="", pending=0, claimed=0, observed_at=utc_now())
