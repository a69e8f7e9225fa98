"""Views: topics read whole, without a group and without offsets. Ready once read to the end seen at the start."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from slipway_common.envelope import decode, decode_data
from slipway_common.errors import BadEvent
from slipway_common.partitions import closed, partitions_of, was_cancelled
from slipway_common.postgres import Pool
from slipway_common.records import Received
from slipway_common.telemetry import CONSUMED, logger
from slipway_common.topics import Topic

LOG = logger(__name__)


class View(Protocol):
    """What a service keeps of a topic. `apply` must be idempotent: after any error everything is read again."""

    @property
    def topic(self) -> Topic: ...

    async def apply(self, pool: Pool, records: Sequence[Received]) -> None: ...


def readable(record: Any, topic: Topic) -> Received | None:
    """A Kafka record as an event; None for what a view can only skip. Counted, never raised."""
    try:
        received_at = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        envelope = decode(record.headers, received_at=received_at)
        event = decode_data(envelope.type, record.value)
    except BadEvent as error:
        CONSUMED.labels(topic.name, "skipped").inc()
        LOG.info("view skips a record", topic=topic.name, offset=record.offset, reason=str(error))
        return None
    return Received(
        event=event,
        type=envelope.type,
        id=envelope.id,
        source=envelope.source,
        subject=envelope.subject or (record.key or b"").decode(errors="replace"),
        time=envelope.time,
        number=envelope.number,
        revision=envelope.revision,
        topic=topic.name,
        partition=record.partition,
        offset=record.offset,
        traceparent=envelope.traceparent,
    )


class Reader:
    """Feeds one view for as long as the process lives; starts over from the beginning after an error."""

    def __init__(self, view: View, *, bootstrap_servers: str, prefix: str, ring: Any) -> None:
        self.view = view
        self.bootstrap_servers = bootstrap_servers
        self.name = prefix + view.topic.name
        self.ring = ring
        self.ready = False

    async def run(self, pool: Pool) -> None:
        while True:
            try:
                await self._read(pool)
            except (Exception, asyncio.CancelledError) as error:
                if was_cancelled(error):
                    raise
                LOG.warning("view starts over", topic=self.name, error=repr(error))
            self.ready = False
            await asyncio.sleep(0.5)

    async def _read(self, pool: Pool) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap_servers, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        try:
            await consumer.start()
            partitions = [TopicPartition(self.name, p) for p in await partitions_of(consumer, self.name)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
            while True:
                batches = await consumer.getmany(timeout_ms=200, max_records=1000)
                records = [r for batch in batches.values() for raw in batch if (r := readable(raw, self.view.topic))]
                if records:
                    await self.view.apply(pool, records)
                    self.ring()
                if not self.ready:
                    positions = [await consumer.position(tp) for tp in partitions]
                    self.ready = all(at >= ends[tp] for at, tp in zip(positions, partitions, strict=True))
        finally:
            await closed(consumer.stop)
