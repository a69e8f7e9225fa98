"""Latency from an event to the event that a service publishes for it, at a modest rate.

An event is appended, a service commits its effect, the relay appends the next event, a reader receives it. The
yardstick runs between the same events: records that are appended and read, without a service. Service, relay, producer
and readers share this process; the Kafka broker and the database have their own.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.spread import Spread, percentile, spread
from slipway_api.events.topics import ALERT, LAUNCH_CONFIG_WEIGHT, WORKER_LIFECYCLE
from slipway_api.events.weight import WeightChanged
from slipway_api.events.worker import Outcome, Result, Stage, WorkerLaunched
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.messaging import kafka, outbox
from slipway_common.messaging.broker import connect
from slipway_common.messaging.consume import Consumer
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Received
from slipway_common.messaging.relay import partition_for
from tests.support.harness import PARTITIONS, SERVICE, Place, until

PER_SECOND: Final = 50
SECONDS: Final = 14
WARM_UP: Final = 200  # events left out: a new broker compiles its code, connections and query plans are new
PLAIN: Final = "plain"  # prefix of the keys of the yardstick's records


class HopLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from before an event is handed to a producer, without the first WARM_UP events.

    `committed`: until state, position and next event are committed; `next`: until a reader has the next event;
    `plain`: until a reader has a record that passed through the broker alone. `ratio`: median `next` over median
    `plain`.
    """

    per_second: int
    events: int
    committed_p50: float
    next: Spread
    next_p50: float
    next_p99: float
    plain_p50: float
    plain_p99: float
    ratio: float


class Watch:
    """Times at which each event was sent, committed and seen, by worker ID."""

    def __init__(self) -> None:
        self.sent: dict[str, float] = {}
        self.committed: dict[str, float] = {}
        self.seen: dict[str, float] = {}
        self.handled: list[str] = []

    def commit(self) -> None:
        """Record all handled events as committed now."""
        self.committed.update(dict.fromkeys(self.handled, time.perf_counter()))
        self.handled.clear()

    def milliseconds(self, until_: dict[str, float], names: Sequence[str]) -> list[float]:
        return [(until_[name] - self.sent[name]) * 1000 for name in names]


class Hop:
    """A service and readers in a place, by which hops are measured."""

    def __init__(self, place: Place, producer: AIOKafkaProducer, watch: Watch) -> None:
        self._place = place
        self._producer = producer
        self._watch = watch
        self._sent = 0
        self._numbers: Counter[int] = Counter()

    async def measure(
        self, *, per_second: int = PER_SECOND, seconds: float = SECONDS, warm_up: int = WARM_UP
    ) -> HopLatency:
        """Measure at a rate, events without the first `warm_up` ones."""
        first, total = self._sent, round(per_second * seconds)
        self._sent += total
        await self._send(range(first, first + total), per_second)
        await until(lambda: len(self._watch.seen) == 2 * self._sent, f"all {2 * total} events are seen")
        measured = range(first + warm_up, first + total)
        names, plain_names = [f"w{n}" for n in measured], [f"{PLAIN}{n}" for n in measured]
        watch = self._watch
        following = watch.milliseconds(watch.seen, names)
        plain = watch.milliseconds(watch.seen, plain_names)
        return HopLatency(
            per_second=per_second,
            events=len(names),
            committed_p50=percentile(watch.milliseconds(watch.committed, names), 50),
            next=spread(following),
            next_p50=percentile(following, 50),
            next_p99=percentile(following, 99),
            plain_p50=percentile(plain, 50),
            plain_p99=percentile(plain, 99),
            ratio=round(percentile(following, 50) / percentile(plain, 50), 2),
        )

    async def _send(self, numbers: range, per_second: int) -> None:
        """Send events at a fixed rate regardless of replies, and one plain record halfway between each two."""
        began = time.perf_counter() + 0.5
        for n in numbers:
            for name, delay in ((f"w{n}", 0.0), (f"{PLAIN}{n}", 0.5)):
                at = began + (n - numbers.start + delay) / per_second
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                event = launched(name)
                partition = partition_for(name, PARTITIONS)
                topic = self._place.prefix + (ALERT.name if delay else WORKER_LIFECYCLE.name)
                self._numbers[partition] += not delay
                headers = encode(
                    Envelope(
                        id=new_id(),
                        type=event.type,
                        source="/slipway/bench",
                        subject=name,
                        time=utc_now(),
                        sequence_number=self._numbers[partition],
                        previous=self._numbers[partition] - 1,
                        revision=1,
                    )
                )
                self._watch.sent[name] = time.perf_counter()
                await self._producer.send(
                    topic, msgspec.json.encode(event), key=name.encode(), partition=partition, headers=headers
                )


