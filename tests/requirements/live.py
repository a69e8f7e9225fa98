"""Broker processes for requirements about processes, and their clients."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from slipway_common.database import postgres
from tests.histories.actor import Actor, request
from tests.histories.checker import Violation, check
from tests.histories.history import History, Lease
from tests.histories.journal import Journal, calls
from tests.histories.system import OPERATOR, OWNERS, SERVICE, System
from tests.support.harness import PATIENCE_SECONDS

TERMS = {
    "hold_seconds": 60.0,
    "ttl_seconds": 30.0,
    "reserve_seconds": 10.0,
    "lock_delay_seconds": 0.0,
    "pacing": "off",
    "backoff": None,
}
# Times at which each unit started and stopped counting, by the database's clock.
COUNTED = """
SELECT granted_at AS at, 1 AS step, units FROM (SELECT granted_at, granted_units * weight AS units FROM leases
    WHERE lease_pool_id = $1) AS g
UNION ALL SELECT ended_at, 0, -granted_units * weight FROM leases WHERE lease_pool_id = $1 AND ended_at IS NOT NULL
ORDER BY at, step"""


# Requests of a test that does not wait for their end must not lapse between two of its calls.
WAITER_TTL_SECONDS = 12.0


class Live(System):
    """A system whose lease pools are declared one after another, with clients whose calls it records."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, waiter_ttl_seconds=WAITER_TTL_SECONDS, **options)
        self._pools: dict[str, dict[str, Any]] = {}
        self._lines: list[bytes] = []
        self._journal = Journal(self._lines.append)

    async def pool(self, name: str, limit: int, **terms: Any) -> str:
        """Declare one more lease pool."""
        self._pools[name] = TERMS | {"id": name, "limit": limit} | terms
        await self.declare(list(self._pools.values()))
        return name

    def client(self, name: str = "client", owner: str = OWNERS[0], ports: Sequence[int] = ()) -> Actor:
        """A client of any replica, or of those at these ports."""
        return Actor(
            name,
            owner=owner,
            secret=self.secrets[owner],
            ports=ports or self.ports,
            journal=self._journal,
            rng=Random(name),
            resource=self.resource_port,
            answer_seconds=PATIENCE_SECONDS,
        )

    async def granted(self, client: Actor, pool: str, request_id: str) -> Lease:
        """The lease of a request that is granted soon, if not in the first call."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (answer := await client.acquire(pool, request_id, wait_seconds=5.0)).lease is None:
                assert answer.answer == "waiting", answer
        return answer.lease

    async def violations(self, pool: str) -> list[Violation]:
        """Violations that the calls of all clients prove."""
        mine = [call for call in calls(self._lines) if call.pool == pool]
        writes = [write for write in self.resource.writes if write.pool == pool]
        return check(History(limits={pool: self._pools[pool]["limit"]}, calls=mine, writes=writes))

    async def rows(self, query: str, *arguments: Any) -> list[Any]:
        """Rows of the broker's database."""
        session = await postgres.session(self.database_url, SERVICE)
        try:
            found: list[Any] = await session.fetch(query, *arguments)
            return found
        finally:
            await session.close()

    async def peak(self, pool: str) -> int:
        """The most units that ever counted at once, by the broker's own ledger."""
        held = peak = 0
        for row in await self.rows(COUNTED, pool):
            held += row["units"]
            peak = max(peak, held)
        return peak

    async def get(self, path: str, owner: str = OPERATOR) -> Any:
        """The body of a broker's answer."""
        status, body = await request(self.ports[0], "GET", path, None, self.secrets[owner])
        assert status == 200, body
        return body

    async def post(self, path: str, body: Any, owner: str = OPERATOR) -> tuple[int, dict[str, Any]]:
        return await request(self.ports[0], "POST", path, body, self.secrets[owner])
