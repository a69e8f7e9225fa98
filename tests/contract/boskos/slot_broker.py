"""A lease-broker with named slots, for tests: its Boskos API in process, on a real database with a clock set by the
test. Lease pool "car" has two free slots and a limit of 2, "van" has one dirty slot."""

import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

from slipway_lease_broker.boskos.server import Port
from slipway_lease_broker.main import build
from slipway_lease_broker.settings import Settings
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.lease_broker import Broker, terms
from tests.support.lease_broker_http import Replica, World, world_on

SLOTS = [
    {"lease_pool": "car", "state": "free", "names": ["car-1", "car-2"]},
    {"lease_pool": "van", "state": "dirty", "names": ["van-1"]},
]
ROWS = ("slots", "slot_requests", "leases", "requests", "lease_pools", "history", "audit", "outbox")

EMPTIED = (*(name for name in ROWS if name != "lease_pools"), "tenants", "lease_pools")


class SlotBroker:
    """A broker with slots. `call("POST /acquire?…")` is one call; settings of the broker can be changed for it."""

    def __init__(self, world: World, url: str, **settings: Any) -> None:
        self.world = world
        self.url = url
        self.tokens = world.replica.app.state.tokens.path
        self.use(**settings)

    def use(self, **settings: Any) -> None:
        """Start another process with these settings."""
        settings = {"boskos_port": 0, "boskos_open": True} | settings
        service = build(Settings(database_url=self.url, kafka="", tokens_file=self.tokens, **settings))
        self.runtime = service.runtime
        self.runtime.database = self.world.broker.pool
        self.port: Port = service.state["boskos"]

    @property
    def broker(self) -> Broker:
        return self.world.broker

    @property
    def replica(self) -> Replica:
        return self.world.replica

    async def call(self, line: str, body: Any = None, *, by: str = "") -> Any:
        """The answer to a call; `by` names a caller of CALLERS, which sends name and secret."""
        method, _, path = line.partition(" ")
        headers = {}
        if by:
            headers["Authorization"] = "Basic " + b64encode(f"{by}:secret of {by}".encode()).decode()
        content = body if isinstance(body, bytes) or body is None else httpx2.Request("POST", "/", json=body).content
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=self.port.app, raise_app_exceptions=False),
            base_url="http://boskos",
            timeout=None,
        ) as client:
            return await client.request(method, path, content=content, headers=headers)

    async def done(self, *lines: str) -> Any:
        """Make calls that succeed; the answer of the last one."""
        answer = None
        for line in lines:
            answer = await self.call(line)
            assert answer.status_code == 200, (line, answer.text)
        return answer

    async def slots(self) -> dict[str, tuple[str, str]]:
        """State and owner of every slot."""
        rows = await self.broker.pool.fetch("SELECT name, state, owner FROM slots ORDER BY name")
        return {row["name"]: (row["state"], row["owner"]) for row in rows}

    async def rows(self) -> list[Any]:
        """All rows that a refused call could have changed."""
        return [await self.broker.pool.fetch(f"SELECT * FROM {name} ORDER BY 1, 2") for name in ROWS]

    async def put(self, *slots: Any, by: str = "operator", query: str = "", **terms: Any) -> Any:
        return await self.replica.call("PUT", f"/slots{query}", {"slots": list(slots)} | terms, by=by)

    async def open(self, *slots: Any, limit: int = 2, **changes: Any) -> None:
        """Reset the database to the initial state with these slots; `changes` are other terms of "car"."""
        await self.broker.set_clock(0)
        # The tables have few rows: DELETE is much faster than TRUNCATE.
        await self.broker.pool.execute("".join(f"DELETE FROM {name};" for name in EMPTIED))
        await self.broker.declare(terms("car", limit, **changes), terms("van", 1), terms("bike", 1))
        answer = await self.put(*(slots or SLOTS))
        assert answer.status_code == 200, answer.text
        await self.broker.events()


@contextlib.asynccontextmanager
async def slot_broker_on(server: EmbeddedPostgres, folder: Path) -> AsyncIterator[SlotBroker]:
    """A broker with slots on an empty database of its own."""
    async with world_on(server, folder) as world:
        name = await world.broker.pool.fetchval("SELECT current_database()")
        yield SlotBroker(world, server.url(name))
