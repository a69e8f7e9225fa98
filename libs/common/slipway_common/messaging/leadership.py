"""Leader election by one database row, for work that one replica of a service does alone. Knows no Kafka client.

A bid raises the epoch of a row that is stale or was released. Every transaction of the leader locks the row by its
epoch first, so a former leader that resumes finds no row and its transaction rolls back. Each turn renews the row: a
leader that hangs loses it.
"""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from math import inf
from typing import Any, Final, Protocol

import msgspec

from slipway_api.events.topics import Topic
from slipway_api.http.service import LeaderStatus
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.errors import Transient
from slipway_common.database.postgres import Connection, Database, is_infrastructure
from slipway_common.messaging.consume import Batch, Fenced, Handler, Owned, Place, Portion, claim_all, reread_all
from slipway_common.messaging.records import Received
from slipway_common.observability.telemetry import logger

LOG = logger(__name__)

STALE_SECONDS: Final = 10.0  # five renewals: a machine that is merely slow keeps its row
RELEASE_SECONDS: Final = 2.0
BACKLOG_RECORDS: Final = 1000  # a read this large means the leader is catching up

BID: Final = """
UPDATE leader SET epoch = epoch + 1, instance = $1, since = slipway_clock(), seen_at = slipway_clock()
WHERE seen_at IS NULL OR seen_at < slipway_clock() - make_interval(secs => $2) OR ($3 AND instance = $1)
RETURNING epoch"""
# The clock of turns is monotonic even if the server's clock is set back.
TURN: Final = """
UPDATE leader SET at = greatest(at, extract(epoch FROM slipway_clock())::float8), seen_at = slipway_clock()
WHERE epoch = $1 RETURNING at"""
RELEASE: Final = "UPDATE leader SET seen_at = NULL WHERE epoch = $1"
SEEN: Final = "SELECT epoch, instance, since FROM leader"


class Turn(msgspec.Struct, frozen=True):
    """One transaction of the leader.

    `at` is its time in seconds since the Unix epoch by the database's clock, and never decreases. Timers may fire up
    to `until`: every record older than that has been read. `behind` is true while a backlog is read."""

    epoch: int
    at: float
    until: float
    behind: bool = False


class LeadershipLost(Exception):
    """Another replica is the leader; nothing was changed."""


class Work(Protocol):
    """The work of the leader. All state in memory is derived from the rows.

    A turn calls `begin`, `handle` for the records that were read, and `store` in one transaction, then `committed`
    after the commit. If anything in that order fails, `load` rebuilds the state from the rows.
    """

    @property
    def topics(self) -> Sequence[Topic]:
        """Topics read in full, in the order in which one turn applies them."""

    async def load(self, tx: Connection) -> None: ...

    def begin(self, turn: Turn) -> None: ...

    async def handle(self, tx: Connection, events: Sequence[Received]) -> None:
        """Apply events, like consume.Handler. Called again with single events if the data makes it raise."""

    async def store(self, tx: Connection, turn: Turn, batch: Batch | None) -> None: ...

    def committed(self) -> bool:
        """True if the turn published anything."""

    def due(self) -> float | None:
        """Time of the next turn that is due without any records, on the clock of turns; None if there is none."""


