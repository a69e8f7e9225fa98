"""Forwarding of the alerts topic to one sink: what is news, in order, each until the sink has taken it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from slipway_api.events.alert import Alert, AlertRaised
from slipway_api.events.topics import ALERT
from slipway_client.alerts.delivery import Change, Delivery, Sink, pause
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.errors import BadEvent
from slipway_common.messaging import fetched
from slipway_common.messaging.clients import Kafka, client_options
from slipway_common.messaging.envelope import decode, decode_data
from slipway_common.messaging.records import Undecoded
from slipway_common.observability import telemetry

LOG = telemetry.logger(__name__)
POLL_MS: Final = 500


class Forwarding:
    """Forwarding to one sink until `stopping` is set. The group `slipway-alerts.NAME` remembers up to where it has
    taken all alerts. Those behind one that it did not take are sent again after a restart, with their keys."""

    def __init__(self, sink: Sink, *, kafka: Kafka, prefix: str, stopping: asyncio.Event) -> None:
        self.sink = sink
        self.stopping = stopping
        self._kafka = kafka
        self._topic = prefix + ALERT.name
        self._group = f"{prefix}slipway-alerts.{sink.name}"
        self._delivery = Delivery(sink, stopping)
        self._open: dict[str, AlertRaised] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._refreshed_at = 0.0

    async def run(self) -> None:
        """Forward; reconnects to Kafka for ever."""
        fetched.install()
        failures = 0
        while not self.stopping.is_set():
            try:
                async with self._consumer() as consumer:
                    positions = await self._catch_up(consumer)
                    failures = 0
                    await self._follow(consumer, positions)
            except (KafkaError, OSError) as error:
                failures += 1
                LOG.warning("Kafka is unavailable, retrying", sink=self.sink.name, error=repr(error))
                await pause(self.stopping, failures)

    @contextlib.asynccontextmanager
    async def _consumer(self) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            **client_options(self._kafka),
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        try:
            await consumer.start()
            yield consumer
        finally:
            await consumer.stop()

    async def _catch_up(self, consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
        """Read the topic, which is compacted, up to the position of the sink, and send what is open there if the sink
        does not know it: at the first start, whose position is the end, or at each. Returns the positions."""
        known = await consumer._client.fetch_all_metadata()  # the consumer's own API knows subscribed topics only
        partitions = [TopicPartition(self._topic, n) for n in sorted(known.partitions_for_topic(self._topic) or ())]
        if not partitions:
            raise KafkaError(f"there is no topic {self._topic}")
        consumer.assign(partitions)
        ends: Mapping[TopicPartition, int] = await consumer.end_offsets(partitions)
        committed = {tp: await consumer.committed(tp) for tp in partitions}
        self._committed = {tp: offset for tp, offset in committed.items() if offset is not None}
        is_first = all(offset is None for offset in committed.values())
        begins = dict(ends) if is_first else {tp: offset or 0 for tp, offset in committed.items()}
        await consumer.seek_to_beginning(*partitions)
        self._open.clear()
        self._delivery.forget()
        for tp in partitions:  # alerts of one key are in one partition
            while not self.stopping.is_set() and await consumer.position(tp) < min(begins[tp], ends[tp]):
                for record in (await consumer.getmany(tp, timeout_ms=POLL_MS)).get(tp, ()):
                    if record.offset < begins[tp]:
                        self._fold(record)
        sends_open = is_first or self.sink.refresh_seconds is not None
        if not self.stopping.is_set() and (not sends_open or await self._send_open()):
            await self._commit(consumer, begins)
        for tp, offset in begins.items():
            consumer.seek(tp, offset)
        return begins

    async def _follow(self, consumer: AIOKafkaConsumer, positions: dict[TopicPartition, int]) -> None:
        while not self.stopping.is_set():
            for tp, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                for record in records:
                    news = self._fold(record)
                    if news is not None and not await self._delivery.send(Change(news, (tp, record.offset))):
                        return
                    positions[tp] = record.offset + 1
                    await self._commit(consumer, positions)
            await self._delivery.send_again()
            await self._commit(consumer, positions)
            every = self.sink.refresh_seconds
            if every is not None and monotonic_seconds() - self._refreshed_at >= every:
                await self._send_open()

    async def _commit(self, consumer: AIOKafkaConsumer, positions: Mapping[TopicPartition, int]) -> None:
        """Commit the positions up to which the sink has taken all alerts, where they have changed."""
        settled = {tp: self._delivery.settled(tp, offset) for tp, offset in positions.items()}
        changed = {tp: at for tp, at in settled.items() if at is not None and at != self._committed.get(tp)}
        if changed:
            await consumer.commit(changed)
            self._committed |= changed

    def _fold(self, record: Any) -> Alert | None:
        """Record that an alert is open or closed. Returns it if it is news; None for a tombstone and for anything that
        is no alert."""
        event = _decoded(record)
        if not isinstance(event, Alert):
            return None
        before = self._open.pop(event.dedup_key, None)
        if isinstance(event, AlertRaised):
            self._open[event.dedup_key] = event
        return event if is_news(event, before) else None

    async def _send_open(self) -> bool:
        """Send all open alerts; False if forwarding stops before."""
        self._refreshed_at = monotonic_seconds()
        for event in list(self._open.values()):
            if not self._delivery.waits(event.dedup_key) and not await self._delivery.send(Change(event)):
                return False
        return True


def is_news(alert: Alert, before: AlertRaised | None) -> bool:
    """True unless it repeats what was open `before`. A repetition may be all that the compacted topic has left of an
    alert that was raised, or has become worse, while its sink was unavailable."""
    is_known = before is not None and (before.raised_at, before.revision) == (alert.raised_at, alert.revision)
    return not (alert.repeat and is_known)


def _decoded(record: Any) -> object:
    """Event of a record; None for a tombstone and for a record that is not an event of this version."""
    try:
        if record.value is None or isinstance(record.value, Undecoded):
            return None
        envelope = decode(record.headers, received_at=utc_now())
        return decode_data(envelope.type, record.value)
    except BadEvent:
        return None
