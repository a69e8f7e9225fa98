"""Leader loop: one replica, the leader, reads whole topics from Kafka while the others are on standby.

Every replica that reaches the broker bids for the leader row once a second. The leader reads all partitions of all
topics together: one read, one commit. There is no consumer group, but positions are committed to Kafka under the
group names, for lag tools.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import Final, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetCommitRequest

from slipway_api.events.topics import group
from slipway_api.http.service import LeaderStatus
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.errors import Transient
from slipway_common.database import outage
from slipway_common.database.postgres import Connection, Database, is_infrastructure
from slipway_common.messaging import kafka, leadership
from slipway_common.messaging.clients import Kafka, client_options
from slipway_common.messaging.consume import Consumer, Owned, Place, Portion, reread_all
from slipway_common.messaging.leadership import Leadership, LeadershipLost, Work
from slipway_common.messaging.partitions import Partitions, closed, cluster_of, partitions_of, was_cancelled
from slipway_common.observability.telemetry import logger

LOG = logger(__name__)
Done = TypeVar("Done")

RENEW_SECONDS: Final = 2.0
BID_SECONDS: Final = 1.0
BROKER_TIMEOUT_SECONDS: Final = 15.0  # a leader without an answer from the broker for this long steps down
WAIT_SECONDS_MAX: Final = 0.5  # for records when no timer is due; also the longest a stop waits
TURN_SECONDS: Final = 0.06  # minimum between turns, so that events share one; one that comes alone does not wait
MORE_MS: Final = 5  # for an answer of the broker
POLL_RECORDS: Final = 40_000  # of a backlog: a turn writes each subject once, so large turns write less
PARTITION_BYTES: Final = 4 * 2**20
FETCH_BYTES: Final = 32 * 2**20


class NotLeader(Exception):
    """The operation is only possible on the leader."""


class LeaderLoop:
    """Runs the work of a service in one replica at a time. Call `run` for the lifetime of the process."""

    def __init__(
        self, work: Work, *, service: str, kafka: Kafka, prefix: str, instance: str, wake: Callable[[], None]
    ) -> None:
        self.leadership = Leadership(work, service, instance)
        self.topics = work.topics
        self.kafka = kafka
        self.prefix = prefix
        self.wake = wake
        self.readings: list[Partitions] = []
        self._stopping = asyncio.Event()
        self._reset()

    def _reset(self) -> None:
        self.leadership.reset()
        self.status: LeaderStatus | None = None
        self._ready = False
        self._failures = 0
        self._reached = 0.0
        self._read_to: dict[Place, tuple[float, float]] = {}  # time of the newest record applied; when (monotonic)
        self._broker_answered_at = self._checked_at = monotonic_seconds()
        self._replaced = False  # the broker, by one of another cluster
        for reading in self.readings:
            for table in (reading.assigned, reading.owned, reading.targets, reading.sought, reading.stopped):
                table.clear()
            reading.gauge()
        self.readings = []

    # Called by other tasks.

    def working(self) -> bool:
        """True if this process leads and makes progress; it sends heartbeats only then."""
        stalled = self.leadership.stalled_seconds() >= leadership.STALE_SECONDS
        return self._ready and not stalled and self._broker_silence_seconds() < BROKER_TIMEOUT_SECONDS

    def reasons(self) -> list[str]:
        """Reasons why the process is not ready; empty on a ready leader or standby."""
        if not self.readings:
            return ["the broker is unavailable or lacks the topics"]
        if self.status is None:
            return ["the leader is not known yet"]
        if self.leadership.epoch and not self._ready:
            return ["taking over as leader"]
        if self.leadership.epoch and not self.working():
            broker = f"last answer of the broker {self._broker_silence_seconds():.0f} s ago"
            return [f"leader, but stalled: {broker}, last commit {self.leadership.stalled_seconds():.0f} s ago"]
        return []

    async def settle(
        self, database: Database, topic: str, how: Callable[[Connection, Consumer], Awaitable[Done]]
    ) -> Done:
        """Settle dead letters of a topic in a turn of its own. Raises NotLeader, and any error of `how`."""
        if not self._ready:
            leader = self.status.instance if self.status is not None else ""
            raise NotLeader(f"instance {leader} is the leader")
        (consumer,) = (reading.consumer for reading in self.readings if reading.consumer.topic.name == topic)
        _, done = await self.leadership.turn(database, how=lambda db: how(db, consumer), reached=self._reached)
        self.wake()
        return done  # type: ignore[no-any-return] # the result of `how`

    def _broker_silence_seconds(self) -> float:
        return monotonic_seconds() - self._broker_answered_at

    # Election.

    async def run(self, database: Database) -> None:
        """Bid for leadership and lead, again after every error, until stopped."""
        failures = 0
        while not self._stopping.is_set():
            try:
                async with contextlib.AsyncExitStack() as stack:
                    await self._connect(stack, database)
                    await self._bid(database)
                    failures = 0
                    stack.push_async_callback(self.leadership.release, database)
                    if self.leadership.epoch:
                        await self._lead(database)
            except LeadershipLost as error:
                LOG.warning("leadership lost to another instance", reason=str(error))
            except (Exception, asyncio.CancelledError) as error:
                if was_cancelled(error):
                    raise
                failures += 1
                outage.warn(LOG, "leader loop restarting after an error", error)
                await asyncio.sleep(kafka.backoff_seconds(failures))
            finally:
                self._reset()

    def stop(self) -> None:
        """Finish the turn in progress and release leadership."""
        self._stopping.set()

    async def _connect(self, stack: contextlib.AsyncExitStack, database: Database) -> None:
        """Connect to the broker; required before a bid."""
        self._cluster = await kafka.cluster_id(self.kafka)
        self._client = AIOKafkaConsumer(
            **client_options(self.kafka),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=kafka.FETCH_WAIT_MS,
            max_partition_fetch_bytes=PARTITION_BYTES,
            fetch_max_bytes=FETCH_BYTES,
        )
        self._admin = AIOKafkaAdminClient(**client_options(self.kafka))
        for client, close in ((self._client, self._client.stop), (self._admin, self._admin.close)):
            stack.push_async_callback(closed, close)
            await client.start()
        readings = []
        for topic in self.topics:
            consumer = Consumer(self.leadership.service, topic, self.leadership.work.handle)
            reading = Partitions(database, consumer, prefix=self.prefix, cluster=self._cluster, wake=self.wake)
            reading.client = self._client
            readings.append(reading)
        self._partitions = {
            (reading.consumer.topic.name, partition): reading
            for reading in readings
            for partition in await partitions_of(self._client, reading.name)
        }
        self.readings = readings

    async def _bid(self, database: Database) -> None:
        """Bid until this process leads or is stopped."""
        while not self._stopping.is_set():
            try:
                self.status = await self.leadership.bid(database)
            except Exception as error:
                if not is_infrastructure(error):
                    raise
                outage.warn(LOG, "bid for leadership failed", error)
            if self.leadership.epoch:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BID_SECONDS):
                    await self._stopping.wait()

    # Leading.

    async def _lead(self, database: Database) -> None:
        monitoring = asyncio.create_task(self._monitor_broker())
        try:
            await self._take_over(database)
            LOG.info("leader", epoch=self.leadership.epoch, instance=self.leadership.instance)
            while not self._stopping.is_set():
                if self._broker_silence_seconds() > BROKER_TIMEOUT_SECONDS:
                    raise Transient(f"the broker has not answered for {BROKER_TIMEOUT_SECONDS:g} s")
                if self._replaced:
                    raise Transient("the broker belongs to another cluster now")
                try:
                    await self._step(database)
                except LeadershipLost:
                    raise
                except Exception as error:
                    self.leadership.needs_reload = True
                    self._failures += 1
                    outage.warn(LOG, "turn rolled back", error)
                    await asyncio.sleep(kafka.backoff_seconds(self._failures))
        finally:
            monitoring.cancel()
            await asyncio.gather(monitoring, return_exceptions=True)

    async def _take_over(self, database: Database) -> None:
        positions = await self.leadership.take_over(database, list(self._partitions), self._cluster)
        now = monotonic_seconds()
        for (_, partition), reading in self._partitions.items():
            reading.assigned[partition] = now
        self._client.assign([reading.at(partition) for (_, partition), reading in self._partitions.items()])
        self._client.pause(*self._client.assignment())
        await self._seek(positions)
        self._ready = True

    async def _step(self, database: Database) -> None:
        if self.leadership.needs_reload:
            await self._seek(await self.leadership.reload(database))
        if any(reading.stopped for reading in self.readings):
            await self._check_stopped(database)
        shared_seconds = max(0.0, TURN_SECONDS - self.leadership.idle_seconds())
        await asyncio.sleep(shared_seconds)
        portions = await self._read(is_shared=shared_seconds > 0)
        self._reached = self._reached_with(portions)
        due = self.leadership.is_due() and self._reached == inf
        if not (portions or due or self.leadership.idle_seconds() >= RENEW_SECONDS):
            return
        published, _ = await self.leadership.turn(database, portions, reached=self._reached)
        for portion in portions:
            place = portion.topic.name, portion.partition
            reading = self._partitions[place]
            self._read_to[place] = portion.records[-1].timestamp_ms / 1000, monotonic_seconds()
            reading.sought.pop(portion.partition, None)
            reading.owned[portion.partition] = Owned(portion.owned.epoch, portion.end)
        self._failures = 0
        if published or portions:
            self.wake()

    async def _check_stopped(self, database: Database) -> None:
        """Read the positions of stopped partitions again: an operator may have adopted new ones."""
        if monotonic_seconds() - self._checked_at < kafka.STOPPED_SECONDS:
            return
        self._checked_at = monotonic_seconds()
        stopped = [(reading.consumer.topic.name, p) for reading in self.readings for p in reading.stopped]
        async with database.acquire() as db:
            positions = await reread_all(db, {place: self.leadership.epochs[place] for place in stopped})
        await self._seek(positions)

    async def _seek(self, positions: Mapping[Place, tuple[Owned, str]]) -> None:
        """Resume partitions at their stored positions; those that cannot resume stay paused."""
        tps = {place: self._partitions[place].at(place[1]) for place in positions}
        begins = await self._client.beginning_offsets(list(tps.values()))
        ends = await self._client.end_offsets(list(tps.values()))
        for place, (stored, cluster) in positions.items():
            reading, partition, tp = self._partitions[place], place[1], tps[place]
            reading.sought.pop(partition, None)
            owned = await reading.resume(partition, stored, cluster, begins[tp], ends[tp])
            if owned is None:
                reading.owned.pop(partition, None)
                continue
            self._client.seek(tp, owned.next_offset)
            self._client.resume(tp)
            reading.owned[partition] = owned
            self._read_to[place] = 0.0, monotonic_seconds()
        for reading in self.readings:
            reading.gauge()

    async def _read(self, *, is_shared: bool) -> Sequence[Portion]:
        """Poll records, by topic and partition in order; waits until records arrive or a turn is due. A turn that
        `is_shared` has waited for more of them."""
        wait_seconds = min(RENEW_SECONDS - self.leadership.idle_seconds(), WAIT_SECONDS_MAX)
        if (due := self.leadership.work.due()) is not None and self._reached == inf:
            wait_seconds = min(wait_seconds, due - self.leadership.now())
        timeout_ms = int(max(0.0, wait_seconds) * 1000)
        fetched = await self._client.getmany(timeout_ms=timeout_ms, max_records=POLL_RECORDS)
        if fetched:
            self._broker_answered_at = monotonic_seconds()
        left = POLL_RECORDS - sum(map(len, fetched.values()))
        if fetched and is_shared and left > 0:
            # The client asks for more of a partition only once it has handed over what it has.
            for tp, records in (await self._client.getmany(timeout_ms=MORE_MS, max_records=left)).items():
                fetched[tp] = [*fetched.get(tp, ()), *records]
        raw = {(tp.topic, tp.partition): records for tp, records in fetched.items()}
        portions = []
        for (_, partition), reading in self._partitions.items():
            records = raw.get((reading.name, partition))
            if records and (portion := await reading.portion(partition, records)) is not None:
                portions.append(portion)
        return portions

    def _reached_with(self, portions: Sequence[Portion]) -> float:
        """Time before which every known record is read once `portions` are applied; infinite if none is unread.

        A partition that returns nothing for long is ignored: perhaps no broker serves it, or its log ends with
        control batches."""
        new = {(portion.topic.name, portion.partition): portion for portion in portions}
        reached, now = inf, monotonic_seconds()
        for place, reading in self._partitions.items():
            read_to, read_at = self._read_to.get(place, (0.0, now))
            owned, portion = reading.owned.get(place[1]), new.get(place)
            if owned is None or (portion is None and now - read_at > BROKER_TIMEOUT_SECONDS):
                continue
            next_offset = owned.next_offset if portion is None else portion.end
            end = max(reading.targets.get(place[1], 0), self._client.highwater(reading.at(place[1])) or 0)
            if next_offset < end:
                reached = min(reached, read_to if portion is None else portion.records[-1].timestamp_ms / 1000)
        return reached

    # Broker.

    async def _monitor_broker(self) -> None:
        """Commit positions to Kafka for lag tools (best effort, never read back) and track that the broker answers, and
        that it is of the same cluster."""
        reported: dict[str, dict[int, int]] = {}
        while True:
            await asyncio.sleep(kafka.REPORT_SECONDS)
            try:
                for reading in self.readings:
                    positions = {partition: owned.next_offset for partition, owned in reading.owned.items()}
                    if positions and positions != reported.get(reading.name):
                        await self._report(reading, positions)
                        reported[reading.name] = positions
                await self.readings[0].ends()
                self._broker_answered_at = monotonic_seconds()
                self._replaced = await cluster_of(self._client) != self._cluster
            except (KafkaError, TimeoutError, OSError) as error:
                LOG.info("broker unavailable", error=repr(error))

    async def _report(self, reading: Partitions, positions: Mapping[int, int]) -> None:
        """Commit offsets of a group without members; the client library has no call for that."""
        group_id = self.prefix + group(self.leadership.service, reading.consumer.topic)
        rows = [(partition, offset, "") for partition, offset in positions.items()]
        request = OffsetCommitRequest(
            group_id,
            OffsetCommitRequest.DEFAULT_GENERATION_ID,
            "",
            OffsetCommitRequest.DEFAULT_RETENTION_TIME,
            [(reading.name, rows)],
        )
        response = await self._admin._send_request_to_node(await self._admin.find_coordinator(group_id), request)
        for _, partitions in response.topics:
            for _, code in partitions:
                if code:
                    raise for_code(code)(group_id)