class Leadership:
    """The claim of one process to leadership of its service. `epoch` is 0 while another process leads."""

    def __init__(self, work: Work, service: str, instance: str) -> None:
        """`instance` names the replica: a leader of the same name found at start-up is its own predecessor."""
        self.work = work
        self.service = service
        self.instance = instance
        self._restarted = True
        self._turning = asyncio.Lock()
        self.reset()

    def reset(self) -> None:
        self.epoch = 0
        self.needs_reload = True  # the state in memory may differ from the rows
        self.epochs: dict[Place, int] = {}
        self._turned_at = self._committed_at = monotonic_seconds()
        self._clock = 0.0

    def idle_seconds(self) -> float:
        """Seconds since the newest turn began."""
        return monotonic_seconds() - self._turned_at

    def stalled_seconds(self) -> float:
        """Seconds since a turn last committed."""
        return monotonic_seconds() - self._committed_at

    def now(self) -> float:
        """Approximate time on the clock of turns."""
        return self._clock + self.idle_seconds()

    def is_due(self) -> bool:
        due = self.work.due()
        return due is not None and due <= self.now()

    async def bid(self, database: Database) -> LeaderStatus:
        """Take the leader row if it is free or stale; returns the current leader."""
        epoch = await database.fetchval(BID, self.instance, STALE_SECONDS, self._restarted)
        self._restarted = False
        seen = await database.fetchrow(SEEN)
        self.epoch = epoch if epoch is not None else 0
        return LeaderStatus("leader" if epoch else "standby", seen["instance"], seen["epoch"], seen["since"])

    async def release(self, database: Database) -> None:
        """Release the row; if that fails, it becomes stale."""
        if self.epoch:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(database.execute(RELEASE, self.epoch), RELEASE_SECONDS)

    async def take_over(
        self, database: Database, places: Sequence[Place], cluster_id: str
    ) -> dict[Place, tuple[Owned, str]]:
        """Claim all partitions and load the state; from here on a predecessor cannot commit."""
        async with self._turning, database.acquire() as db, db.transaction():
            await self._begin(db)
            positions = await claim_all(db, places, cluster_id)
            await self.work.load(db)
        self.epochs = {place: owned.epoch for place, (owned, _) in positions.items()}
        self.needs_reload = False
        self._committed_at = monotonic_seconds()
        return positions

    async def reload(self, database: Database) -> dict[Place, tuple[Owned, str]]:
        """Rebuild the state from the rows after a rollback or a commit of unknown outcome.

        The row is locked first, so a commit in progress has ended. Raises LeadershipLost."""
        async with self._turning:
            return await self._reload(database)

    async def _reload(self, database: Database) -> dict[Place, tuple[Owned, str]]:
        async with database.acquire() as db, db.transaction():
            await self._begin(db)
            positions = await reread_all(db, self.epochs)
            if len(positions) < len(self.epochs):
                raise LeadershipLost("another process has claimed some of the partitions")
            await self.work.load(db)
        self.needs_reload = False
        return positions

    async def turn(
        self,
        database: Database,
        portions: Sequence[Portion] = (),
        how: Callable[[Connection], Awaitable[Any]] | None = None,
        *,
        reached: float = inf,
    ) -> tuple[bool, Any]:
        """Run one transaction that applies records, or calls `how`. Every record older than `reached` has been read.

        Returns true if anything was published, and the result of `how`. Raises LeadershipLost, Fenced, and any error
        of the infrastructure or of `how`; `reload` is then required before the next turn. If the data is at fault and
        no single record was identified, several transactions are used to find the records to dead-letter.
        """
        async with self._turning, _without_collection():
            if self.needs_reload:
                raise Transient("the state must be reloaded before the next turn")
            behind = sum(len(portion.records) for portion in portions) >= BACKLOG_RECORDS
            try:
                return await self._turn(database, portions, how, self.work.handle, behind, reached)
            except Exception as error:
                if not portions or is_infrastructure(error) or isinstance(error, Fenced | LeadershipLost):
                    raise
                LOG.warning("turn failed, retrying in parts", error=repr(error))
                return await self._in_parts(database, portions, error, behind), None

    async def _in_parts(self, database: Database, portions: Sequence[Portion], error: Exception, behind: bool) -> bool:
        """Apply a failed turn by repeated halving, down to single records. Timers wait for the next whole turn."""
        await self._reload(database)
        if sum(len(portion.records) for portion in portions) == 1:
            published, _ = await self._turn(database, portions, None, _refusing(error), behind, 0.0)
            return published
        published = False
        for half in _halves(portions):
            try:
                published |= (await self._turn(database, half, None, self.work.handle, behind, 0.0))[0]
            except Exception as again:
                if is_infrastructure(again) or isinstance(again, Fenced | LeadershipLost):
                    raise
                published |= await self._in_parts(database, half, again, behind)
        return published

    async def _turn(
        self,
        database: Database,
        portions: Sequence[Portion],
        how: Callable[[Connection], Awaitable[Any]] | None,
        handle: Handler,
        behind: bool,
        reached: float,
    ) -> tuple[bool, Any]:
        batch = Batch(self.service, portions) if portions else None
        done = None
        try:
            async with database.acquire() as db, db.transaction():
                turn = await self._begin(db, behind=behind, reached=reached)
                self.work.begin(turn)
                if batch is not None:
                    await batch.apply(db, handle)
                if how is not None:
                    done = await how(db)
                await self.work.store(db, turn, batch)
        except BaseException:
            self.needs_reload = True
            raise
        self._committed_at = monotonic_seconds()
        published = self.work.committed()
        if batch is not None:
            batch.count()
        return published, done

    async def _begin(self, tx: Connection, *, behind: bool = False, reached: float = 0.0) -> Turn:
        """Lock the leader row by its epoch; the first statement of every transaction of the leader."""
        at = await tx.fetchval(TURN, self.epoch)
        if at is None:
            raise LeadershipLost(f"epoch {self.epoch} has ended")
        self._clock, self._turned_at = at, monotonic_seconds()
        return Turn(self.epoch, at, min(at, reached), behind)


@contextlib.asynccontextmanager
async def _without_collection() -> AsyncIterator[None]:
    """Disable garbage collection. A turn creates many objects but no cycles; collecting costs a sixth of its time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _refusing(error: Exception) -> Handler:
    async def handle(_: Connection, __: Sequence[Received]) -> None:
        raise error

    return handle


def _halves(portions: Sequence[Portion]) -> Iterator[Sequence[Portion]]:
    """Split portions into two halves, in order; a single portion is split between its records."""
    if len(portions) > 1:
        middle = len(portions) // 2
        yield portions[:middle]
        yield portions[middle:]
        return
    (portion,) = portions
    middle = len(portion.records) // 2
    first = msgspec.structs.replace(portion, records=portion.records[:middle])
    yield [first]
    yield [
        msgspec.structs.replace(portion, records=portion.records[middle:], owned=Owned(portion.owned.epoch, first.end))
    ]
