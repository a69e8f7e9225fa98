"""Views: topics read in full, without a consumer group or stored offsets.

A view is ready once it has been read up to the end offsets seen at start-up. A record that cannot be decoded or applied
is dead-lettered and passed, as by other consumers. As long as the topic has it, the view meets it again at each start.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from slipway_api.events.topics import Topic
from slipway_common.database import outage
from slipway_common.database.postgres import Database, is_infrastructure
from slipway_common.messaging import dead_records
from slipway_common.messaging.clients import Kafka, client_options
from slipway_common.messaging.dead_records import DeadRecord, reason_of
from slipway_common.messaging.envelope import UnknownType
from slipway_common.messaging.partitions import closed, partitions_of, record_of, was_cancelled
from slipway_common.messaging.records import Received, Record, is_bare_null, read, text_of
from slipway_common.observability.telemetry import CONSUMED, logger

LOG = logger(__name__)
RECORDS_MAX: Final = 4_000
"""Records that share a transaction at most: at a start a view reads its whole topic."""
SHARED_SECONDS: Final = 0.05
"""Pause after records that a view which has caught up has taken, so that those that come meanwhile share the next
transaction: nothing waits for one of them."""


class View(Protocol):
    """State that a service derives from a topic. `apply` must be idempotent: after any error, all is read again."""

    @property
    def topic(self) -> Topic: ...

    async def apply(self, database: Database, records: Sequence[Received]) -> None: ...


class Reader:
    """Reads the topic of one view for the lifetime of the process; restarts from the beginning after an error."""

    def __init__(self, view: View, service: str, *, kafka: Kafka, prefix: str, wake: Any) -> None:
        self.view = view
        self.service = service
        self.kafka = kafka
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
                outage.warn(LOG, "view restarting after an error", error, topic=self.name)
            self.ready = False
            await asyncio.sleep(0.5)

    async def _read(self, database: Database) -> None:
        consumer = AIOKafkaConsumer(
            **client_options(self.kafka), enable_auto_commit=False, auto_offset_reset="earliest"
        )
        try:
            await consumer.start()
            partitions = [TopicPartition(self.name, p) for p in await partitions_of(consumer, self.name)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
            while True:
                batches = await consumer.getmany(timeout_ms=200, max_records=RECORDS_MAX)
                records = [record_of(self.view.topic, raw) for batch in batches.values() for raw in batch]
                if records:
                    await self._take(database, records)
                    self.wake()
                    await asyncio.sleep(SHARED_SECONDS if self.ready else 0.0)
                if not self.ready:
                    positions = [await consumer.position(tp) for tp in partitions]
                    self.ready = all(at >= ends[tp] for at, tp in zip(positions, partitions, strict=True))
        finally:
            await closed(consumer.stop)

    async def _take(self, database: Database, records: Sequence[Record]) -> None:
        """Apply the records that are events of the topic, and dead-letter those that should be."""
        topic = self.view.topic
        events: list[tuple[Record, Received]] = []
        dead: list[DeadRecord] = []
        for record, envelope, event in read(records):
            if isinstance(event, Received):
                events.append((record, event))
            elif isinstance(event, UnknownType):
                CONSUMED.labels(topic.name, "unknown_type").inc()
            elif topic.compacted and is_bare_null(record):
                CONSUMED.labels(topic.name, "tombstone").inc()
            else:
                subject = (envelope.subject if envelope else "") or text_of(record.key)
                dead.append(DeadRecord(topic, record, subject, "dead", reason_of(event)))
        dead += await self._apply(database, events)
        if dead:
            CONSUMED.labels(topic.name, "dead").inc(len(dead))
            async with database.acquire() as db, db.transaction():
                await dead_records.store(db, self.service, dead)

    async def _apply(self, database: Database, events: Sequence[tuple[Record, Received]]) -> list[DeadRecord]:
        """Apply events, by repeated halving if the data is at fault; returns those that cannot be applied."""
        if not events:
            return []
        try:
            await self.view.apply(database, [event for _, event in events])
        except Exception as error:
            if is_infrastructure(error):
                raise
            if len(events) > 1:
                middle = len(events) // 2
                first = await self._apply(database, events[:middle])
                return first + await self._apply(database, events[middle:])
            ((record, event),) = events
            return [DeadRecord(self.view.topic, record, event.subject, "dead", reason_of(error), event)]
        return []
