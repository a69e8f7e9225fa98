"""Mirror of one service's topics under another prefix, with a delay for some topics.

Records are copied unchanged in both directions, so that the rest of the system sees delayed records of a real service.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from slipway_api.events.topics import TOPICS, Topic
from slipway_common.base.clock import utc_now

POLL_MS: Final = 50


class Copied(msgspec.Struct, frozen=True):
    """A record written at `written` and copied at `at` (epoch seconds): the other side could not read it earlier."""

    written: float
    at: float
    topic: Topic
    headers: tuple[tuple[str, bytes], ...]
    value: bytes | None


class Mirror:
    """Copies the topics that `service` consumes from `outside` to `inside`, and those that it produces back.

    Partitions and headers are preserved.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        service: str,
        outside: str,
        inside: str,
        late: Mapping[Topic, float],
        loses: Callable[[Topic, str, bytes], bool] = lambda topic, type_name, value: False,
    ) -> None:
        """`late` maps topics to seconds between a record's timestamp and its copy. `loses` chooses records, by topic,
        event type and value, that are not copied."""
        self._loses = loses
        self.bootstrap_servers = bootstrap_servers
        self.routes = {outside + topic.name: (topic, inside, 0.0) for topic in TOPICS if service in topic.consumers}
        self.routes |= {
            inside + topic.name: (topic, outside, late.get(topic, 0.0))
            for topic in TOPICS
            if service in topic.producers
        }
        self.copied: list[Copied] = []

    @contextlib.asynccontextmanager
    async def running(self, partitions: int) -> AsyncIterator[None]:
        """Copy records; topics of both sides must exist. An error of a copy is raised at the end."""
        places = [TopicPartition(name, number) for name in self.routes for number in range(partitions)]
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap_servers, enable_auto_commit=False)
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap_servers, enable_idempotence=True)
        async with contextlib.AsyncExitStack() as stack:
            for client in (consumer, producer):
                await client.start()
                stack.push_async_callback(client.stop)
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            copying = asyncio.create_task(self._copy(consumer, producer))
            try:
                yield
            finally:
                copying.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await copying

    async def _copy(self, consumer: Any, producer: Any) -> None:
        queues: dict[TopicPartition, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)
        async with asyncio.TaskGroup() as group:
            while True:
                for place, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                    if place not in queues:
                        group.create_task(self._copy_partition(producer, place, queues[place]))
                    for record in records:
                        queues[place].put_nowait(record)

    async def _copy_partition(self, producer: Any, place: TopicPartition, queue: asyncio.Queue[Any]) -> None:
        """Copy one partition, in order."""
        topic, prefix, late_seconds = self.routes[place.topic]
        while True:
            record = await queue.get()
            if self._loses(topic, dict(record.headers).get("ce_type", b"").decode(), record.value or b""):
                continue
            written = record.timestamp / 1000
            await asyncio.sleep(max(0.0, written + late_seconds - utc_now().timestamp()))
            at = utc_now().timestamp()
            await producer.send_and_wait(
                prefix + topic.name,
                record.value,
                key=record.key,
                partition=place.partition,
                headers=list(record.headers),
            )
            self.copied.append(Copied(written, at, topic, tuple(record.headers), record.value))
