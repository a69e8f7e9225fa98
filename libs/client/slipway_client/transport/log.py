"""Reader for the topics of one deployment: without a consumer group, all partitions, merged by time.

Events of types in the registry are checked against their schema; of unknown types, such as a newer version's, only
envelope and JSON are read.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError
from pydantic import ValidationError

from slipway_api.events.topics import EVENT_OF
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import DEMO
from slipway_common.base.errors import BadEvent
from slipway_common.base.settings import UnreadableFile
from slipway_common.messaging import fetched
from slipway_common.messaging.clients import KafkaAccess, KafkaSettings, client_options
from slipway_common.messaging.envelope import Envelope, decode, decode_data
from slipway_common.messaging.records import Undecoded

fetched.install()
POLL_MS: Final = 500
CLOCK_SECONDS_MAX: Final = 120.0  # the services accept the same distance from the time of storage
STORED_SECONDS: Final = 0.001  # Kafka truncates to milliseconds
PROBE_AFTER_SECONDS: Final = 10.0  # without a record: check if the Kafka broker still answers


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One record. `topic` is the registry's name; `time` is the event's own, `stored_at` when Kafka stored it.
    `data` is the JSON value, None for a tombstone.

    `unreadable` is the reason why a record cannot be read. Such an entry holds what could be read: no `envelope` if its
    attributes are missing, no `data` if it is not JSON, otherwise `data` that does not match its schema.
    """

    topic: str
    partition: int
    offset: int
    time: datetime
    key: str
    envelope: Envelope | None
    data: Any = None
    unreadable: str = ""
    stored_at: datetime

    @property
    def at(self) -> float:
        """Time of the event in seconds since the epoch, clamped to the two minutes before its record was stored, so
        that a wrong clock moves nothing but its own events."""
        stored = self.stored_at.timestamp()
        return min(max(self.time.timestamp(), stored - CLOCK_SECONDS_MAX), stored + STORED_SECONDS)


def unavailable(kafka: str, error: Exception) -> str:
    """Sentence about a Kafka that cannot be used. What its client says of an address without a server is for Python."""
    reason = "no server answers there" if isinstance(error, KafkaConnectionError) else str(error) or "timed out"
    return f"Kafka at {kafka} is unavailable: {reason}"


def kafka_access(bootstrap_servers: str) -> KafkaAccess:
    """Access to Kafka with the TLS and SASL of SLIPWAY_KAFKA_* in the environment. Raises Failed."""
    try:
        return KafkaSettings(kafka=bootstrap_servers).kafka_access
    except ValidationError as error:
        texts = [problem["msg"].removeprefix("Value error, ") for problem in error.errors()]
        raise Failed("\n".join(texts)) from None
    except UnreadableFile as error:
        raise Failed(str(error)) from None


