"""Reading of what a service has sent to its topics: the ends of its partitions, and single events.

Topics that other services write too are read a little further back, since another service may have written last.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import KafkaTimeoutError

from slipway_api.events.alert import AlertRaised
from slipway_api.events.topics import ALERT, Topic
from slipway_api.percent import decoded
from slipway_common.base.errors import BadEvent
from slipway_common.messaging.clients import Kafka, client_options
from slipway_common.messaging.envelope import decode_data
from slipway_common.messaging.incarnation import NotCompared, Sent, source_prefix
from slipway_common.messaging.partition_queues import Place
from slipway_common.messaging.partitions import closed

NO_LEADER: Final = -1
SHARED_RECORDS: Final = 100  # read of the end of a partition to which other services write too
POLL_SECONDS: Final = 0.5
SILENT_POLLS: Final = 60  # without a record, after which the broker counts as unavailable
CALL_SECONDS: Final = 10  # for an answer of the broker


class SentLog:
    """The topics of one service on one broker."""

    def __init__(
        self, service: str, *, kafka: Kafka, prefix: str, partitions: Mapping[str, int], topics: Sequence[Topic]
    ) -> None:
        """`topics` are those that the service writes, with the number of `partitions` of each."""
        self.service = service
        self.kafka = kafka
        self.prefix = prefix
        self.partitions = partitions
        self.topics = topics

    async def ends(self) -> Sent:
        """The newest number of each incarnation of the service in the last records of each partition that has a leader.

        Raises KafkaError if the broker is unavailable."""
        shared = {self.prefix + topic.name for topic in self.topics if topic.producers - {self.service}}
        tps = [
            TopicPartition(self.prefix + topic.name, partition)
            for topic in self.topics
            for partition in range(self.partitions[topic.name])
        ]
        numbers: dict[Place, dict[str, int]] = {}
        async with self._consumer() as consumer:
            tps, without = by_leader(await consumer._client.fetch_all_metadata(), tps)
            begins, ends = await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)
            last = {tp: end - (SHARED_RECORDS if tp.topic in shared else 1) for tp, end in ends.items()}
            starts = {tp: max(begins[tp], last[tp]) for tp in tps if ends[tp] > begins[tp]}
            async for record in _read(consumer, starts, ends):
                found = numbers.setdefault(self._place(record), {})
                add_own(found, record, self.service)
        return Sent(numbers, [self._place(tp) for tp in without])

    async def among(self, waiting: Mapping[str, tuple[Place, datetime]]) -> Collection[str]:
        """Which events (id → place and time) the log has. Reads from the time of the oldest one of each partition to
        its end. Raises KafkaError if the broker is unavailable, and NotCompared if a partition is without a leader."""
        since: dict[TopicPartition, int] = {}
        for (topic, partition), at in waiting.values():
            tp = TopicPartition(self.prefix + topic, partition)
            since[tp] = min(since.get(tp, 2**62), int(at.timestamp() * 1000))
        found: set[str] = set()
        if not since:
            return found
        async with self._consumer() as consumer:
            tps, without = by_leader(await consumer._client.fetch_all_metadata(), since)
            if without:
                raise NotCompared(map(self._place, without))
            ends = await consumer.end_offsets(tps)
            offsets = await consumer.offsets_for_times({tp: since[tp] for tp in tps})
            starts = {tp: at.offset for tp, at in offsets.items() if at is not None and at.offset < ends[tp]}
            async for record in _read(consumer, starts, ends):
                if (id_ := header(record, "ce_id")) in waiting:
                    found.add(id_)
        return found

    async def raised_alerts(self) -> Collection[AlertRaised]:
        """Alerts of the service that its topic has as open, in the partitions that have a leader. Raises KafkaError if
        the broker is unavailable."""
        if ALERT not in self.topics:
            return ()
        tps = [TopicPartition(self.prefix + ALERT.name, partition) for partition in range(self.partitions[ALERT.name])]
        async with self._consumer() as consumer:
            tps, _ = by_leader(await consumer._client.fetch_all_metadata(), tps)
            begins, ends = await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)
            starts = {tp: begins[tp] for tp in tps if ends[tp] > begins[tp]}
            newest = {record.key: record async for record in _read(consumer, starts, ends)}
        return raised_by(self.service, newest.values())

    def _place(self, at: Any) -> Place:
        """Place of a record or a partition of the broker."""
        return at.topic.removeprefix(self.prefix), at.partition

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[Any]:
        consumer = AIOKafkaConsumer(
            **client_options(self.kafka), enable_auto_commit=False, request_timeout_ms=CALL_SECONDS * 1000
        )
        try:
            await consumer.start()
            yield consumer
        finally:
            await closed(consumer.stop)


def by_leader(
    cluster: ClusterMetadata, tps: Iterable[TopicPartition]
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Partitions with a leader, and those without one. Partitions that do not exist are neither: nothing was sent to
    them."""
    leaders = {tp: cluster.leader_for_partition(tp) for tp in tps}
    found = [tp for tp, leader in leaders.items() if leader is not None and leader != NO_LEADER]
    return found, [tp for tp, leader in leaders.items() if leader == NO_LEADER]


async def _read(
    consumer: Any, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> AsyncIterator[Any]:
    """Records of partitions from `starts` up to `ends`. Raises KafkaTimeoutError if the broker sends none."""
    if not starts:
        return
    consumer.assign(list(starts))
    for tp, offset in starts.items():
        consumer.seek(tp, offset)
    left, silent = set(starts), 0
    while left:
        if silent >= SILENT_POLLS:
            raise KafkaTimeoutError(f"no records of {sorted(left)}")
        batches = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
        silent = 0 if batches else silent + 1
        for tp, records in batches.items():
            for record in records:
                if record.offset < ends[tp]:
                    yield record
        left = {tp for tp in left if await consumer.position(tp) < ends[tp]}


def add_own(found: dict[str, int], record: Any, service: str) -> None:
    """Add the number of a record to the highest one of each incarnation, if the service has written it."""
    source, number = header(record, "ce_slipwaysource"), header(record, "ce_slipwaynumber")
    if source.startswith(prefix := source_prefix(service)) and number.isdecimal():
        incarnation = source.removeprefix(prefix)
        found[incarnation] = max(int(number), found.get(incarnation, 0))


def raised_by(service: str, newest: Iterable[Any]) -> list[AlertRaised]:
    """Open alerts of a service, by the newest record of each key."""
    found: list[AlertRaised] = []
    for record in newest:
        if header(record, "ce_type") == AlertRaised.type and record.value is not None:
            with suppress(BadEvent):
                found.append(decode_data(AlertRaised.type, record.value))
    return [alert for alert in found if decoded(alert.dedup_key)[0] == service]


def header(record: Any, name: str) -> str:
    """Value of a header; empty if the record lacks it."""
    return next((value.decode(errors="replace") for key, value in record.headers if key == name and value), "")
