"""What one replica of a service does alone: a row says who is its owner, and every transaction of the owner locks it
first. Knows no Kafka client.

A bid raises the epoch of a row that is stale or was given back. A former owner that was stopped finds no row of its
epoch when it goes on, so nothing of its work remains. Each turn also renews the row: an owner that hangs loses it.
"""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from math import inf
from typing import Any, Final, Literal, Protocol

import msgspec

from slipway_common.clock import monotonic_seconds
from slipway_common.consume import Batch, Fenced, Handler, Owned, Place, Portion, claim_all, reread_all
from slipway_common.errors import Transient
from slipway_common.postgres import Connection, Pool, is_infrastructure
from slipway_common.records import Received
from slipway_common.telemetry import logger
from slipway_common.topics import Topic

LOG = logger(__name__)

STALE_SECONDS: Final = 10.0  # five renewals: a machine that is merely slow keeps its row
RELEASE_SECONDS: Final = 2.0
BACKLOG_RECORDS: Final = 1000  # a read of so many is not the present but the past

BID: Final = """
UPDATE owner SET epoch = epoch + 1, instance = $1, since = slipway_clock(), seen_at = slipway_clock()
WHERE seen_at IS NULL OR seen_at < slipway_clock() - make_interval(secs => $2) OR ($3 AND instance = $1)
RETURNING epoch"""
# Its clock never goes back, whatever the server's does.
TURN: Final = """
UPDATE owner SET at = greatest(at, extract(epoch FROM slipway_clock())::float8), seen_at = slipway_clock()
WHERE epoch = $1 RETURNING at"""
RELEASE: Final = "UPDATE owner SET seen_at = NULL WHERE epoch = $1"
SEEN: Final = "SELECT epoch, instance, since FROM owner"


class Turn(msgspec.Struct, frozen=True):
    """One transaction of the owner. `at` is its time, in seconds since the epoch by the database's clock, never before
    that of an earlier one; `until` how far what is due by time alone may be done, since all that is older was read.
    `behind` while what is read is the past."""

    epoch: int
    at: float
    until: float
    behind: bool = False


class Standing(msgspec.Struct, frozen=True):
    """Who is active, as this process last saw it; `since` when."""

    role: Literal["active", "standby"]
    instance: str
    epoch: int
    since: datetime | None


class Deposed(Exception):
    """Somebody else is the owner; nothing was changed."""


class Work(Protocol):
    """What the owner does with what it reads; whatever it remembers follows from its rows.

    A turn is `begin`, `handle` for what was read, `store`, all in one transaction, and `committed` behind it. After
    anything else than that, `load` begins anew from the rows.
    """

    @property
    def topics(self) -> Sequence[Topic]:
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


