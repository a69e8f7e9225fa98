"""Source `kafka_lag`: records that a consumer group has not committed yet. They are those that wait and those that run.

The lag of a group is counted from the beginning of a partition for which it has committed nothing.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from slipway_common.messaging.clients import KafkaAccess, KafkaSecurity, client_options
from slipway_monitor.domain.counts import Counting, Counts, Unreadable
from slipway_monitor.sources.port import SourceSettings


class KafkaLagSettings(SourceSettings):
    """Settings of a consumer group and a topic; the labels of `pools` are topics."""

    countings: ClassVar = frozenset({Counting.WAITING_AND_RUNNING})
    bootstrap_servers: str
    group: str
    topic: str | None = None
    security: KafkaSecurity = KafkaSecurity()
    """TLS and SASL, with the names of SLIPWAY_KAFKA_* without that prefix [default: neither]."""


class KafkaLagSource:
    """Lag of one consumer group, without being a member of it."""

    Settings = KafkaLagSettings

    def __init__(self, settings: KafkaLagSettings) -> None:
        self._settings = settings
        self._clients: tuple[Any, Any] | None = None

    async def read(self) -> Sequence[Counts]:
        settings = self._settings
        topics = {label: label for label in settings.pools} if settings.pools else {"": settings.topic or settings.name}
        try:
            if self._clients is None:
                self._clients = await self._connect()
            admin, consumer = self._clients
            return [
                Counts(await _lag(admin, consumer, settings.group, topic), None, label)
                for label, topic in topics.items()
            ]
        except (KafkaError, OSError, TimeoutError) as error:
            await self.close()
            raise Unreadable(f"{type(error).__name__}: the brokers do not tell the lag") from None

    async def _connect(self) -> tuple[Any, Any]:
        settings, milliseconds = self._settings, int(self._settings.timeout_seconds * 1000)
        access = KafkaAccess(bootstrap_servers=settings.bootstrap_servers, **settings.security.model_dump())
        options = client_options(access) | {"request_timeout_ms": milliseconds}
        admin, consumer = AIOKafkaAdminClient(**options), AIOKafkaConsumer(**options)
        try:
            await admin.start()
            await consumer.start()
        except BaseException:
            await admin.close()
            await consumer.stop()
            raise
        return admin, consumer

    async def close(self) -> None:
        if self._clients is not None:
            (admin, consumer), self._clients = self._clients, None
            await admin.close()
            await consumer.stop()


async def _lag(admin: Any, consumer: Any, group: str, topic: str) -> int:
    """Records of a topic behind the committed offsets. Raises Unreadable if there is no such topic, or no offsets."""
    # All topics, since asking for one that does not exist would create it where brokers create topics by themselves.
    known = await consumer._client.fetch_all_metadata()
    partitions = [TopicPartition(topic, number) for number in known.partitions_for_topic(topic) or ()]
    if not partitions:
        raise Unreadable(f"there is no topic {topic}")
    # A coordinator that still loads its offsets answers with an error for the group, which the client does not raise,
    # and with no partition; otherwise it answers for each one that it was asked for, by -1 if nothing is committed.
    committed = await admin.list_consumer_group_offsets(group, partitions=partitions)
    if not committed.keys() >= set(partitions):
        raise Unreadable(f"the coordinator of group {group} does not know its offsets yet")
    begins = await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    return sum(max(0, ends[tp] - max(begins[tp], committed[tp].offset)) for tp in partitions)
