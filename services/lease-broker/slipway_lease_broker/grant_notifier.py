"""Notification of grants between replicas. A replica sends at most one NOTIFY per 20 ms, outside business transactions;
each replica also checks for grants once a second, so that no caller hangs when a notification is lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Final

import asyncpg
import msgspec

from slipway_common.database import outage
from slipway_common.database.postgres import Connection, Database, is_infrastructure, schema_of, session
from slipway_common.observability.telemetry import logger
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.store import answers

LOG = logger(__name__)

COALESCED_SECONDS: Final = 0.02
CHECK_SECONDS: Final = 1.0
RECONNECT_SECONDS: Final = 0.5
# PostgreSQL accepts payloads below 8,000 bytes; an empty payload stands for a longer list: check all lease pools.
PAYLOAD_BYTES_MAX: Final = 7_900

CheckGrants = Callable[[Database, Collection[str] | None], Awaitable[None]]


class GrantNotifier:
    """Sends and receives notifications of grants, once the service has a database."""

    def __init__(self, runtime: Runtime, *, service: str, database_url: str) -> None:
        self.service = service
        self.listening = False
        self._runtime = runtime
        self._database_url = database_url
        self._channel = f"slipway_leases_{schema_of(service)}"
        self._to_send: set[str] = set()  # lease pools to notify the other replicas of
        self._received: set[str] | None = set()  # lease pools that other replicas notified of; None: any
        self._notified = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    def notify(self, lease_pool_id: str) -> None:
        """Notify the other replicas of a committed grant: at once, or with others 20 ms after the last notification."""
        self._to_send.add(lease_pool_id)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._to_send and (database := self._runtime.database) is not None:
            payload = msgspec.json.encode(sorted(self._to_send))
            self._to_send.clear()
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                fits = len(payload) <= PAYLOAD_BYTES_MAX
                await answers.notify(database, self._channel, payload.decode() if fits else "")
            await asyncio.sleep(COALESCED_SECONDS)

    def _receive(self, _: Connection, _pid: int, _channel: str, payload: str) -> None:
        if not payload:
            self._received = None
        elif self._received is not None:
            self._received.update(msgspec.json.decode(payload, type=list[str]))
        self._notified.set()

    async def run(self, check_grants: CheckGrants) -> None:
        """Listen and check for grants until cancelled; after an error of the database reconnect. `check_grants` gets
        the lease pools with new grants, None for all."""
        while True:
            try:
                if (database := self._runtime.database) is not None:
                    await self._listen(database, check_grants)
            except Exception as error:
                if is_infrastructure(error):
                    outage.warn(LOG, "grant notifications were interrupted, reconnecting", error)
                else:
                    LOG.exception("grant notifications failed, reconnecting")
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self, database: Database, check_grants: CheckGrants) -> None:
        db = await session(self._database_url, self.service)
        try:
            await db.add_listener(self._channel, self._receive)
            self.listening = True
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._notified.wait()
                is_notified, received = self._notified.is_set(), self._received
                self._notified.clear()
                self._received = set()
                await check_grants(database, received if is_notified else None)
                if not is_notified and db.is_closed():
                    raise ConnectionResetError("the listening session was closed")
        finally:
            self.listening = False
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await db.close(timeout=2)

    @contextlib.asynccontextmanager
    async def running(self, check_grants: CheckGrants) -> AsyncIterator[None]:
        """Run the notifier for as long as the service runs."""
        task = asyncio.create_task(self.run(check_grants))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
