"""Views: topics read in full, without a consumer group or stored offsets.

A view is ready once it has been read up to the end offsets seen at start-up.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from slipway_common.base.errors import BadEvent
from slipway_common.database.postgres import Database
from slipway_common.events.topics import Topic
from slipway_common.messaging.envelope import decode, decode_data
from slipway_common.messaging.partitions import closed, partitions_of, was_cancelled
from slipway_common.messaging.records import Received
from slipway_common.observability.telemetry import CONSUMED, logger

LOG = logger(__name__)


class View(Protocol):
    """State that a service derives from a topic. `apply` must be idempotent: after any error, all is read again."""

    @property
    def topic(self) -> Topic: ...

    async def apply(self, database: Database, records: Sequence[Received]) -> None: ...


def readable(record: Any, topic: Topic) -> Received | None:
    """Decode a Kafka record; None if it is malformed, which is counted and logged but never raised."""
    try:
        received_at = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        envelope = decode(record.headers, received_at=received_at)
        event = decode_data(envelope.type, record.value)
    except BadEvent as error:
        CONSUMED.labels(topic.name, "skipped").inc()
        LOG.info("malformed record skipped by view", topic=topic.name, offset=record.offset, reason=str(error))
        return None
    return Received(
        event=event,
        type=envelope.type,
        id=envelope.id,
        source=envelope.source,
        subject=envelope.subject or (record.key or b"").decode(errors="replace"),
        time=envelope.time,
        sequence_number=envelope.sequence_number,
        revision=envelope.revision,
        topic=topic.name,
        partition=record.partition,
        offset=record.offset,
        traceparent=envelope.traceparent,
    )


class Reader:
    """Reads the topic of one view for the lifetime of the process; restarts from the beginning after an error."""

    def __init__(self, view: View, *, bootstrap_servers: str, prefix: str, wake: Any) -> None:
        self.view = view
        self.bootstrap_servers = bootstrap_servers
        self.name = prefix + view.topic.name
        self.wake = wake
        self.ready = False

    async def run(self, database: Database) -> None:
        while True:
            try:
                await self._read(database)
            except (Exception, asyncio.CancelledError) as error:
                if was_cancelled(error):
                    raise
                LOG.warning("view restarting after an error", topic=self.name, error=repr(error))
            self.ready = False
            await asyncio.sleep(0.5)

    async def _read(self, database: Database) -> None:
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
                    await self.view.apply(database, records)
                    self.wake()
                if not self.ready:
                    positions = [await consumer.position(tp) for tp in partitions]
                    self.ready = all(at >= ends[tp] for at, tp in zip(positions, partitions, strict=True))
        finally:
            await closed(consumer.stop)