@contextlib.asynccontextmanager
async def running(place: Place) -> AsyncIterator[Hop]:
    """Start what hops pass through, in a place without topics. It may be measured several times: to start it anew would
    burden what it is measured beside."""
    await place.create(WORKER_LIFECYCLE, LAUNCH_CONFIG_WEIGHT, ALERT)
    await place.database.execute("CREATE TABLE hop (name text PRIMARY KEY, at timestamptz NOT NULL)")
    watch = Watch()
    relay = place.relay(WORKER_LIFECYCLE, LAUNCH_CONFIG_WEIGHT, ALERT)

    async def handle(tx: Connection, events: Sequence[Received]) -> None:
        names = [received.event.worker_id for received in events]
        await tx.execute("INSERT INTO hop SELECT unnest($1::text[]), slipway_clock()", names)
        await outbox.enqueue(tx, [weight(name) for name in names])
        watch.handled += names

    def wake() -> None:
        watch.commit()
        relay.wake(place.database)

    broker = connect(place.kafka.bootstrap, SERVICE)
    subscription = kafka.Subscription(
        broker,
        place.database,
        Consumer(SERVICE, WORKER_LIFECYCLE, handle),
        prefix=place.prefix,
        instance="",
        wake=wake,
    )
    await broker.start()
    producer = AIOKafkaProducer(bootstrap_servers=place.kafka.bootstrap, enable_idempotence=True, acks="all")
    await producer.start()
    tasks = [asyncio.create_task(relay.run())]
    try:
        await until(lambda: len(subscription.owned) == PARTITIONS and relay.leading, "the service runs")
        for topic in (place.prefix + LAUNCH_CONFIG_WEIGHT.name, place.prefix + ALERT.name):
            tasks.append(asyncio.create_task(_see(place, topic, watch)))
        yield Hop(place, producer, watch)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await producer.stop()
        await subscription.stop()
        await broker.stop()


async def measure(place: Place) -> HopLatency:
    """Measure in a place without topics."""
    async with running(place) as hop:
        return await hop.measure()


async def _see(place: Place, topic: str, watch: Watch) -> None:
    """Record the time at which each key of a topic is read."""
    reader = AIOKafkaConsumer(bootstrap_servers=place.kafka.bootstrap)
    await reader.start()
    try:
        partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        reader.assign(partitions)
        await reader.seek_to_beginning(*partitions)
        async for record in reader:
            watch.seen[record.key.decode()] = time.perf_counter()
    finally:
        await reader.stop()


def launched(worker_id: str) -> WorkerLaunched:
    return WorkerLaunched(
        worker_id=worker_id,
        pool_id="linux",
        launch_config_id="linux-zone-a",
        account_id="sim-a",
        image_revision="linux-1",
        instance_id=f"i-{worker_id}",
        batch_id=new_id(),
        outcome=Outcome(Stage.LAUNCH, Result.OK),
    )


def weight(name: str) -> WeightChanged:
    return WeightChanged(
        launch_config_id=name,
        name=name,
        pool_id="linux",
        config_revision=1,
        weight=1.0,
        health=1.0,
        stages={},
        state="healthy",
        reason=f"{name} healthy",
    )
