"""Kafka → consume.apply(): the one way in which a service consumes, and the only subscriber in the tree.

FastStream would commit past, or hammer on, a record that failed; here the position in Postgres decides, and Kafka's
own offsets are for dashboards. Three facts of the clients shape this file: a listener's exception is swallowed, the
fetcher delivers records while an assignment is still being claimed, and the stock parser loses a batch with one
undecodable header.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from faststream.kafka import KafkaBroker, KafkaMessage
from faststream.middlewares import AckPolicy

from slipway_common.clock import monotonic_seconds
from slipway_common.consume import Consumer, Fenced, Owned, Record, apply, claim, record_gap, reread
from slipway_common.postgres import Pool
from slipway_common.telemetry import UNOWNED, logger
from slipway_common.topics import group

LOG = logger(__name__)

BACKOFF_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
UNOWNED_ALERT_SECONDS: Final = 10.0
COMMIT_EVERY_SECONDS: Final = 1.0


async def cluster_id(bootstrap_servers: str) -> str:
    """The id of the cluster that offsets belong to. Raises KafkaError when it cannot be reached."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        description: Mapping[str, Any] = await admin.describe_cluster()
        return str(description["cluster_id"])
    finally:
        await admin.close()


async def _parse(message: tuple[Any, ...]) -> KafkaMessage:
    """Touches no header and no value: those are read one by one, later, where a bad one is a dead letter."""
    first, last = message[0], message[-1]
    return KafkaMessage(
        body=b"",
        headers={},
        raw_message=message,
        message_id=f"{first.offset}-{last.offset}-{first.timestamp}",
        correlation_id=f"{first.topic}-{first.partition}-{first.offset}",
        consumer=None,  # type: ignore[arg-type] # only acknowledgement needs it, and we never acknowledge
    )


async def _decode(message: KafkaMessage) -> Any:  # async: a sync decoder costs a thread per message
    return message.raw_message


