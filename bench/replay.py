"""Throughput of a backlog through the services' consumer into rows; the yardstick only reads the same topic."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.hop_latency import launched
from bench.spread import Spread, spread
from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Received
from slipway_common.messaging.relay import partition_for
from tests.support.harness import PARTITIONS, Place, join, until

EVENTS: Final = 50_000
WORKERS: Final = 5_000
ROUNDS: Final = 3
UPSERT: Final = """
INSERT INTO tally AS t (worker_id, events) SELECT * FROM unnest($1::text[], $2::bigint[]) AS g ORDER BY 1
ON CONFLICT (worker_id) DO UPDATE SET events = t.events + excluded.events"""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Events per second: `applied` by the consumer, `read` by a plain client; until the last commit or read."""

    events: int
    applied_per_second: Spread
    read_per_second: Spread
    ratio: float


async def measure(place: Place) -> Replay:
    """Measure in a place without topics."""
    await place.create(WORKER_LIFECYCLE)
    await place.database.execute("CREATE TABLE tally (worker_id text PRIMARY KEY, events bigint NOT NULL)")
    await _fill(place)
    applied, read = [], []
    for _ in range(ROUNDS):
        read.append(EVENTS / await _read(place))
        applied.append(EVENTS / await _apply(place))
    return Replay(
        events=EVENTS,
        applied_per_second=spread(applied),
        read_per_second=spread(read),
        ratio=round(spread(applied).median / spread(read).median, 3),
    )


async def _fill(place: Place) -> None:
    """Append all events in full batches, with sequence numbers as the relay assigns them."""
    producer = AIOKafkaProducer(bootstrap_servers=place.kafka.bootstrap, enable_idempotence=True, acks="all")
    await producer.start()
    try:
        topic, now = place.prefix + WORKER_LIFECYCLE.name, utc_now()
        numbers: Counter[int] = Counter()
        batches = {partition: producer.create_batch() for partition in range(PARTITIONS)}
        sent = []
        for n in range(EVENTS):
            event = launched(f"w{n % WORKERS}")
            partition = partition_for(event.worker_id, PARTITIONS)
            numbers[partition] += 1
            envelope = Envelope(
                id=new_id(),
                type=event.type,
                source="/slipway/bench",
                subject=event.worker_id,
                time=now,
                sequence_number=numbers[partition],
                previous=numbers[partition] - 1,
                sequence_source="/slipway/bench/1",
                revision=n // WORKERS + 1,
                traceparent=f"00-{n:032x}-{n:016x}-01",
            )
            record = {
                "key": event.worker_id.encode(),
                "value": msgspec.json.encode(event),
                "timestamp": None,
                "headers": encode(envelope),
            }
            if batches[partition].append(**record) is None:
                sent.append(await producer.send_batch(batches[partition], topic, partition=partition))
                batches[partition] = producer.create_batch()
                batches[partition].append(**record)
        for partition, batch in batches.items():
            sent.append(await producer.send_batch(batch, topic, partition=partition))
        for future in sent:
            await future
    finally:
        await producer.stop()


async def _read(place: Place) -> float:
    """Seconds that a plain client takes, reading batches of the same size."""
    reader = AIOKafkaConsumer(bootstrap_servers=place.kafka.bootstrap, enable_auto_commit=False)
    await reader.start()
    try:
        partitions = [TopicPartition(place.prefix + WORKER_LIFECYCLE.name, p) for p in range(PARTITIONS)]
        reader.assign(partitions)
        await reader.seek_to_beginning(*partitions)
        began, left = time.perf_counter(), EVENTS
        while left > 0:
            left -= sum(map(len, (await reader.getmany(timeout_ms=200, max_records=500)).values()))
        return time.perf_counter() - began
    finally:
        await reader.stop()


async def _apply(place: Place) -> float:
    """Seconds that a service takes from the beginning; asserts that each event took effect exactly once."""
    await place.database.execute("TRUNCATE tally, consumed, seen_sequence")
    member = await join(place, tally)
    subscription = member.subscription
    try:
        await until(lambda: subscription.owned, "a partition is owned")
        began = time.perf_counter()
        await until(
            lambda: sum(owned.next_offset for owned in subscription.owned.values()) == EVENTS,
            "all is applied",
            seconds=60,
        )
        seconds = time.perf_counter() - began
    finally:
        await member.stop()
    counted = await place.database.fetchrow("SELECT count(*), min(events), max(events) FROM tally")
    assert tuple(counted) == (WORKERS, EVENTS // WORKERS, EVENTS // WORKERS), counted
    return seconds


async def tally(tx: Connection, events: Sequence[Received]) -> None:
    """Count a batch with one statement, as the services' handlers do."""
    counts = Counter(received.event.worker_id for received in events)
    await tx.execute(UPSERT, list(counts), list(counts.values()))