class Owner:
    """One process that may own the work of its service. `epoch` is 0 while it does not."""

    def __init__(self, work: Work, service: str, instance: str) -> None:
        """`instance` names the replica: whoever is active under the same name when it starts was its predecessor."""
        self.work = work
        self.service = service
        self.instance = instance
        self._restarted = True
        self._turning = asyncio.Lock()
        self.let_go()

    def let_go(self) -> None:
        self.epoch = 0
        self.astray = True  # what is remembered may not be what is stored
        self.epochs: dict[Place, int] = {}
        self._turned_at = self._committed_at = monotonic_seconds()
        self._clock = 0.0

    def idle_seconds(self) -> float:
        """Since the newest turn began."""
        return monotonic_seconds() - self._turned_at

    def stalled_seconds(self) -> float:
        """Since a turn has come through."""
        return monotonic_seconds() - self._committed_at

    def now(self) -> float:
        """About what the clock of turns shows."""
        return self._clock + self.idle_seconds()

    def is_due(self) -> bool:
        due = self.work.due()
        return due is not None and due <= self.now()

    async def bid(self, pool: Pool) -> Standing:
        """Own the row if it can be had; returns who does now."""
        epoch = await pool.fetchval(BID, self.instance, STALE_SECONDS, self._restarted)
        self._restarted = False
        seen = await pool.fetchrow(SEEN)
        self.epoch = epoch if epoch is not None else 0
        return Standing("active" if epoch else "standby", seen["instance"], seen["epoch"], seen["since"])

    async def release(self, pool: Pool) -> None:
        """Give the row back; if that fails it goes stale."""
        if self.epoch:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(pool.execute(RELEASE, self.epoch), RELEASE_SECONDS)

    async def take_over(self, pool: Pool, places: Sequence[Place], cluster_id: str) -> dict[Place, tuple[Owned, str]]:
        """Claim all partitions and read what is stored; a predecessor's commits find no row from here on."""
        async with self._turning, pool.acquire() as db, db.transaction():
            await self._begin(db)
            positions = await claim_all(db, places, cluster_id)
            await self.work.load(db)
        self.epochs = {place: owned.epoch for place, (owned, _) in positions.items()}
        self.astray = False
        self._committed_at = monotonic_seconds()
        return positions

    async def find_back(self, pool: Pool) -> dict[Place, tuple[Owned, str]]:
        """After a rollback or an unknown commit: forget, and read what is stored. The row is locked first, so that a
        commit that is still on its way has ended. Raises Deposed."""
        async with self._turning:
            return await self._find_back(pool)

    async def _find_back(self, pool: Pool) -> dict[Place, tuple[Owned, str]]:
        async with pool.acquire() as db, db.transaction():
            await self._begin(db)
            positions = await reread_all(db, self.epochs)
            if len(positions) < len(self.epochs):
                raise Deposed("somebody has claimed partitions of ours")
            await self.work.load(db)
        self.astray = False
        return positions

    async def turn(
        self,
        pool: Pool,
        portions: Sequence[Portion] = (),
        how: Callable[[Connection], Awaitable[Any]] | None = None,
        *,
        reached: float = inf,
    ) -> tuple[bool, Any]:
        """One transaction with what was read, or with what `how` does; with it everything older than `reached` is read.
        Returns whether anything was told, and what `how` returned.

        Raises Deposed, Fenced, and whatever the infrastructure or `how` raised: then `find_back` has to come before the
        next. If the data is at fault and no handler could say which, it takes as many transactions as are needed to
        find what has to be buried.
        """
        async with self._turning, _without_collection():
            if self.astray:
                raise Transient("what is stored has to be read again first")
            behind = sum(len(portion.records) for portion in portions) >= BACKLOG_RECORDS
            try:
                return await self._turn(pool, portions, how, self.work.handle, behind, reached)
            except Exception as error:
                if not portions or is_infrastructure(error) or isinstance(error, Fenced | Deposed):
                    raise
                LOG.warning("turn is redone in parts", error=repr(error))
                return await self._in_parts(pool, portions, error, behind), None

    async def _in_parts(self, pool: Pool, portions: Sequence[Portion], error: Exception, behind: bool) -> bool:
        """Halves of what failed, and of what of it fails again, until single records are left. Time waits for the turn
        behind the last of them."""
        await self._find_back(pool)
        if sum(len(portion.records) for portion in portions) == 1:
            told, _ = await self._turn(pool, portions, None, _refusing(error), behind, 0.0)
            return told
        told = False
        for half in _halves(portions):
            try:
                told |= (await self._turn(pool, half, None, self.work.handle, behind, 0.0))[0]
            except Exception as again:
                if is_infrastructure(again) or isinstance(again, Fenced | Deposed):
                    raise
                told |= await self._in_parts(pool, half, again, behind)
        return told

    async def _turn(
        self,
        pool: Pool,
        portions: Sequence[Portion],
        how: Callable[[Connection], Awaitable[Any]] | None,
        handle: Handler,
        behind: bool,
        reached: float,
    ) -> tuple[bool, Any]:
        batch = Batch(self.service, portions) if portions else None
        done = None
        try:
            async with pool.acquire() as db, db.transaction():
                turn = await self._begin(db, behind=behind, reached=reached)
                self.work.begin(turn)
                if batch is not None:
                    await batch.apply(db, handle)
                if how is not None:
                    done = await how(db)
                await self.work.store(db, turn, batch)
        except BaseException:
            self.astray = True
            raise
        self._committed_at = monotonic_seconds()
        told = self.work.committed()
        if batch is not None:
            batch.tell()
        return told, done

    async def _begin(self, tx: Connection, *, behind: bool = False, reached: float = 0.0) -> Turn:
        """First statement of every transaction of the owner."""
        at = await tx.fetchval(TURN, self.epoch)
        if at is None:
            raise Deposed(f"epoch {self.epoch} is over")
        self._clock, self._turned_at = at, monotonic_seconds()
        return Turn(self.epoch, at, min(at, reached), behind)


@contextlib.asynccontextmanager
async def _without_collection() -> AsyncIterator[None]:
    """A turn makes many values and no cycles: looking for those among all that it has made takes a sixth of it."""
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
    """In order; a portion that is cut goes on where its first half ends."""
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