class Subscription(ConsumerRebalanceListener):  # type: ignore[misc]
    """One topic as one service consumes it. A partition is written for only while it is owned."""

    def __init__(
        self, broker: KafkaBroker, pool: Pool, consumer: Consumer, *, prefix: str, instance: str, cluster: str,
        ring: Any,
    ) -> None:  # fmt: skip
        self.pool = pool
        self.consumer = consumer
        self.name = prefix + consumer.topic.name
        self.cluster = cluster
        self.ring = ring
        self.assigned: dict[int, float] = {}  # partition → when it was assigned, or last owned (monotonic)
        self.owned: dict[int, Owned] = {}
        self.targets: dict[int, int] = {}  # partition → end offset seen when it was claimed
        self.sought: dict[int, int] = {}  # partition → position that was sought because a batch began above it
        self.stopped: dict[int, str] = {}  # partition → why only an operator can go on
        self._claims: set[asyncio.Task[None]] = set()
        self._running = asyncio.Lock()
        self._committed_at = 0.0
        group_id = group(consumer.service, consumer.topic)
        self.subscriber = broker.subscriber(
            self.name, group_id=group_id, group_instance_id=f"{group_id}.{instance}", batch=True, max_records=500,
            batch_timeout_ms=20, parser=_parse, decoder=_decode, ack_policy=AckPolicy.MANUAL,
            auto_offset_reset="earliest", listener=self, session_timeout_ms=10_000, heartbeat_interval_ms=1_000,
            fetch_max_wait_ms=100,
        )  # fmt: skip
        self.subscriber(self.consume)

    @property
    def client(self) -> Any:
        return self.subscriber.consumer

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Un-own first, then give the running batch 5 s; what it may still commit is fenced by the next epoch."""
        for tp in revoked:
            for table in (self.owned, self.assigned, self.targets, self.sought, self.stopped):
                table.pop(tp.partition, None)
        self._gauge()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                async with self._running:
                    pass

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        now = monotonic_seconds()
        for tp in assigned:
            self.assigned[tp.partition] = now
        self._gauge()
        for tp in assigned:
            if not await self._try_claim(tp.partition):
                # The client would swallow an exception and leave the partition un-owned for good.
                task = asyncio.create_task(self._claim_until_owned(tp.partition))
                self._claims.add(task)
                task.add_done_callback(self._claims.discard)

    async def _claim_until_owned(self, partition: int) -> None:
        for attempt in range(1_000_000):
            await asyncio.sleep(BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)])
            if partition not in self.assigned or partition in self.stopped or await self._try_claim(partition):
                return

    async def _try_claim(self, partition: int) -> bool:
        """Epoch + 1, positions checked, sought, and only then owned. False: try again."""
        tp = TopicPartition(self.name, partition)
        topic = self.consumer.topic.name
        try:
            async with self.pool.acquire() as db:
                owned, cluster = await claim(db, topic, partition, self.cluster)
                begin = (await self.client.beginning_offsets([tp]))[tp]
                end = (await self.client.end_offsets([tp]))[tp]
                if cluster != self.cluster or end < owned.next_offset:
                    why = (
                        f"stored position {owned.next_offset} of cluster {cluster}; this is cluster {self.cluster} "
                        f"with offsets {begin}…{end}; `slipway topics adopt` rebases it"
                    )
                    self.stopped[partition] = why
                    await record_gap(db, self.consumer, partition, "foreign-position", why)
                    self.ring()
                    return True
                if begin > owned.next_offset:
                    detail = f"offsets {owned.next_offset}…{begin - 1} were deleted before they were read"
                    if owned.next_offset > 0:
                        await record_gap(db, self.consumer, partition, "retention", detail)
                    await db.execute(
                        "UPDATE consumed SET next_offset = $4 WHERE topic = $1 AND partition = $2 AND epoch = $3",
                        topic, partition, owned.epoch, begin,
                    )  # fmt: skip
                    owned = Owned(owned.epoch, begin)
            if partition not in self.assigned:
                return True
            self.client.seek(tp, owned.next_offset)
        except Exception as error:
            LOG.warning("claim will be tried again", topic=topic, partition=partition, error=repr(error))
            return False
        self.targets[partition] = end
        self._own(partition, owned)
        return True

    def caught_up(self) -> bool:
        """Whether every assigned partition was read to the end that was seen when it was claimed."""
        return self.client is not None and all(
            (owned := self.owned.get(p)) is not None and owned.next_offset >= self.targets.get(p, 0)
            for p in self.assigned
        )

    def unowned_for_seconds(self) -> float:
        """How long the longest-waiting assigned partition has been without an owner; 0 when all are owned."""
        now = monotonic_seconds()
        return max((now - since for p, since in self.assigned.items() if p not in self.owned), default=0.0)

    def _own(self, partition: int, owned: Owned) -> None:
        self.owned[partition] = owned
        self.assigned[partition] = monotonic_seconds()
        self._gauge()

    def _unown(self, partition: int) -> None:
        if self.owned.pop(partition, None) is not None and partition in self.assigned:
            self.assigned[partition] = monotonic_seconds()
        self._gauge()

    def _gauge(self) -> None:
        UNOWNED.set(sum(p not in self.owned for p in self.assigned))

    async def consume(self, records: Sequence[Any]) -> None:
        async with self._running:
            for partition, group_ in groupby(records, key=attrgetter("partition")):
                await self._consume_partition(partition, list(group_))
            await self._commit_applied()

    async def _consume_partition(self, partition: int, raw: list[Any]) -> None:
        mine = self.owned.get(partition)
        if mine is None:
            return  # not ours, or not yet: whoever claims it seeks back to here
        raw = [record for record in raw if record.offset >= mine.next_offset]
        if not raw:
            return
        if raw[0].offset > mine.next_offset and not await self._accept_gap(partition, mine, raw[0].offset):
            return
        records = [
            Record(self.consumer.topic.name, partition, r.offset, r.key, r.value, r.headers, r.timestamp) for r in raw
        ]
        try:
            async with self.pool.acquire() as db:
                after = await apply(db, self.consumer, mine, records)
        except Fenced as error:
            LOG.warning("fenced", error=str(error))
            if self._still(partition, mine):  # else it carries our own newer claim: keep that
                self._unown(partition)
            return
        except Exception as error:
            LOG.warning("batch will be retried", topic=self.name, partition=partition, error=repr(error))
            await self._recover(partition, mine)
            return
        self.sought.pop(partition, None)
        if self._still(partition, mine):  # else: reassigned meanwhile, leave it
            self.owned[partition] = after
        self.ring()

    def _still(self, partition: int, mine: Owned) -> bool:
        now = self.owned.get(partition)
        return now is not None and now.epoch == mine.epoch

    async def _accept_gap(self, partition: int, mine: Owned, first: int) -> bool:
        """A batch that begins above the position was fetched before the seek, unless a read after a seek agrees."""
        if self.sought.get(partition) != mine.next_offset:
            self.sought[partition] = mine.next_offset
            self.client.seek(TopicPartition(self.name, partition), mine.next_offset)
            return False
        if not self.consumer.topic.compacted:
            begin = (await self.client.beginning_offsets([TopicPartition(self.name, partition)])).popitem()[1]
            if begin > mine.next_offset:
                with contextlib.suppress(Exception):
                    async with self.pool.acquire() as db:
                        detail = f"offsets {mine.next_offset}…{first - 1} are gone"
                        await record_gap(db, self.consumer, partition, "retention", detail)
        return True

    async def _recover(self, partition: int, mine: Owned) -> None:
        """After a rollback or an unknown commit: forget, re-read under the captured epoch, seek, back off."""
        for attempt in range(1_000_000):
            await asyncio.sleep(BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)])
            if not self._still(partition, mine):
                return
            try:
                async with self.pool.acquire() as db:
                    stored = await reread(db, self.consumer.topic.name, partition, mine.epoch)
            except Exception as error:
                LOG.warning("position cannot be read yet", topic=self.name, partition=partition, error=repr(error))
                continue
            if not self._still(partition, mine):
                return
            if stored is None:
                self._unown(partition)
            else:
                with contextlib.suppress(Exception):  # revoked just now: the next owner seeks for itself
                    self.client.seek(TopicPartition(self.name, partition), stored.next_offset)
                    self.owned[partition] = stored
            return

    async def _commit_applied(self) -> None:
        """Tell Kafka what was applied, for lag tools; best effort, never read back."""
        now = monotonic_seconds()
        if now - self._committed_at < COMMIT_EVERY_SECONDS or not self.owned:
            return
        self._committed_at = now
        positions = {TopicPartition(self.name, p): owned.next_offset for p, owned in self.owned.items()}
        try:
            await self.client.commit(positions)
        except (KafkaError, TimeoutError, OSError) as error:
            LOG.info("lag not reported", topic=self.name, error=repr(error))

    async def stop(self) -> None:
        for task in list(self._claims):
            task.cancel()


def connect(bootstrap_servers: str, service: str) -> KafkaBroker:
    """A FastStream broker for Subscriptions: no automatic topics, no argument injection."""
    return KafkaBroker(
        bootstrap_servers, client_id=service, allow_auto_create_topics=False, apply_types=False, logger=None,
        graceful_timeout=10.0,
    )  # fmt: skip
