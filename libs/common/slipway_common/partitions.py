"""What one process knows of the partitions of a topic that it reads, and how a stored position meets the log.

Knows how to tell what can be gone on with from what only an operator can decide: another cluster, or a log that ends
below the position, stops a partition; offsets that the log no longer has are a recorded loss.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from slipway_common.clock import monotonic_seconds
from slipway_common.consume import Consumer, Owned, Portion, adopt, record_gap, skip
from slipway_common.postgres import Pool
from slipway_common.records import Record
from slipway_common.telemetry import UNOWNED, logger

LOG = logger(__name__)

END_OFFSETS_SECONDS: Final = 2.0


async def partitions_of(client: Any, name: str) -> list[int]:
    """The partitions of a topic, by a consumer's eyes. Waits for the topic; raises KafkaError when it does not come."""
    return sorted(await client._client._wait_on_metadata(name))


def was_cancelled(error: BaseException) -> bool:
    """Whether this task is told to end. A client whose connection broke may let the end of a task of its own out, which
    looks the same."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def closed(close: Callable[[], Awaitable[Any]], seconds: float = 2.0) -> None:
    """Close a client whatever it meets: a broker that is gone is not waited for."""
    task = asyncio.ensure_future(close())
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        LOG.info("client was not closed in order", error=repr(error))


class Partitions:
    """One topic as one process reads it. A partition is written for only while it is owned."""

    client: Any
    """The aiokafka consumer that reads the topic; None until there is one."""

    def __init__(self, pool: Pool, consumer: Consumer, *, prefix: str, cluster: str, ring: Callable[[], None]) -> None:
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

    def at(self, partition: int) -> TopicPartition:
        return TopicPartition(self.name, partition)

    # A stored position and the log.

    async def go_on(self, partition: int, owned: Owned, cluster: str, begin: int, end: int) -> Owned | None:
        """Where to go on in a log from `begin` to `end`, after a stored position of `cluster`; None: only an operator
        can go on. The caller seeks, and only then owns."""
        if cluster != self.cluster or end < owned.next_offset:
            await self._stop_partition(
                partition,
                f"stored position {owned.next_offset} of cluster {cluster}; this is cluster {self.cluster} "
                f"with offsets {begin}…{end}; `slipway topics adopt` rebases it",
            )
            return None
        if begin > owned.next_offset:
            async with self.pool.acquire() as db:
                # A first claim begins where the topic begins: nothing of it was lost.
                owned = await skip(db, self.consumer, partition, owned, begin, loss=owned.epoch > 1)
        self.stopped.pop(partition, None)
        self.targets[partition] = end
        return owned

    async def _stop_partition(self, partition: int, why: str) -> None:
        if partition not in self.stopped:
            place = (self.consumer.topic.name, partition)
            async with self.pool.acquire() as db, db.transaction():
                await record_gap(db, self.consumer.service, place, "foreign-position", why)
            self.ring()
        self.stopped[partition] = why

    async def adopt(self, partition: int, *, at_end: bool) -> int:
        """Rebase a stopped partition onto this cluster's log, at its beginning or end; whoever waits for it goes on
        from there. Returns the new position; raises KeyError for a partition that is not stopped here."""
        why, tp = self.stopped[partition], self.at(partition)
        offsets = await (self.client.end_offsets([tp]) if at_end else self.client.beginning_offsets([tp]))
        async with self.pool.acquire() as db:
            await adopt(db, self.consumer.topic.name, partition, self.cluster, offsets[tp])
        LOG.warning("position adopted", topic=self.name, partition=partition, next_offset=offsets[tp], instead_of=why)
        return int(offsets[tp])

    # Records.

    async def portion(self, partition: int, raw: Sequence[Any]) -> Portion | None:
        """What of fetched records may be applied; None: nothing, not owned, or fetched before the seek."""
        mine = self.owned.get(partition)
        if mine is None:
            return None  # not ours, or not yet: whoever claims it seeks back to here
        if raw[0].offset < mine.next_offset:
            raw = [record for record in raw if record.offset >= mine.next_offset]
            if not raw:
                return None
        start = mine
        if raw[0].offset > mine.next_offset:
            if self._fetched_before_the_seek(partition, mine):
                return None
            start = await self._beyond_the_gap(partition, mine, raw[0].offset)
        topic = self.consumer.topic
        records = [Record(topic.name, partition, r.offset, r.key, r.value, r.headers, r.timestamp) for r in raw]
        return Portion(topic, partition, start, records)

    def _fetched_before_the_seek(self, partition: int, mine: Owned) -> bool:
        """Of a batch above the position. True at first: it is sought again, and a read after that seek is believed."""
        if self.sought.get(partition) == mine.next_offset:
            return False
        self.client.seek(self.at(partition), mine.next_offset)
        self.sought[partition] = mine.next_offset
        return True

    async def _beyond_the_gap(self, partition: int, mine: Owned, first: int) -> Owned:
        """Where to go on when the log has nothing at the position: compaction made it, or retention, a loss."""
        if self.consumer.topic.compacted:
            return mine
        tp = self.at(partition)
        if (await self.client.beginning_offsets([tp]))[tp] <= mine.next_offset:
            return mine  # markers of a foreign transaction
        async with self.pool.acquire() as db:
            return await skip(db, self.consumer, partition, mine, first, loss=True)

    # What others ask.

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

    async def ends(self) -> dict[int, int]:
        """Where each assigned partition ends now, as the broker says. Raises KafkaError when it cannot be asked."""
        asked = [self.at(partition) for partition in self.assigned]
        return {tp.partition: end for tp, end in (await self.client.end_offsets(asked)).items()} if asked else {}

    async def lag(self) -> int | None:
        """Records of the owned partitions that are not applied yet; None while the broker does not say."""
        try:
            async with asyncio.timeout(END_OFFSETS_SECONDS):
                ends = await self.ends()
        except (KafkaError, TimeoutError, OSError):
            return None
        return sum(max(0, ends.get(p, 0) - owned.next_offset) for p, owned in self.owned.items())

    def gauge(self) -> None:
        UNOWNED.labels(self.consumer.topic.name).set(sum(p not in self.owned for p in self.assigned))
