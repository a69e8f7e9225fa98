"""Kafka → owner.Owner: the one way in which one replica reads whole topics, while the others stand by.

Whoever reaches the broker bids for the owner row each second, and once it owns that reads all partitions of all topics
as one: one read, one commit. There is no group, but the positions are told to Kafka under the names that groups would
have, for lag tools.
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

from slipway_common import kafka, owner
from slipway_common.clock import monotonic_seconds
from slipway_common.consume import Consumer, Owned, Place, Portion, reread_all
from slipway_common.errors import Transient
from slipway_common.owner import Deposed, Owner, Standing, Work
from slipway_common.partitions import Partitions, closed, partitions_of, was_cancelled
from slipway_common.postgres import Connection, Pool, is_infrastructure
from slipway_common.telemetry import logger
from slipway_common.topics import group

LOG = logger(__name__)
Done = TypeVar("Done")

RENEW_SECONDS: Final = 2.0
BID_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 15.0  # whom the broker does not answer for so long lets somebody else try
WAIT_SECONDS_MAX: Final = 0.5  # for records, when nothing else is due; a stop waits as long
TURN_SECONDS: Final = 0.02  # from one turn to the next at least: what comes one by one is taken together
POLL_RECORDS: Final = 40_000  # of a backlog: the more facts a turn has of one subject, the less it writes for each
# The fetcher asks for a partition again only when its last request has been answered: short waits keep it close by.
FETCH_WAIT_MS: Final = 50
PARTITION_BYTES: Final = 4 * 2**20
FETCH_BYTES: Final = 32 * 2**20


class StandingBy(Exception):
    """Only the active instance does that."""


class Exclusive:
    """One process that does a work alone while it is active. `run` it for as long as the process lives."""

    def __init__(
        self, work: Work, *, service: str, bootstrap_servers: str, prefix: str, instance: str, ring: Callable[[], None]
    ) -> None:
        self.owner = Owner(work, service, instance)
        self.topics = work.topics
        self.bootstrap_servers = bootstrap_servers
        self.prefix = prefix
        self.ring = ring
        self.readings: list[Partitions] = []
        self._stopping = asyncio.Event()
        self._let_go()

    def _let_go(self) -> None:
        self.owner.let_go()
        self.standing: Standing | None = None
        self._ready = False
        self._failures = 0
        self._reached = 0.0
        self._read_to: dict[Place, tuple[float, float]] = {}  # time of the newest record applied; when (monotonic)
        self._heard_at = self._looked_at = monotonic_seconds()
        for reading in self.readings:
            for table in (reading.assigned, reading.owned, reading.targets, reading.sought, reading.stopped):
                table.clear()
            reading.gauge()
        self.readings = []

    # What others ask.

    def working(self) -> bool:
        """Whether this is the active instance and it gets on: what its heartbeat promises."""
        stalled = self.owner.stalled_seconds() >= owner.STALE_SECONDS
        return self._ready and not stalled and self._silent_seconds() < SILENT_SECONDS

    def reasons(self) -> list[str]:
        """Why it is not ready; who stands by is."""
        if not self.readings:
            return ["the broker has not answered yet, or lacks the topics"]
        if self.standing is None:
            return ["it is not known yet who is active"]
        if self.owner.epoch and not self._ready:
            return ["it is taking over"]
        if self.owner.epoch and not self.working():
            heard = f"last heard of the broker {self._silent_seconds():.0f} s ago"
            return [f"active, but {heard}; its last turn came through {self.owner.stalled_seconds():.0f} s ago"]
        return []

    async def settle(self, pool: Pool, topic: str, how: Callable[[Connection, Consumer], Awaitable[Done]]) -> Done:
        """Do something with a topic's dead letters, as a turn of its own. Raises StandingBy, and what `how` raises."""
        if not self._ready:
            active = self.standing.instance if self.standing is not None else ""
            raise StandingBy(f"instance {active} is active")
        (consumer,) = (reading.consumer for reading in self.readings if reading.consumer.topic.name == topic)
        _, done = await self.owner.turn(pool, how=lambda db: how(db, consumer), reached=self._reached)
        self.ring()
        return done  # type: ignore[no-any-return] # it is what `how` returned

    def _silent_seconds(self) -> float:
        return monotonic_seconds() - self._heard_at

    # Standing by, taking over, letting go.

    async def run(self, pool: Pool) -> None:
        """Bid, lead while nobody else does, and begin anew, until stopped."""
        failures = 0
        while not self._stopping.is_set():
            try:
                async with contextlib.AsyncExitStack() as stack:
                    await self._connect(stack, pool)
                    await self._bid(pool)
                    failures = 0
                    stack.push_async_callback(self.owner.release, pool)
                    if self.owner.epoch:
                        await self._lead(pool)
            except Deposed as error:
                LOG.warning("another instance is active", reason=str(error))
            except (Exception, asyncio.CancelledError) as error:
                if was_cancelled(error):
                    raise
                failures += 1
                LOG.warning("reading begins anew", error=repr(error))
                await asyncio.sleep(kafka.backoff_seconds(failures))
            finally:
                self._let_go()

    def stop(self) -> None:
        """Finish the turn under way, and give the row back."""
        self._stopping.set()

    async def _connect(self, stack: contextlib.AsyncExitStack, pool: Pool) -> None:
        """Only who reaches the broker bids."""
        self._cluster = await kafka.cluster_id(self.bootstrap_servers)
        self._client = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap_servers,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=FETCH_WAIT_MS,
            max_partition_fetch_bytes=PARTITION_BYTES,
            fetch_max_bytes=FETCH_BYTES,
        )
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        for client, close in ((self._client, self._client.stop), (self._admin, self._admin.close)):
            stack.push_async_callback(closed, close)
            await client.start()
        readings = []
        for topic in self.topics:
            consumer = Consumer(self.owner.service, topic, self.owner.work.handle)
            reading = Partitions(pool, consumer, prefix=self.prefix, cluster=self._cluster, ring=self.ring)
            reading.client = self._client
            readings.append(reading)
        self._partitions = {
            (reading.consumer.topic.name, partition): reading
            for reading in readings
            for partition in await partitions_of(self._client, reading.name)
        }
        self.readings = readings

    async def _bid(self, pool: Pool) -> None:
        """Stand by until the row can be had. Returns also when stopped."""
        while not self._stopping.is_set():
            try:
                self.standing = await self.owner.bid(pool)
            except Exception as error:
                if not is_infrastructure(error):
                    raise
                LOG.warning("the owner cannot be asked for", error=repr(error))
            if self.owner.epoch:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), BID_SECONDS)

    # Leading.

    async def _lead(self, pool: Pool) -> None:
        attending = asyncio.create_task(self._attend())
        try:
            await self._take_over(pool)
            LOG.info("active", epoch=self.owner.epoch, instance=self.owner.instance)
            while not self._stopping.is_set():
                if self._silent_seconds() > SILENT_SECONDS:
                    raise Transient(f"the broker has not answered for {SILENT_SECONDS:g} s")
                try:
                    await self._step(pool)
                except Deposed:
                    raise
                except Exception as error:
                    self.owner.astray = True
                    self._failures += 1
                    LOG.warning("turn was undone", error=repr(error))
                    await asyncio.sleep(kafka.backoff_seconds(self._failures))
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)

    async def _take_over(self, pool: Pool) -> None:
        positions = await self.owner.take_over(pool, list(self._partitions), self._cluster)
        now = monotonic_seconds()
        for (_, partition), reading in self._partitions.items():
            reading.assigned[partition] = now
        self._client.assign([reading.at(partition) for (_, partition), reading in self._partitions.items()])
        self._client.pause(*self._client.assignment())
        await self._seek(positions)
        self._ready = True

    async def _step(self, pool: Pool) -> None:
        if self.owner.astray:
            await self._seek(await self.owner.find_back(pool))
        if any(reading.stopped for reading in self.readings):
            await self._look_at_stopped(pool)
        await asyncio.sleep(max(0.0, TURN_SECONDS - self.owner.idle_seconds()))
        portions = await self._read()
        self._reached = self._reached_with(portions)
        due = self.owner.is_due() and self._reached == inf
        if not (portions or due or self.owner.idle_seconds() >= RENEW_SECONDS):
            return
        told, _ = await self.owner.turn(pool, portions, reached=self._reached)
        for portion in portions:
            place = portion.topic.name, portion.partition
            reading = self._partitions[place]
            self._read_to[place] = portion.records[-1].timestamp_ms / 1000, monotonic_seconds()
            reading.sought.pop(portion.partition, None)
            reading.owned[portion.partition] = Owned(portion.owned.epoch, portion.end)
        self._failures = 0
        if told or portions:
            self.ring()

    async def _look_at_stopped(self, pool: Pool) -> None:
        """An operator may have rebased some."""
        if monotonic_seconds() - self._looked_at < kafka.STOPPED_SECONDS:
            return
        self._looked_at = monotonic_seconds()
        stopped = [(reading.consumer.topic.name, p) for reading in self.readings for p in reading.stopped]
        async with pool.acquire() as db:
            positions = await reread_all(db, {place: self.owner.epochs[place] for place in stopped})
        await self._seek(positions)

    async def _seek(self, positions: Mapping[Place, tuple[Owned, str]]) -> None:
        """Go on where the log allows it; what cannot be gone on with stays paused."""
        tps = {place: self._partitions[place].at(place[1]) for place in positions}
        begins = await self._client.beginning_offsets(list(tps.values()))
        ends = await self._client.end_offsets(list(tps.values()))
        for place, (stored, cluster) in positions.items():
            reading, partition, tp = self._partitions[place], place[1], tps[place]
            reading.sought.pop(partition, None)
            owned = await reading.go_on(partition, stored, cluster, begins[tp], ends[tp])
            if owned is None:
                reading.owned.pop(partition, None)
                continue
            self._client.seek(tp, owned.next_offset)
            self._client.resume(tp)
            reading.owned[partition] = owned
            self._read_to[place] = 0.0, monotonic_seconds()
        for reading in self.readings:
            reading.gauge()

    async def _read(self) -> Sequence[Portion]:
        """What has come, by topic and partition in their order; waits for it until a turn is due anyway."""
        wait_seconds = min(RENEW_SECONDS - self.owner.idle_seconds(), WAIT_SECONDS_MAX)
        if (due := self.owner.work.due()) is not None and self._reached == inf:
            wait_seconds = min(wait_seconds, due - self.owner.now())
        timeout_ms = int(max(0.0, wait_seconds) * 1000)
        fetched = await self._client.getmany(timeout_ms=timeout_ms, max_records=POLL_RECORDS)
        if fetched:
            self._heard_at = monotonic_seconds()
        raw = {(tp.topic, tp.partition): records for tp, records in fetched.items()}
        portions = []
        for (_, partition), reading in self._partitions.items():
            records = raw.get((reading.name, partition))
            if records and (portion := await reading.portion(partition, records)) is not None:
                portions.append(portion)
        return portions

    def _reached_with(self, portions: Sequence[Portion]) -> float:
        """The instant before which nothing is unread once these are applied, of all that is known to be in the log;
        infinite if nothing of that is. A partition that gives nothing for long holds up nobody: no broker may
        serve it, or its log end with what is no record."""
        given = {(portion.topic.name, portion.partition): portion for portion in portions}
        reached, now = inf, monotonic_seconds()
        for place, reading in self._partitions.items():
            read_to, read_at = self._read_to.get(place, (0.0, now))
            owned, portion = reading.owned.get(place[1]), given.get(place)
            if owned is None or (portion is None and now - read_at > SILENT_SECONDS):
                continue
            next_offset = owned.next_offset if portion is None else portion.end
            end = max(reading.targets.get(place[1], 0), self._client.highwater(reading.at(place[1])) or 0)
            if next_offset < end:
                reached = min(reached, read_to if portion is None else portion.records[-1].timestamp_ms / 1000)
        return reached

    # The broker.

    async def _attend(self) -> None:
        """Tell Kafka what was applied, for lag tools, best effort and never read back; and notice that it answers."""
        told: dict[str, dict[int, int]] = {}
        while True:
            await asyncio.sleep(kafka.REPORT_SECONDS)
            try:
                for reading in self.readings:
                    positions = {partition: owned.next_offset for partition, owned in reading.owned.items()}
                    if positions and positions != told.get(reading.name):
                        await self._report(reading, positions)
                        told[reading.name] = positions
                await self.readings[0].ends()
                self._heard_at = monotonic_seconds()
            except (KafkaError, TimeoutError, OSError) as error:
                LOG.info("the broker does not answer", error=repr(error))

    async def _report(self, reading: Partitions, positions: Mapping[int, int]) -> None:
        """As a group without members does; no client offers it to who does not join."""
        group_id = self.prefix + group(self.owner.service, reading.consumer.topic)
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
