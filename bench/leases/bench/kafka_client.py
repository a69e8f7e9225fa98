"""Kafka client of the lease benchmark: sends lease commands in batches as a relay does, and handles lease events."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.leases.bench.system import PARTITIONS, PREFIX, partition_of
from slipway_api.events.lease import (
    LeaseExpired,
    LeaseGranted,
    LeaseLost,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRequested,
)
from slipway_api.events.topics import DECODERS, LEASE_REQUEST, TOPIC_OF
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.observability.telemetry import child_of

SOURCE: Final = "/slipway/bench"
READ: Final = {kind.type: DECODERS[kind.type].decode for kind in (LeaseGranted, LeaseReleased, LeaseExpired, LeaseLost)}
ANSWERS: Final = TOPIC_OF[LeaseGranted].name

Handler = Callable[[Any], None]


class KafkaClient:
    """Producer and consumer; `handlers` maps a lease pool to the function called with each of its lease events."""

    def __init__(self, producer: AIOKafkaProducer, consumer: AIOKafkaConsumer) -> None:
        self.producer = producer
        self.consumer = consumer
        self.handlers: dict[str, Handler] = {}
        self.plain: asyncio.Queue[bytes] = asyncio.Queue()  # records of the yardstick
        self._numbers: Counter[int] = Counter()
        self._locks = [asyncio.Lock() for _ in range(PARTITIONS)]

    async def send(self, commands: Sequence[Any]) -> None:
        """Send commands of one lease pool as one batch, acknowledged by all replicas."""
        partition = partition_of(commands[0].lease_pool_id)
        now, trace = utc_now(), child_of("")
        async with self._locks[partition]:  # sequence numbers follow the order of the records
            batch = self.producer.create_batch()
            for command in commands:
                number = self._numbers[partition] + 1
                envelope = Envelope(
                    id=new_id(),
                    type=command.type,
                    source=SOURCE,
                    subject=LEASE_REQUEST.subject(command),
                    time=now,
                    sequence_number=number,
                    previous=number - 1,
                    sequence_source=f"{SOURCE}/1",
                    revision=1,
                    traceparent=trace,
                )
                added = batch.append(
                    key=LEASE_REQUEST.key(command).encode(),
                    value=msgspec.json.encode(command),
                    timestamp=None,
                    headers=encode(envelope),
                )
                if added is None:
                    raise RuntimeError(f"{len(commands)} commands exceed the maximum size of a batch")
                self._numbers[partition] = number
            future = await self.producer.send_batch(batch, PREFIX + LEASE_REQUEST.name, partition=partition)
        await future

    async def append(self, value: bytes) -> None:
        """Append a record without an event to the topic of lease events; `plain` receives it once it is read."""
        await self.producer.send_and_wait(PREFIX + ANSWERS, value, partition=0)

    async def read(self) -> None:
        """Call the handlers until cancelled."""
        while True:  # in batches, as a subscriber does
            found = await self.consumer.getmany(timeout_ms=1_000)
            for record in chain.from_iterable(found.values()):
                type_ = next((value for name, value in record.headers if name == "ce_type"), b"").decode()
                if not type_:
                    self.plain.put_nowait(record.value)
                if (read := READ.get(type_)) is not None:
                    event = read(record.value)
                    if (handler := self.handlers.get(event.lease_pool_id)) is not None:
                        handler(event)


@contextlib.asynccontextmanager
async def connect(bootstrap: str) -> AsyncIterator[KafkaClient]:
    """A client that reads lease events from now on."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, acks="all", max_batch_size=900_000
    )
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=100)
    await producer.start()
    await consumer.start()
    partitions = [TopicPartition(PREFIX + ANSWERS, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    await consumer.seek_to_end(*partitions)
    client = KafkaClient(producer, consumer)
    reading = asyncio.create_task(client.read())
    try:
        yield client
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await consumer.stop()
        await producer.stop()


def request(pool: str, request_id: str) -> LeaseRequested:
    return LeaseRequested(lease_pool_id=pool, request_id=request_id, units=1, tenant="bench")


def release(grant: LeaseGranted) -> LeaseReleaseRequested:
    return LeaseReleaseRequested(
        lease_pool_id=grant.lease_pool_id,
        lease_id=grant.lease_id,
        fencing_token=grant.fencing_token,
        units=grant.units,
        result="done",
    )
