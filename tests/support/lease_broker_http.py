"""The routes of a lease-broker on a real database, for tests: replicas without Kafka, callers with their own tokens."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

from slipway_common.base.ids import hash_secret
from slipway_common.database.postgres import Database
from slipway_lease_broker.grant_notifier import GrantNotifier
from slipway_lease_broker.grant_waiters import GrantWaiters
from slipway_lease_broker.http.group_commit import GroupCommit
from slipway_lease_broker.main import build
from slipway_lease_broker.settings import Settings
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support import harness
from tests.support.databases import connected, empty_database
from tests.support.lease_broker import SERVICE, Broker, after, terms

CALLERS: Final = {
    "ann": ["leases:write:*", "read"],
    "ben": ["leases:write:*", "read"],
    "cid": ["leases:write:other"],
    "operator": ["lease-pools:write"],
    "team-a": ["lease-pools:write:team-a"],
    "root": ["admin"],
    "reader": ["read"],
    "nobody": [],
}
# Tenants that a caller may name beside its own.
TENANTS: Final = {"ann": ["team-*"]}


class Replica:
    """The HTTP side of one broker process: its routes, its group commit, its waiting callers and notifications."""

    def __init__(self, pool: Database, url: str, tokens: Path) -> None:
        self.pool = pool
        service = build(Settings(database_url=url, kafka="", tokens_file=tokens))
        self.runtime = service.runtime
        self.runtime.database = pool
        self.app = service.app()
        self.group_commit: GroupCommit = self.app.state.group_commit
        self.grant_waiters: GrantWaiters = self.app.state.admissions.waiters
        self.grant_notifier: GrantNotifier = self.app.state.grant_notifier

    def client(self, name: str = "ann", **headers: str) -> httpx2.AsyncClient:
        """A client with a token of CALLERS; "" has none."""
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        if name:
            headers["Authorization"] = f"Bearer secret of {name}"
        return httpx2.AsyncClient(transport=transport, base_url="http://broker", headers=headers, timeout=None)

    async def call(self, method: str, path: str, body: Any = None, *, by: str = "ann", **headers: str) -> Any:
        async with self.client(by, **headers) as client:
            return await client.request(method, path, json=body)

    async def acquire(self, request_id: str = "r", pool: str = "sim-a", *, by: str = "ann", **body: Any) -> Any:
        return await self.call("POST", f"/lease-pools/{pool}/leases", {"request_id": request_id} | body, by=by)


def slug(answer: Any) -> str:
    """Name of the problem that a refusal describes."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return str(answer.json()["type"]).removeprefix("urn:slipway:problem:")


def instant(seconds: float) -> str:
    """Time after the start as the routes write it."""
    return after(seconds).isoformat().replace("+00:00", "Z")


def write_tokens(folder: Path) -> Path:
    path = folder / "tokens.yaml"
    tokens = [
        {
            "name": name,
            "sha256": hash_secret(f"secret of {name}"),
            "scopes": scopes,
            "tenants": TENANTS.get(name, []),
        }
        for name, scopes in CALLERS.items()
    ]
    path.write_bytes(msgspec.json.encode(tokens))
    return path


class World:
    """A lease pool "sim-a" of 2 units without pacing, the effects of Kafka and time on it, and replicas that answer."""

    def __init__(self, broker: Broker, replicas: list[Replica]) -> None:
        self.broker = broker
        self.replicas = replicas

    @property
    def replica(self) -> Replica:
        return self.replicas[0]

    async def rows(self) -> list[Any]:
        """All rows that a refused request could have changed."""
        tables = ("leases", "requests", "lease_pools", "tenants", "groups", "history", "audit", "outbox")
        return [await self.broker.pool.fetch(f"SELECT * FROM {name} ORDER BY 1, 2") for name in tables]


@contextlib.asynccontextmanager
async def world_on(server: EmbeddedPostgres, folder: Path, *, replicas: int = 1) -> AsyncIterator[World]:
    """A world on an empty database of its own. Several replicas notify each other; a single one gets no
    notifications."""
    tokens = write_tokens(folder)
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(empty_database(server, SERVICE))
        broker = Broker(await stack.enter_async_context(connected(url, SERVICE)))
        stack.push_async_callback(broker.stop)
        world = World(broker, [])
        for _ in range(replicas):
            replica = Replica(await stack.enter_async_context(connected(url, SERVICE)), url, tokens)
            if replicas > 1:
                await stack.enter_async_context(replica.grant_notifier.running(replica.grant_waiters.check_grants))
                await harness.until(lambda replica=replica: replica.grant_notifier.listening)  # type: ignore[misc]
            world.replicas.append(replica)
        await broker.declare(terms(limit=2))
        await broker.events()
        yield world