class Log:
    """Reads topics of the registry. Raises Failed if Kafka or a topic is unavailable."""

    def __init__(self, kafka: str, prefix: str, *, timeout_seconds: float = 10.0) -> None:
        # The Kafka client logs every attempt; one message of ours replaces that.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        self.kafka = kafka
        self.prefix = prefix
        self.timeout_seconds = timeout_seconds

    async def __aenter__(self) -> Self:
        self._consumer = AIOKafkaConsumer(
            **client_options(kafka_access(self.kafka)),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=int(self.timeout_seconds * 1000),
        )
        try:
            with self._as_failed():
                await asyncio.wait_for(self._consumer.start(), self.timeout_seconds)
        except BaseException:
            await self._consumer.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    @contextlib.contextmanager
    def _as_failed(self) -> Iterator[None]:
        try:
            yield
        except (KafkaError, OSError, ValueError, TimeoutError) as error:
            raise Failed(
                f"{unavailable(self.kafka, error)}\n"
                f"Check that it is running, and its address in --kafka or KAFKA{DEMO}."
            ) from error

    async def open(self, topics: Sequence[str], *, last: int | None, since: datetime | None) -> None:
        """Seek to where each partition has at most `last` records left, none older than `since`; None: no bound."""
        with self._as_failed():
            await asyncio.wait_for(self._open(topics, last, since), self.timeout_seconds)

    async def _open(self, topics: Sequence[str], last: int | None, since: datetime | None) -> None:
        cluster = await self._consumer._client.fetch_all_metadata()  # the consumer's own API lists topic names only
        present = cluster.topics()
        if missing := [topic for topic in topics if self.prefix + topic not in present]:
            other = sorted(name for name in present if name.endswith(missing[0]))
            hint = (
                f"it has {', '.join(other[:5])}: set --topic-prefix or TOPIC_PREFIX"
                if other
                else "it belongs to another deployment, or the topics have not been created yet"
            )
            raise Failed(f"Kafka at {self.kafka} has no topic {self.prefix + missing[0]}; {hint}")
        partitions = [
            TopicPartition(self.prefix + topic, number)
            for topic in topics
            for number in cluster.partitions_for_topic(self.prefix + topic)
        ]
        self._consumer.assign(partitions)
        begins = dict(await self._consumer.beginning_offsets(partitions))
        self._ends: Mapping[TopicPartition, int] = await self._consumer.end_offsets(partitions)
        if since is not None:
            at = int(since.timestamp() * 1000)
            found = await self._consumer.offsets_for_times(dict.fromkeys(partitions, at))
            begins = {tp: found[tp].offset if found.get(tp) else self._ends[tp] for tp in partitions}
        if last is not None:
            begins = {tp: max(begin, self._ends[tp] - last) for tp, begin in begins.items()}
        for tp, begin in begins.items():
            self._consumer.seek(tp, begin)
        self._begins = begins

    async def past(self) -> AsyncIterator[Entry]:
        """Yield entries from the position of `open` to the end at that time, merged by time over all partitions."""
        heads: dict[TopicPartition, deque[Entry]] = {
            tp: deque() for tp, begin in self._begins.items() if begin < self._ends[tp]
        }
        while heads:
            if hungry := [tp for tp, entries in heads.items() if not entries]:
                await self._feed(heads, hungry)
                continue
            first = min(heads, key=lambda tp: heads[tp][0].at)
            yield heads[first].popleft()
        for tp, end in self._ends.items():
            self._consumer.seek(tp, end)  # records beyond that are for `follow`

    async def _feed(self, heads: dict[TopicPartition, deque[Entry]], hungry: Sequence[TopicPartition]) -> None:
        """Fetch entries for partitions that have none; partitions at their end are removed."""
        positions = {tp: await self._consumer.position(tp) for tp in hungry}
        for tp in [tp for tp in hungry if positions[tp] >= self._ends[tp]]:
            del heads[tp]
        if waiting := [tp for tp in hungry if tp in heads]:
            for tp, records in (await self._consumer.getmany(*waiting, timeout_ms=POLL_MS)).items():
                heads[tp].extend(self._entry(record) for record in records if record.offset < self._ends[tp])

    async def follow(self, on_availability: Callable[[bool], None]) -> AsyncIterator[Entry]:
        """Yield new entries forever. Calls `on_availability(False)` when Kafka becomes unavailable and
        `on_availability(True)` when it is back."""
        loop = asyncio.get_running_loop()
        checked_at, available = loop.time(), True
        while True:
            batches = await self._consumer.getmany(timeout_ms=POLL_MS)
            entries = [self._entry(record) for records in batches.values() for record in records]
            for entry in sorted(entries, key=lambda entry: entry.at):
                yield entry
            if entries:
                checked_at = loop.time()
            if not entries and loop.time() - checked_at > PROBE_AFTER_SECONDS:
                checked_at = loop.time()
                if await self._answers() != available:
                    available = not available
                    on_availability(available)

    async def _answers(self) -> bool:
        try:
            await asyncio.wait_for(self._consumer.end_offsets(list(self._ends)[:1]), self.timeout_seconds)
        except (KafkaError, OSError, TimeoutError):
            return False
        return True

    def _entry(self, record: Any) -> Entry:
        stored_at = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        envelope, data, unreadable = None, None, ""
        try:
            if isinstance(record.value, Undecoded):
                raise BadEvent(record.value.reason)
            envelope = decode(record.headers, received_at=stored_at)
            data = None if record.value is None else msgspec.json.decode(record.value)
            if envelope.type in EVENT_OF:
                decode_data(envelope.type, record.value)
        except (BadEvent, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            unreadable = str(error)
        return Entry(
            topic=record.topic.removeprefix(self.prefix),
            partition=record.partition,
            offset=record.offset,
            time=envelope.time if envelope else stored_at,
            key=(record.key or b"").decode(errors="replace"),
            envelope=envelope,
            data=data,
            unreadable=unreadable,
            stored_at=stored_at,
        )
