"""Kafka consumer groups → consume.apply(): replicas share the partitions of a topic. The only subscriber in the tree.

Topics that one replica reads alone are in leader_loop.py; positions, sequence numbers and dead letters are the same.

FastStream would either commit past a failed record or retry it forever; here the position stored in PostgreSQL
decides, and Kafka's own offsets serve dashboards only. Client behaviour that shapes this file: exceptions of a
rebalance listener are swallowed, and no heartbeat is sent while it runs; the fetcher delivers records while an
assignment is still being claimed; the default parser loses a batch if one header cannot be decoded.
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

from slipway_api.events.topics import group
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database import outage
from slipway_common.database.postgres import Database
from slipway_common.messaging.clients import Kafka, client_options
from slipway_common.messaging.consume import Consumer, Fenced, Owned, Portion, apply, apply_together, claim, reread
from slipway_common.messaging.partitions import Partitions, cluster_of
from slipway_common.observability.telemetry import logger

LOG = logger(__name__)

BACKOFF_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
UNOWNED_ALERT_SECONDS: Final = 10.0
LOG_EVERY: Final = 30  # attempts, about as many seconds: one line per partition every half minute of an outage
REPORT_SECONDS: Final = 1.0
# Each consumer asks again this often while no records come, which is most of what an idle deployment costs. A partition
# that was sought meanwhile is part of the next request only.
FETCH_WAIT_MS: Final = 250
STOPPED_SECONDS: Final = 5.0  # interval at which a stopped partition is checked again


def backoff_seconds(attempt: int) -> float:
    """Seconds to wait before retry number `attempt`, counted from 1."""
    return BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS)) - 1]


async def cluster_id(kafka: Kafka) -> str:
    """Id of the cluster that offsets belong to. Raises KafkaError if it is unavailable."""
    admin = AIOKafkaAdminClient(**client_options(kafka))
    try:
        await admin.start()
        description: Mapping[str, Any] = await admin.describe_cluster()
        return str(description["cluster_id"])
    finally:
        await admin.close()


async def _parse(message: tuple[Any, ...]) -> KafkaMessage:
    """Wrap raw records without reading headers or values; a malformed one becomes a dead letter later."""
    first, last = message[0], message[-1]
    return KafkaMessage(
        body=b"",
        headers={},
        raw_message=message,
        message_id=f"{first.offset}-{last.offset}-{first.timestamp}",
        correlation_id=f"{first.topic}-{first.partition}-{first.offset}",
        consumer=None,  # type: ignore[arg-type] # needed only for acknowledgement, which is not used
    )


async def _decode(message: KafkaMessage) -> Any:  # async: a sync decoder costs a thread per message
    return message.raw_message


class Subscription(Partitions, ConsumerRebalanceListener):  # type: ignore[misc]
    """One topic as one service consumes it in a group. Records are applied only while their partition is owned."""

    def __init__(
        self,
        broker: KafkaBroker,
        database: Database,
        consumer: Consumer,
        *,
        prefix: str,
        instance: str,
        wake: Callable[[], None],
        session_seconds: float = 10.0,
        heartbeat_seconds: float = 1.0,
    ) -> None:
        """`instance` names the replica for static membership; if empty, partitions move as soon as it leaves."""
        super().__init__(database, consumer, prefix=prefix, cluster="", wake=wake)
        self.session_seconds = session_seconds
        self.failures: dict[int, int] = {}  # partition → consecutive failures
        self._tables: tuple[dict[int, Any], ...] = (
            self.owned,
            self.assigned,
            self.targets,
            self.sought,
            self.failures,
            self.stopped,
        )
        self._assignment_tasks: set[asyncio.Task[None]] = set()  # claims, and waits for a rebalance
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
            fetch_max_wait_ms=FETCH_WAIT_MS,
            session_timeout_ms=int(session_seconds * 1000),
            heartbeat_interval_ms=int(heartbeat_seconds * 1000),
        )
        self.subscriber(self.consume)

    @property
    def client(self) -> Any:
        return self.subscriber.consumer

    # Partition assignment.

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Release the partitions, then wait up to 5 s for the running batch; the next epoch fences a later commit."""
        self._reset(tp.partition for tp in revoked)
        cancelled = self._cancel_assignment_tasks()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                # A claim that commits after that of the successor would fence it; wait for every claim to end.
                await asyncio.gather(*cancelled, return_exceptions=True)
                async with self._running:
                    pass

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        if self._stopping:
            return
        now = monotonic_seconds()
        for tp in assigned:
            self.assigned[tp.partition] = now
            self._start(self._claim(tp.partition))
        self.gauge()
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._report())

    def _reset(self, partitions: Iterable[int]) -> None:
        for partition in list(partitions):
            for table in self._tables:
                table.pop(partition, None)
        self.gauge()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._assignment_tasks.add(task)
        task.add_done_callback(self._assignment_tasks.discard)

    def _cancel_assignment_tasks(self) -> list[asyncio.Task[None]]:
        tasks = list(self._assignment_tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def _claim(self, partition: int) -> None:
        """Claim an assigned partition, retrying until it is owned. Cancelled when the assignment ends."""
        for attempt in count(1):
            try:
                if await self._try_claim(partition):
                    return
                await asyncio.sleep(STOPPED_SECONDS)
            except Exception as error:
                if attempt % LOG_EVERY == 1:
                    outage.warn(LOG, "claim failed, retrying", error, topic=self.name, partition=partition)
                await asyncio.sleep(backoff_seconds(attempt))

    async def _try_claim(self, partition: int) -> bool:
        """Raise the epoch, check the position, seek, then own. False if only an operator can resume the partition."""
        tp = self.at(partition)
        self.cluster = await cluster_of(self.client)  # a group that was assigned anew may be of another cluster
        async with self.database.acquire() as db:
            claimed, cluster = await claim(db, self.consumer.topic.name, partition, self.cluster)
        begin = (await self.client.beginning_offsets([tp]))[tp]
        end = (await self.client.end_offsets([tp]))[tp]
        owned = await self.resume(partition, claimed, cluster, begin, end)
        if owned is None:
            return False
        self.client.seek(tp, owned.next_offset)
        self.owned[partition] = owned
        self.gauge()
        return True

    async def _request_rebalance(self) -> None:
        """Rejoin the group after another process claimed a partition that is still assigned to this one.

        An expelled member learns of it within a session. Claiming again without an assignment could fence the
        rightful owner; a new assignment resolves it.
        """
        await asyncio.sleep(self.session_seconds)
        LOG.warning("partition fenced but still assigned, rejoining the group", topic=self.name)
        self.client._coordinator.request_rejoin()

    # Records.

    async def consume(self, records: Sequence[Any]) -> None:
        """Apply fetched records, in one transaction for all their partitions. If that fails, in one for each partition,
        since one that was claimed by another process, or whose rows are locked, must not delay the others."""
        async with self._running:
            portions = []
            for partition, group_ in groupby(records, key=attrgetter("partition")):
                if (portion := await self._portion(partition, list(group_))) is not None:
                    portions.append(portion)
            if len(portions) > 1 and await self._apply_together(portions):
                return
            for portion in portions:
                await self._apply_alone(portion)

    async def _portion(self, partition: int, raw: list[Any]) -> Portion | None:
        """Records of a partition that may be applied; None if there are none, or the log cannot be read."""
        mine = self.owned.get(partition)
        try:
            return await self.portion(partition, raw)
        except Exception as error:
            outage.warn(LOG, "position not checked", error, topic=self.name, partition=partition)
            if mine is not None:
                await self._recover(partition, mine, fenced=isinstance(error, Fenced))
            return None

    async def _apply_together(self, portions: Sequence[Portion]) -> bool:
        """Apply records of several partitions in one transaction; False if it failed."""
        try:
            async with self.database.acquire() as db:
                await apply_together(db, self.consumer, portions)
        except Exception as error:
            LOG.info("batch rolled back, applying each partition alone", topic=self.name, error=repr(error))
            return False
        for portion in portions:
            self._applied(portion.partition, Owned(portion.owned.epoch, portion.end))
        self.wake()
        return True

    async def _apply_alone(self, portion: Portion) -> None:
        """Apply records of one partition."""
        try:
            async with self.database.acquire() as db:
                after = await apply(db, self.consumer, portion.owned, portion.records)
        except Exception as error:
            outage.warn(LOG, "batch rolled back", error, topic=self.name, partition=portion.partition)
            await self._recover(portion.partition, portion.owned, fenced=isinstance(error, Fenced))
            return
        self._applied(portion.partition, after)
        self.wake()

    def _applied(self, partition: int, after: Owned) -> None:
        self.sought.pop(partition, None)
        self.failures.pop(partition, None)
        if self._still(partition, after):  # otherwise it was reassigned meanwhile
            self.owned[partition] = after

    def _still(self, partition: int, mine: Owned) -> bool:
        now = self.owned.get(partition)
        return now is not None and now.epoch == mine.epoch

    async def _recover(self, partition: int, mine: Owned, *, fenced: bool) -> None:
        """Back off, read the position again under the same epoch, and seek; after a rollback or an unknown commit."""
        self.sought.pop(partition, None)
        if not fenced:
            self.failures[partition] = self.failures.get(partition, 0) + 1
            await asyncio.sleep(backoff_seconds(self.failures[partition]))
        for attempt in count(1):
            if not self._still(partition, mine):
                return  # revoked, or claimed again by this process
            try:
                async with self.database.acquire() as db:
                    stored = await reread(db, self.consumer.topic.name, partition, mine.epoch)
                break
            except Exception as error:
                if attempt % LOG_EVERY == 1:
                    outage.warn(LOG, "position cannot be read, retrying", error, topic=self.name, partition=partition)
                await asyncio.sleep(backoff_seconds(attempt))
        if not self._still(partition, mine):
            return
        if stored is None:
            del self.owned[partition]
            self.assigned[partition] = monotonic_seconds()
            self.gauge()
            self._start(self._request_rebalance())
            return
        with contextlib.suppress(KafkaError):  # revoked meanwhile: the next owner seeks for itself
            self.client.seek(self.at(partition), stored.next_offset)
            self.owned[partition] = stored

    # Lag reports.

    async def _report(self) -> None:
        """Commit positions to Kafka for lag tools; best effort, never read back."""
        reported: dict[TopicPartition, int] = {}
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            reported = await self._report_once(reported)

    async def _report_once(self, reported: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        positions = {TopicPartition(self.name, p): owned.next_offset for p, owned in self.owned.items()}
        if not positions or positions == reported:
            return reported
        try:
            await self.client.commit(positions)
        except (KafkaError, TimeoutError, OSError) as error:
            LOG.info("positions not committed to Kafka", topic=self.name, error=repr(error))
            return reported
        return positions

    async def stop(self) -> None:
        """Start no further batch; the broker's stop waits for the running one."""
        self._stopping = True
        if self._reporting is not None:
            self._reporting.cancel()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._report_once({}), 1)
        self._reset(self.assigned)
        await asyncio.gather(*self._cancel_assignment_tasks(), return_exceptions=True)
