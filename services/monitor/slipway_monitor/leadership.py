"""Leadership of sources: which replica reads one, by advisory locks of one PostgreSQL session.

The session dies with a stalled replica, as a relay's does. A lock alone fences nothing, since a stopped replica goes on
with what it has read: its reports carry the `epoch` of its leadership, and the provisioner refuses one of an earlier
epoch. An epoch is the time of the lock by the clock of that database, so that it needs no table and outlives a restore.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.settings import current_value
from slipway_common.database import outage
from slipway_common.observability.telemetry import logger

LOG = logger(__name__)

STALLED_SECONDS: Final = 5.0
"""Time without a query after which the server ends the session of a stalled replica."""
BID_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.5
# The lock is taken before the clock is read: a later leader has a later epoch.
BID: Final = """
WITH locked AS MATERIALIZED (
    SELECT name FROM unnest($1::text[]) AS name
    WHERE pg_try_advisory_lock(hashtext('slipway.monitor'), hashtext($2 || name)))
SELECT name, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS epoch FROM locked"""


class Alone:
    """Leadership without a database: the only replica leads every source."""

    async def gained(self, _: str) -> None:
        pass

    def epoch(self, _: str) -> int | None:
        return None

    def leads(self, _: str) -> bool:
        return True

    async def run(self) -> None:
        await asyncio.Event().wait()


class Leadership:
    """Leadership of the sources whose locks this process has. `scope` tells deployments of one database apart."""

    def __init__(self, url: str, scope: str, names: Sequence[str]) -> None:
        self._url = url
        self._scope = scope
        self._gained = {name: asyncio.Event() for name in names}
        self._epochs: dict[str, int] = {}
        self._held_until = 0.0

    async def gained(self, name: str) -> None:
        """Wait for the lock of a source."""
        await self._gained[name].wait()

    def leads(self, name: str) -> bool:
        """True while the lock is surely held: the server was asked lately."""
        return name in self._epochs and monotonic_seconds() < self._held_until

    def epoch(self, name: str) -> int | None:
        return self._epochs.get(name)

    async def run(self) -> None:
        """Bid for the locks that others hold, and keep the session; begin anew after every error."""
        while True:
            try:
                await self._bid()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                outage.warn(LOG, "leadership of sources lost, retrying", error)
            finally:
                self._epochs.clear()
                for gained in self._gained.values():
                    gained.clear()
            await asyncio.sleep(RETRY_SECONDS)

    async def _bid(self) -> None:
        session: Any = await outage.opened(
            current_value("database_url", self._url),  # whose password may have been replaced
            timeout=STALLED_SECONDS,
            command_timeout=STALLED_SECONDS / 2,
            server_settings={
                "application_name": "slipway-monitor",
                "idle_session_timeout": f"{int(STALLED_SECONDS * 1000)}ms",
                "statement_timeout": f"{int(STALLED_SECONDS * 500)}ms",
            },
        )
        try:
            while True:
                asked = monotonic_seconds()
                others = [name for name in self._gained if name not in self._epochs]
                rows = await session.fetch(BID, others, self._scope)
                self._held_until = asked + STALLED_SECONDS
                if rows:
                    self._epochs |= {row["name"]: row["epoch"] for row in rows}
                    for row in rows:
                        self._gained[row["name"]].set()
                    LOG.info("leads sources", number=len(self._epochs), of=len(self._gained))
                await asyncio.sleep(BID_SECONDS)
        finally:
            session.terminate()
