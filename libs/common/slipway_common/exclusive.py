"""Kafka → consume.Batch where only one replica may read: it reads whole topics, the others stand by.

The active one is named by a row with an epoch, which each of its transactions locks first: a former owner that was
stopped finds no row when it goes on, and nothing of its work remains. It renews the row as it works, so one that hangs
loses it; who stands by asks each second, and takes a row that is stale or was given back. All partitions of all topics
are one read and one commit; there is no group, but the positions are told to Kafka under the usual names, for lag
tools.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetCommitRequest

from slipway_common import kafka
from slipway_common.clock import monotonic_seconds
from slipway_common.consume import Batch, Consumer, Owned, Place, Portion, Received, claim_all, reread_all
from slipway_common.errors import Transient
from slipway_common.partitions import Partitions, closed, partitions_of, was_cancelled
from slipway_common.postgres import Connection, Pool, is_infrastructure
from slipway_common.telemetry import logger
from slipway_common.topics import Topic, group

LOG = logger(__name__)
Done = TypeVar("Done")

RENEW_SECONDS: Final = 2.0
STALE_SECONDS: Final = 10.0  # five renewals: a machine that is merely slow keeps its row
BID_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 15.0  # whom the broker does not answer for so long lets somebody else try
WAIT_SECONDS_MAX: Final = 0.5  # for records, when nothing else is due; a stop waits as long
POLL_RECORDS: Final = 20_000
BACKLOG_RECORDS: Final = 1000  # a read of so many is not the present but the past
# The fetcher asks for a partition again only when its last request has been answered: short waits keep it close by.
FETCH_WAIT_MS: Final = 50
PARTITION_BYTES: Final = 4 * 2**20
FETCH_BYTES: Final = 16 * 2**20

BID: Final = """
UPDATE owner SET epoch = epoch + 1, instance = $1, since = slipway_clock(), seen_at = slipway_clock()
WHERE seen_at IS NULL OR seen_at < slipway_clock() - make_interval(secs => $2) OR ($3 AND instance = $1)
RETURNING epoch"""
# Its clock never goes back, whatever the server's does.
TURN: Final = """
UPDATE owner SET at = greatest(at, extract(epoch FROM slipway_clock())::float8), seen_at = slipway_clock()
WHERE epoch = $1 RETURNING at"""
RELEASE: Final = "UPDATE owner SET seen_at = NULL WHERE epoch = $1"
OWNER: Final = "SELECT epoch, instance, since FROM owner"


class Turn(msgspec.Struct, frozen=True):
    """One transaction of the active instance. `at` is its time, in seconds since the epoch by the database's clock,
    never before that of an earlier one. `behind` while what is read is the past."""

    epoch: int
    at: float
    behind: bool = False


class Standing(msgspec.Struct, frozen=True):
    """Who is active, as this process last saw it; `since` when."""

    role: Literal["active", "standby"]
    instance: str
    epoch: int
    since: datetime | None


class Deposed(Exception):
    """Somebody else is the owner; nothing was changed."""


class StandingBy(Exception):
    """Only the active instance does that."""


class Work(Protocol):
    """What the active instance does with what it reads; what it remembers follows from its rows.

    A turn is `begin`, `handle` for what was read, `store`, all in one transaction, and `committed` behind it. After
    anything else than that, `load` begins anew from the rows.
    """

    topics: Sequence[Topic]
    """What it reads whole, in the order in which one turn takes them."""

    async def load(self, tx: Connection) -> None: ...

    def begin(self, turn: Turn) -> None: ...

    async def handle(self, tx: Connection, events: Sequence[Received]) -> None:
        """As consume.Handler: called again with single events if it raises because of the data."""

    async def store(self, tx: Connection, turn: Turn, batch: Batch | None) -> None: ...

    def committed(self) -> bool:
        """Whether anything was told to others."""

    def due(self) -> float | None:
        """When a turn is due without anything read, on the clock of turns."""


class Exclusive:
    """One process that does a work alone while it is active. `run` it for as long as the process lives."""

    def __init__(
        self, work: Work, *, service: str, bootstrap_servers: str, prefix: str, instance: str, ring: Callable[[], None]
    ) -> None:
        """`instance` names the replica: whoever is active under the same name when it starts was its predecessor."""
        self.work = work
        self.service = service
        self.topics = work.topics
        self.bootstrap_servers = bootstrap_servers
        self.prefix = prefix
        self.instance = instance
        self.ring = ring
        self.readings: list[Partitions] = []
        self._stopping = asyncio.Event()
        self._turning = asyncio.Lock()
        self._restarted = True
        self._let_go()

    def _let_go(self) -> None:
        self.standing: Standing | None = None
        self._epoch = 0
        self._ready = False
        self._astray = False  # what is remembered may not be what is stored
        self._failures = 0
        self._epochs: dict[Place, int] = {}
        self._turn_at = self._heard_at = self._looked_at = monotonic_seconds()
        self._clock = 0.0  # of the newest turn
        for reading in self.readings:
            for table in (reading.assigned, reading.owned, reading.targets, reading.sought, reading.stopped):
                table.clear()
            reading.gauge()
        self.readings = []

    # What others ask.

    def working(self) -> bool:
        """Whether this is the active instance and it gets on: what its heartbeat promises."""
        return self._ready and self._silent_seconds() < SILENT_SECONDS and self._idle_seconds() < STALE_SECONDS

    def reasons(self) -> list[str]:
        """Why it is not ready; who stands by is."""
        if not self.readings:
            return ["the broker has not answered yet, or lacks the topics"]
        if self.standing is None:
            return ["it is not known yet who is active"]
        if self._epoch and not self._ready:
            return ["it is taking over"]
        if self._epoch and not self.working():
            return [f"active, but last heard of the broker {self._silent_seconds():.0f} s ago"]
        return []

    async def settle(self, pool: Pool, topic: str, how: Callable[[Connection, Consumer], Awaitable[Done]]) -> Done:
        """Do something with a topic's dead letters, as a turn of its own. Raises StandingBy, and what `how` raises."""
        if not self._ready:
            active = self.standing.instance if self.standing is not None else ""
            raise StandingBy(f"instance {active} is active")
        (consumer,) = (reading.consumer for reading in self.readings if reading.consumer.topic.name == topic)
        done: Done = await self._in_turn(pool, (), lambda db: how(db, consumer))
        return done

    def _silent_seconds(self) -> float:
        return monotonic_seconds() - self._heard_at

    def _idle_seconds(self) -> float:
        return monotonic_seconds() - self._turn_at

    def _now(self) -> float:
        """About what the clock of turns shows."""
        return self._clock + self._idle_seconds()

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
                    stack.push_async_callback(self._release, pool)
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
        cluster = await kafka.cluster_id(self.bootstrap_servers)
        self._client = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap_servers, enable_auto_commit=False, auto_offset_reset="earliest",
            fetch_max_wait_ms=FETCH_WAIT_MS, max_partition_fetch_bytes=PARTITION_BYTES, fetch_max_bytes=FETCH_BYTES,
        )  # fmt: skip
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        for client, close in ((self._client, self._client.stop), (self._admin, self._admin.close)):
            stack.push_async_callback(closed, close)
            await client.start()
        readings = []
        for topic in self.topics:
            consumer = Consumer(self.service, topic, self.work.handle)
            reading = Partitions(pool, consumer, prefix=self.prefix, cluster=cluster, ring=self.ring)
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
                epoch = await pool.fetchval(BID, self.instance, STALE_SECONDS, self._restarted)
                self._restarted = False
                owner = await pool.fetchrow(OWNER)
            except Exception as error:
                if not is_infrastructure(error):
                    raise
                LOG.warning("the owner cannot be asked for", error=repr(error))
            else:
                role: Literal["active", "standby"] = "active" if epoch else "standby"
                self.standing = Standing(role, owner["instance"], owner["epoch"], owner["since"])
                if epoch:
                    self._epoch = epoch
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), BID_SECONDS)

    async def _release(self, pool: Pool) -> None:
        if self._epoch:
            with contextlib.suppress(Exception):  # then it goes stale
                await asyncio.wait_for(pool.execute(RELEASE, self._epoch), 2)

    # Leading.

    async def _lead(self, pool: Pool) -> None:
        if not self._epoch:
            return
        attending = asyncio.create_task(self._attend())
        try:
            await self._take_over(pool)
            LOG.info("active", epoch=self._epoch, instance=self.instance)
            while not self._stopping.is_set():
                if self._silent_seconds() > SILENT_SECONDS:
                    raise Transient(f"the broker has not answered for {SILENT_SECONDS:g} s")
                try:
                    await self._step(pool)
                except Deposed:
                    raise
                except Exception as error:
                    self._astray = True
                    self._failures += 1
                    LOG.warning("turn was undone", error=repr(error))
                    await asyncio.sleep(kafka.backoff_seconds(self._failures))
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)

    async def _step(self, pool: Pool) -> None:
        if self._astray:
            await self._find_back(pool)
        if any(reading.stopped for reading in self.readings):
            await self._look_at_stopped(pool)
        portions = await self._read()
        due = self.work.due()
        if portions or self._idle_seconds() >= RENEW_SECONDS or (due is not None and due <= self._now()):
            await self._in_turn(pool, portions)
            self._failures = 0

    async def _take_over(self, pool: Pool) -> None:
        """Epochs + 1, what is stored, and then the log: from here on a predecessor's commits find no row."""
        (cluster,) = {reading.cluster for reading in self.readings}
        async with pool.acquire() as db, db.transaction():
            await self._begin(db)
            positions = await claim_all(db, list(self._partitions), cluster)
            await self.work.load(db)
        self._epochs = {place: owned.epoch for place, (owned, _) in positions.items()}
        now = monotonic_seconds()
        for (_, partition), reading in self._partitions.items():
            reading.assigned[partition] = now
        self._client.assign([reading.at(partition) for (_, partition), reading in self._partitions.items()])
        self._client.pause(*self._client.assignment())
        await self._seek(positions)
        self._ready = True

    async def _find_back(self, pool: Pool) -> None:
        """After a rollback or an unknown commit: forget, and read what is stored. The row is locked first, so that a
        commit that is still on its way has ended."""
        async with self._turning, pool.acquire() as db, db.transaction():
            await self._begin(db)
            positions = await reread_all(db, self._epochs)
            if len(positions) < len(self._epochs):
                raise Deposed("somebody has claimed partitions of ours")
            await self.work.load(db)
        await self._seek(positions)
        self._astray = False

    async def _look_at_stopped(self, pool: Pool) -> None:
        """An operator may have rebased some."""
        if monotonic_seconds() - self._looked_at < kafka.STOPPED_SECONDS:
            return
        self._looked_at = monotonic_seconds()
        stopped = [(reading.consumer.topic.name, p) for reading in self.readings for p in reading.stopped]
        async with pool.acquire() as db:
            positions = await reread_all(db, {place: self._epochs[place] for place in stopped})
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
        for reading in self.readings:
            reading.gauge()

    async def _read(self) -> list[Portion]:
        """What has come, by topic and partition in their order; waits for it until a turn is due anyway."""
        wait_seconds = min(RENEW_SECONDS - self._idle_seconds(), WAIT_SECONDS_MAX)
        due = self.work.due()
        if due is not None:
            wait_seconds = min(wait_seconds, due - self._now())
        fetched = await self._client.getmany(timeout_ms=max(0, int(wait_seconds * 1000)), max_records=POLL_RECORDS)
        if fetched:
            self._heard_at = monotonic_seconds()
        raw = {(tp.topic, tp.partition): records for tp, records in fetched.items()}
        portions = []
        for (_, partition), reading in self._partitions.items():
            records = raw.get((reading.name, partition))
            if records and (portion := await reading.portion(partition, records)) is not None:
                portions.append(portion)
        return portions

    # Turns.

    async def _in_turn(
        self, pool: Pool, portions: Sequence[Portion], how: Callable[[Connection], Awaitable[Any]] | None = None
    ) -> Any:
        """One transaction of the active instance: with what was read, or with what `how` does."""
        batch = Batch(self.service, portions) if portions else None
        done: Any = None
        async with self._turning:
            if self._astray:
                raise Transient("what is stored has to be read again first")
            try:
                async with pool.acquire() as db, db.transaction():
                    turn = await self._begin(db, sum(len(portion.records) for portion in portions))
                    self.work.begin(turn)
                    if batch is not None:
                        await batch.apply(db, self.work.handle)
                    if how is not None:
                        done = await how(db)
                    await self.work.store(db, turn, batch)
            except BaseException:
                self._astray = True
                raise
            told = self.work.committed()
            for portion in portions:
                reading = self._partitions[portion.topic.name, portion.partition]
                reading.sought.pop(portion.partition, None)
                reading.owned[portion.partition] = Owned(portion.owned.epoch, portion.end)
        if batch is not None:
            batch.tell()
        if told or batch is not None or how is not None:
            self.ring()
        return done

    async def _begin(self, tx: Connection, records: int = 0) -> Turn:
        """First statement of every transaction of the active instance. Raises Deposed."""
        at = await tx.fetchval(TURN, self._epoch)
        if at is None:
            raise Deposed(f"epoch {self._epoch} is over")
        self._clock, self._turn_at = at, monotonic_seconds()
        return Turn(self._epoch, at, behind=records >= BACKLOG_RECORDS)

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
        group_id = self.prefix + group(self.service, reading.consumer.topic)
        rows = [(partition, offset, "") for partition, offset in positions.items()]
        request = OffsetCommitRequest(
            group_id, OffsetCommitRequest.DEFAULT_GENERATION_ID, "", OffsetCommitRequest.DEFAULT_RETENTION_TIME,
            [(reading.name, rows)],
        )  # fmt: skip
        response = await self._admin._send_request_to_node(await self._admin.find_coordinator(group_id), request)
        for _, partitions in response.topics:
            for _, code in partitions:
                if code:
                    raise for_code(code)(group_id)
