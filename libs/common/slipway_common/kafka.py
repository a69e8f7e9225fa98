"""Kafka → consume.apply(): the one way in which replicas share a topic, and the only subscriber in the tree.

What one replica has to read alone stands in exclusive.py; positions, numbers and dead letters are the same in both.

FastStream would commit past, or hammer on, a record that failed; here the position in Postgres decides, and Kafka's
own offsets are for dashboards. Facts of the clients that shape this file: a listener's exception is swallowed and no
heartbeat is sent while it runs; the fetcher delivers records while an assignment is still being claimed; the stock
parser loses a batch with one undecodable header.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import count, groupby
from operator import attrgetter
from typing import Any, Final

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from faststream.kafka import KafkaBroker, KafkaMessage
from faststream.middlewares import AckPolicy

from slipway_common.clock import monotonic_seconds
from slipway_common.consume import Consumer, Fenced, Owned, apply, claim, reread
from slipway_common.partitions import Partitions
from slipway_common.postgres import Pool
from slipway_common.telemetry import logger
from slipway_common.topics import group

LOG = logger(__name__)

BACKOFF_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
UNOWNED_ALERT_SECONDS: Final = 10.0
TELL_EVERY: Final = 30  # tries, about as many seconds: an outage is one line per partition and half minute
REPORT_SECONDS: Final = 1.0
STOPPED_SECONDS: Final = 5.0  # how soon a partition that waits for an operator is looked at again


def backoff_seconds(attempt: int) -> float:
    """How long to wait before try number `attempt`, counted from 1."""
    return BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS)) - 1]


async def cluster_id(bootstrap_servers: str) -> str:
    """The id of the cluster that offsets belong to. Raises KafkaError when it cannot be reached."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
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


