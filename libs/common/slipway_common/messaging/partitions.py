"""Partitions of one topic as one process reads them, and the checks of a stored position against the log.

A partition stops and waits for an operator if its stored position belongs to another cluster or lies beyond the end
of the log. Offsets that were deleted before they were read are recorded as a gap, and reading continues.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from slipway_api.events.topics import Topic
from slipway_common.base.audited import AuditedKind
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database import audit
from slipway_common.database.postgres import Database
from slipway_common.messaging import fetched
from slipway_common.messaging.consume import (
    FOREIGN_POSITION,
    Consumer,
    Owned,
    Portion,
    adopt,
    positions,
    record_gap,
    skip,
)
from slipway_common.messaging.records import Record
from slipway_common.observability.telemetry import UNOWNED, logger

LOG = logger(__name__)
fetched.install()

END_OFFSETS_SECONDS: Final = 2.0


async def partitions_of(client: Any, name: str) -> list[int]:
    """Partitions of a topic, from a consumer's metadata. Waits for the topic; raises KafkaError if it never appears."""
    return sorted(await client._client._wait_on_metadata(name))


async def cluster_of(consumer: Any) -> str:
    """Id of the cluster that a consumer is connected to now; another one may have taken its address. Raises KafkaError
    if it is unavailable."""
    client = consumer._client
    if (node := client.get_random_node()) is None:
        raise KafkaConnectionError("no broker is known")
    return str((await client.send(node, MetadataRequest([]))).cluster_id)


def record_of(topic: Topic, raw: Any) -> Record:
    """A record of the client."""
    return Record(topic.name, raw.partition, raw.offset, raw.key, raw.value, raw.headers, raw.timestamp)


