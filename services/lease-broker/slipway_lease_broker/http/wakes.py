"""Grants of other replicas: who stays here is woken by one NOTIFY per 20 ms, sent outside business transactions, and by
a look each second, so that nothing hangs when a notification is lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Final

import asyncpg
import msgspec

from slipway_common.postgres import Connection, Pool, is_infrastructure, schema_of, session
from slipway_common.telemetry import logger
from slipway_lease_broker.store import answers

LOG = logger(__name__)

COALESCED_SECONDS: Final = 0.02
LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 0.5
# The server takes less than 8,000 bytes; longer lists say: look at all.
PAYLOAD_BYTES_MAX: Final = 7_900

Look = Callable[[Pool, Collection[str] | None], Awaitable[None]]


class Wakes:
    """`database()` is the service's pool once it has one; `look` is told which lease pools were granted from."""

    def __init__(self, *, service: str, database_url: str, database: Callable[[], Pool | None], look: Look) -> None:
        self.service = service
        self.listening = False
        self._database_url = database_url
        self._database = database
        self._look = look
        self._channel = f"slipway_leases_{schema_of(service)}"
        self._told: set[str] = set()  # lease pools that others are to hear of
        self._heard: set[str] | None = set()  # lease pools that others told of; None: any
        self._bell = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None

    def tell(self, lease_pool_id: str) -> None:
        """Something was granted here and committed. The first is told at once, the rest 20 ms later together."""
        self._told.add(lease_pool_id)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while self._told and (database := self._database()) is not None:
            payload = msgspec.json.encode(sorted(self._told))
            self._told.clear()
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                fits = len(payload) <= PAYLOAD_BYTES_MAX
                await answers.notify(database, self._channel, payload.decode() if fits else "")
            await asyncio.sleep(COALESCED_SECONDS)

    def _hear(self, _: Connection, _pid: int, _channel: str, payload: str) -> None:
        if not payload:
            self._heard = None
        elif self._heard is not None:
            self._heard.update(msgspec.json.decode(payload, type=list[str]))
        self._bell.set()

    async def run(self) -> None:
        """Listen and look until cancelled; on an error of the database begin anew with a fresh session."""
        while True:
            try:
                if (database := self._database()) is not None:
                    await self._listen(database)
            except Exception as error:
                if is_infrastructure(error):
                    LOG.warning("wake-ups start anew", error=repr(error))
                else:
                    LOG.exception("wake-ups failed")
            await asyncio.sleep(AGAIN_SECONDS)

    async def _listen(self, database: Pool) -> None:
        db = await session(self._database_url, self.service)
        try:
            await db.add_listener(self._channel, self._hear)
            self.listening = True
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._bell.wait(), LOOK_SECONDS)
                rung, heard = self._bell.is_set(), self._heard
                self._bell.clear()
                self._heard = set()
                await self._look(database, heard if rung else None)
                if not rung and db.is_closed():
                    raise ConnectionResetError("the session that listens was closed")
        finally:
            self.listening = False
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await db.close(timeout=2)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """For as long as the service runs."""
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