class Subscription(Partitions, ConsumerRebalanceListener):  # type: ignore[misc]
    """One topic as one service consumes it. A partition is written for only while it is owned."""

    def __init__(
        self,
        broker: KafkaBroker,
        pool: Pool,
        consumer: Consumer,
        *,
        prefix: str,
        instance: str,
        cluster: str,
        ring: Callable[[], None],
        session_seconds: float = 10.0,
        heartbeat_seconds: float = 1.0,
    ) -> None:
        """`instance` names the replica for static membership; empty: partitions move as soon as it leaves."""
        super().__init__(pool, consumer, prefix=prefix, cluster=cluster, ring=ring)
        self.session_seconds = session_seconds
        self.failures: dict[int, int] = {}  # partition → failures in a row
        self._tables: tuple[dict[int, Any], ...] = (
            self.owned,
            self.assigned,
            self.targets,
            self.sought,
            self.failures,
            self.stopped,
        )
        self._settling: set[asyncio.Task[None]] = set()  # of this assignment: claims, waits for a rebalance
        self._reporting: asyncio.Task[None] | None = None
        self._running = asyncio.Lock()
        self._stopping = False
        group_id = prefix + group(consumer.service, consumer.topic)
        self.subscriber = broker.subscriber(
            self.name,
            group_id=group_id,
            group_instance_id=f"{group_id}.{instance}" if instance else None,
            batch=True,
            max_records=500,
            batch_timeout_ms=20,
            parser=_parse,
            decoder=_decode,
            ack_policy=AckPolicy.MANUAL,
            auto_offset_reset="earliest",
            listener=self,
            fetch_max_wait_ms=100,
            session_timeout_ms=int(session_seconds * 1000),
            heartbeat_interval_ms=int(heartbeat_seconds * 1000),
        )
        self.subscriber(self.consume)

    @property
    def client(self) -> Any:
        return self.subscriber.consumer

    # Assignment: what the group gives and takes.

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Un-own first, then give the running batch 5 s; what it may still commit is fenced by the next epoch."""
        self._let_go(tp.partition for tp in revoked)
        settling = self._cancel_settling()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                # A claim that commits after the successor's would rob it: see each of them end.
                await asyncio.gather(*settling, return_exceptions=True)
                async with self._running:
                    pass

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        if self._stopping:
            return
        now = monotonic_seconds()
        for tp in assigned:
            self.assigned[tp.partition] = now
            self._settle(self._claim(tp.partition))
        self.gauge()
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._report())

    def _let_go(self, partitions: Iterable[int]) -> None:
        for partition in list(partitions):
            for table in self._tables:
                table.pop(partition, None)
        self.gauge()

    def _settle(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def _cancel_settling(self) -> list[asyncio.Task[None]]:
        tasks = list(self._settling)
        for task in tasks:
            task.cancel()
        return tasks

    async def _claim(self, partition: int) -> None:
        """Only an assignment claims; it tries until it owns. Cancelled when the assignment ends."""
        for attempt in count(1):
            try:
                if await self._try_claim(partition):
                    return
                await asyncio.sleep(STOPPED_SECONDS)
            except Exception as error:
                if attempt % TELL_EVERY == 1:
                    LOG.warning("claim will be tried again", topic=self.name, partition=partition, error=repr(error))
                await asyncio.sleep(backoff_seconds(attempt))

    async def _try_claim(self, partition: int) -> bool:
        """Epoch + 1, positions checked, sought, and only then owned. False: only an operator can go on."""
        tp = self.at(partition)
        async with self.pool.acquire() as db:
            claimed, cluster = await claim(db, self.consumer.topic.name, partition, self.cluster)
        begin = (await self.client.beginning_offsets([tp]))[tp]
        end = (await self.client.end_offsets([tp]))[tp]
        owned = await self.go_on(partition, claimed, cluster, begin, end)
        if owned is None:
            return False
        self.client.seek(tp, owned.next_offset)
        self.owned[partition] = owned
        self.gauge()
        return True

    async def _ask_for_rebalance(self) -> None:
        """Somebody claimed a partition that the group still gives to us, and no rebalance has told us so.

        A member that was expelled learns it within a session. Claiming again without being asked could rob the
        rightful owner; a new assignment settles it.
        """
        await asyncio.sleep(self.session_seconds)
        LOG.warning("fenced, but still assigned: joining the group again", topic=self.name)
        self.client._coordinator.request_rejoin()

    # Records.

    async def consume(self, records: Sequence[Any]) -> None:
        async with self._running:
            for partition, group_ in groupby(records, key=attrgetter("partition")):
                await self._consume_partition(partition, list(group_))

    async def _consume_partition(self, partition: int, raw: list[Any]) -> None:
        mine = self.owned.get(partition)
        if mine is None:
            return
        try:
            portion = await self.portion(partition, raw)
            if portion is None:
                return
            async with self.pool.acquire() as db:
                after = await apply(db, self.consumer, portion.owned, portion.records)
        except Exception as error:
            LOG.warning("batch was undone", topic=self.name, partition=partition, error=repr(error))
            await self._recover(partition, mine, fenced=isinstance(error, Fenced))
            return
        self.sought.pop(partition, None)
        self.failures.pop(partition, None)
        if self._still(partition, mine):  # else: reassigned meanwhile, leave it
            self.owned[partition] = after
        self.ring()

    def _still(self, partition: int, mine: Owned) -> bool:
        now = self.owned.get(partition)
        return now is not None and now.epoch == mine.epoch

    async def _recover(self, partition: int, mine: Owned, *, fenced: bool) -> None:
        """After a rollback or an unknown commit: forget, re-read under the captured epoch, seek, back off."""
        self.sought.pop(partition, None)
        if not fenced:
            self.failures[partition] = self.failures.get(partition, 0) + 1
            await asyncio.sleep(backoff_seconds(self.failures[partition]))
        for attempt in count(1):
            if not self._still(partition, mine):
                return  # revoked, or our own newer claim: keep that
            try:
                async with self.pool.acquire() as db:
                    stored = await reread(db, self.consumer.topic.name, partition, mine.epoch)
                break
            except Exception as error:
                if attempt % TELL_EVERY == 1:
                    LOG.warning("position cannot be read yet", topic=self.name, partition=partition, error=repr(error))
                await asyncio.sleep(backoff_seconds(attempt))
        if not self._still(partition, mine):
            return
        if stored is None:
            del self.owned[partition]
            self.assigned[partition] = monotonic_seconds()
            self.gauge()
            self._settle(self._ask_for_rebalance())
            return
        with contextlib.suppress(KafkaError):  # revoked just now: the next owner seeks for itself
            self.client.seek(self.at(partition), stored.next_offset)
            self.owned[partition] = stored

    # Lag, for people.

    async def _report(self) -> None:
        """Tell Kafka what was applied, for lag tools; best effort, never read back."""
        told: dict[TopicPartition, int] = {}
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            told = await self._report_once(told)

    async def _report_once(self, told: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        positions = {TopicPartition(self.name, p): owned.next_offset for p, owned in self.owned.items()}
        if not positions or positions == told:
            return told
        try:
            await self.client.commit(positions)
        except (KafkaError, TimeoutError, OSError) as error:
            LOG.info("lag not reported", topic=self.name, error=repr(error))
            return told
        return positions

    async def stop(self) -> None:
        """Begin no batch any more; the one that runs is waited for by the broker's stop."""
        self._stopping = True
        if self._reporting is not None:
            self._reporting.cancel()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._report_once({}), 1)
        self._let_go(self.assigned)
        await asyncio.gather(*self._cancel_settling(), return_exceptions=True)


def connect(bootstrap_servers: str, service: str) -> KafkaBroker:
    """A FastStream broker for Subscriptions: no automatic topics, no argument injection."""
    return KafkaBroker(
        bootstrap_servers,
        client_id=service,
        allow_auto_create_topics=False,
        apply_types=False,
        logger=None,
        graceful_timeout=10.0,
    )