def was_cancelled(error: BaseException) -> bool:
    """True if the current task itself was cancelled. A Kafka client whose connection broke may leak the CancelledError
    of one of its own tasks."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def closed(close: Callable[[], Awaitable[Any]], seconds: float = 2.0) -> None:
    """Close a client, ignoring errors; waits at most `seconds` for a broker that is unavailable."""
    task = asyncio.ensure_future(close())
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        LOG.info("client did not close cleanly", error=repr(error))


class Partitions:
    """One topic as one process reads it. Records of a partition are applied only while it is owned."""

    client: Any
    """The aiokafka consumer that reads the topic; None before it is connected."""

    def __init__(
        self, database: Database, consumer: Consumer, *, prefix: str, cluster: str, wake: Callable[[], None]
    ) -> None:
        self.database = database
        self.consumer = consumer
        self.name = prefix + consumer.topic.name
        self.cluster = cluster
        self.wake = wake
        self.assigned: dict[int, float] = {}  # partition → when it was assigned, or last owned (monotonic)
        self.owned: dict[int, Owned] = {}
        self.targets: dict[int, int] = {}  # partition → end offset seen when it was claimed
        self.sought: dict[int, int] = {}  # partition → position sought again because a batch began above it
        self.stopped: dict[int, str] = {}  # partition → reason; only an operator can resume it

    def at(self, partition: int) -> TopicPartition:
        return TopicPartition(self.name, partition)

    # Stored positions and the log.

    async def resume(self, partition: int, owned: Owned, cluster: str, begin: int, end: int) -> Owned | None:
        """Check the stored position against a log from `begin` to `end`, and return the position to resume from.

        None if only an operator can resume the partition. The caller seeks first, then marks the partition owned."""
        if cluster != self.cluster or end < owned.next_offset:
            await self._stop_partition(
                partition,
                f"stored position {owned.next_offset} belongs to cluster {cluster}; this is cluster {self.cluster} "
                f"with offsets {begin}…{end}; run `slipway topics adopt` to set a new position",
            )
            return None
        if begin > owned.next_offset:
            async with self.database.acquire() as db:
                # A first claim starts at the beginning of the log; nothing was lost.
                owned = await skip(db, self.consumer, partition, owned, begin, loss=owned.epoch > 1)
        self.stopped.pop(partition, None)
        self.targets[partition] = end
        return owned

    async def _stop_partition(self, partition: int, reason: str) -> None:
        if partition not in self.stopped:
            place = (self.consumer.topic.name, partition)
            async with self.database.acquire() as db, db.transaction():
                await record_gap(db, self.consumer.service, place, FOREIGN_POSITION, reason)
            self.wake()
        self.stopped[partition] = reason

    async def adopt(self, partition: int, *, at_end: bool, by: str) -> int:
        """Reset a stopped partition to the beginning or the end of this cluster's log; its reader resumes from there.

        Returns the new position; raises KeyError if the partition is not stopped in this process."""
        reason, tp = self.stopped[partition], self.at(partition)
        offsets = await (self.client.end_offsets([tp]) if at_end else self.client.beginning_offsets([tp]))
        place = f"{self.consumer.topic.name}/{partition}"
        async with self.database.acquire() as db, db.transaction():
            await adopt(db, self.consumer.topic.name, partition, self.cluster, offsets[tp])
            await audit.record_command(
                db, AuditedKind.PARTITION, place, "adopt", by=by, reason=reason, next_offset=int(offsets[tp])
            )
        LOG.warning("position adopted", topic=self.name, partition=partition, next_offset=offsets[tp], replaces=reason)
        return int(offsets[tp])

    # Records.

    async def portion(self, partition: int, raw: Sequence[Any]) -> Portion | None:
        """Select the fetched records that may be applied; None if there are none, or the partition is not owned."""
        mine = self.owned.get(partition)
        if mine is None:
            return None  # not claimed, or not yet; the claim seeks back to the stored position
        if raw[0].offset < mine.next_offset:
            raw = [record for record in raw if record.offset >= mine.next_offset]
            if not raw:
                return None
        start = mine
        if raw[0].offset > mine.next_offset:
            if self._fetched_before_the_seek(partition, mine):
                return None
            start = await self._skip_gap(partition, mine, raw[0].offset)
        topic = self.consumer.topic
        return Portion(topic, partition, start, [record_of(topic, r) for r in raw])

    def _fetched_before_the_seek(self, partition: int, mine: Owned) -> bool:
        """True if a batch above the position may predate the last seek. Seeks again once; the next read counts."""
        if self.sought.get(partition) == mine.next_offset:
            return False
        self.client.seek(self.at(partition), mine.next_offset)
        self.sought[partition] = mine.next_offset
        return True

    async def _skip_gap(self, partition: int, mine: Owned, first: int) -> Owned:
        """Position to resume from if the log has no record at the current one; records loss by retention."""
        if self.consumer.topic.compacted:
            return mine
        tp = self.at(partition)
        if (await self.client.beginning_offsets([tp]))[tp] <= mine.next_offset:
            return mine  # control records of another producer's transaction
        async with self.database.acquire() as db:
            return await skip(db, self.consumer, partition, mine, first, loss=True)

    # Called by other tasks.

    def caught_up(self) -> bool:
        """True if every assigned partition was read up to the end offset seen when it was claimed."""
        return self.client is not None and all(
            (owned := self.owned.get(p)) is not None and owned.next_offset >= self.targets.get(p, 0)
            for p in self.assigned
        )

    def unowned_for_seconds(self) -> float:
        """Seconds for which any assigned partition has not been owned; 0 if all are owned."""
        now = monotonic_seconds()
        return max((now - since for p, since in self.assigned.items() if p not in self.owned), default=0.0)

    async def work_waits(self) -> bool:
        """True if an assigned partition that is not owned needs an operator, or has records that are not applied. False
        while the broker or the database is unavailable, since nothing is known then."""
        unowned = [partition for partition in self.assigned if partition not in self.owned]
        if self.stopped:
            return True
        try:
            async with asyncio.timeout(END_OFFSETS_SECONDS), self.database.acquire() as db:
                ends, applied = await self.ends(), await positions(db, self.consumer.topic.name)
        except Exception as error:
            LOG.info("records that wait are not known", topic=self.name, error=repr(error))
            return False
        return any(ends.get(partition, 0) > applied.get(partition, 0) for partition in unowned)

    async def ends(self) -> dict[int, int]:
        """Current end offset of each assigned partition. Raises KafkaError if the broker is unavailable."""
        assigned = [self.at(partition) for partition in self.assigned]
        return {tp.partition: end for tp, end in (await self.client.end_offsets(assigned)).items()} if assigned else {}

    async def lag(self) -> int | None:
        """Records of the owned partitions that are not applied yet; None while the broker is unavailable."""
        try:
            async with asyncio.timeout(END_OFFSETS_SECONDS):
                ends = await self.ends()
        except (KafkaError, TimeoutError, OSError):
            return None
        return sum(max(0, ends.get(p, 0) - owned.next_offset) for p, owned in self.owned.items())

    def gauge(self) -> None:
        UNOWNED.labels(self.consumer.topic.name).set(sum(p not in self.owned for p in self.assigned))
