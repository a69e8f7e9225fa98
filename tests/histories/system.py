"""The small real system that histories are played on: brokers behind proxies, on real servers, with the faults that can
be injected."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import asyncpg
import msgspec

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import hash_secret
from slipway_common.database import migrate, postgres
from slipway_common.messaging import topic_admin
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Service, Supervisor, http_ready
from tests.histories.actor import request
from tests.histories.proxy import Proxy, Resource
from tests.support.lease_broker import admissions

SERVICE: Final = "lease-broker"
PARTITIONS: Final = 2
BROKERS: Final = 2
START_SECONDS: Final = 120.0  # besides Kafka, which may itself take 90 s on a busy machine
OWNERS: Final = ("ann", "ben", "cid")
OPERATOR: Final = "operator"
LOCK_POOLS: Final = "SELECT id FROM lease_pools WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE"


class System:
    """Brokers with a database, topics and tokens of their own."""

    def __init__(
        self,
        supervisor: Supervisor,
        folder: Path,
        kafka: EmbeddedKafka,
        postgres: EmbeddedPostgres,
        *,
        name: str = "histories",
        seed: str = "",
        brokers: int = BROKERS,
        waiter_ttl_seconds: float = 4.0,
    ) -> None:
        self.supervisor = supervisor
        self.folder = folder
        self.kafka = kafka
        self.postgres = postgres
        self.name = name
        self.prefix = f"{name}."
        self.waiter_ttl_seconds = waiter_ttl_seconds
        self.database_url = ""
        self.brokers = [f"{name}-broker-{number}" for number in range(brokers)]
        self.ports = free_ports(brokers)
        self.proxies = [Proxy(port, Random(f"{seed}/{number}")) for number, port in enumerate(self.ports)]
        self.proxy_ports: list[int] = []
        self.resource = Resource()
        self.resource_port = 0
        self.secrets = {name: f"secret-of-{name}" for name in (*OWNERS, OPERATOR)}

    async def start(self) -> None:
        """Start everything at once, including the servers unless they run: brokers wait for their dependencies by
        themselves."""
        self._write_tokens()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._start_kafka())
            group.create_task(self._start_brokers())
        self.proxy_ports = [await proxy.start() for proxy in self.proxies]
        self.resource_port = await self.resource.start()

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()
        self.resource.close()

    async def _start_kafka(self) -> None:
        if not self.kafka.alive:
            await self.supervisor.start(self.kafka)
        await topic_admin.create(self.kafka.bootstrap, prefix=self.prefix, partitions=PARTITIONS)

    async def _start_brokers(self) -> None:
        if not self.postgres.alive:
            await self.supervisor.start(self.postgres)
        self.database_url = await self.postgres.create_database(self.name)
        await migrate.upgrade(self.database_url, SERVICE)
        await self.supervisor.start(*map(self._broker, range(len(self.brokers))))

    @property
    def _tokens(self) -> Path:
        return self.folder / f"{self.name}-tokens.yaml"

    def _write_tokens(self) -> None:
        scopes = {name: ["leases:write:*"] for name in OWNERS} | {OPERATOR: ["lease-pools:write", "read"]}
        tokens = [
            {"name": name, "sha256": hash_secret(secret), "scopes": scopes[name]}
            for name, secret in self.secrets.items()
        ]
        path = self._tokens
        path.touch(0o600)
        path.write_bytes(msgspec.json.encode(tokens))

    def _broker(self, number: int) -> Service:
        env = {key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")}
        env |= {
            "SLIPWAY_KAFKA": self.kafka.bootstrap,
            "SLIPWAY_TOPIC_PREFIX": self.prefix,
            "SLIPWAY_PARTITIONS": str(PARTITIONS),
            "SLIPWAY_DATABASE_URL": self.database_url,
            "SLIPWAY_PORT": str(self.ports[number]),
            "SLIPWAY_INSTANCE": str(number),
            "SLIPWAY_TOKENS_FILE": str(self._tokens),
            "SLIPWAY_REQUESTS_PER_SECOND_MAX": "1000000",  # each client has the requests of many
            "SLIPWAY_WAITER_TTL_SECONDS": str(self.waiter_ttl_seconds),
        }
        return Service(
            self.brokers[number],
            [sys.executable, "-m", "slipway_lease_broker.main"],
            env=env,
            log=self.folder / f"{self.brokers[number]}.log",
            ready=partial(http_ready, self.ports[number]),
            start_seconds=START_SECONDS,
        )

    async def declare(self, wanted: Sequence[dict[str, Any]]) -> None:
        """Declare exactly these pools."""
        documents = {"documents": [{"owner": "histories", "lease_pools": wanted}]}
        port, secret = self.ports[0], self.secrets[OPERATOR]
        status, body = await request(port, "PUT", "/lease-pools", documents, secret)
        if "digest" in body and status == 409:
            status, body = await request(port, "PUT", f"/lease-pools?confirm={body['digest']}", documents, secret)
        if status != 200:
            raise RuntimeError(f"lease pools were refused: {status} {body}")

    # Faults

    async def suspend(self, name: str, seconds: float) -> None:
        """SIGSTOP a process for a while."""
        self.supervisor.pause(name)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.supervisor.resume(name)

    async def kill(self, name: str) -> None:
        """kill -9 a process and start it again."""
        await self.supervisor.kill(name)
        await self.supervisor.restart(name)

    async def restart_postgres(self) -> None:
        await self.supervisor.restart(self.postgres.name)

    async def hold_pools(self, names: Sequence[str], seconds: float) -> None:
        """Keep the rows of pools locked for a while, like a broker that is suspended in the middle of a transaction."""
        async with self._session() as session, session.transaction():
            await session.execute(LOCK_POOLS, sorted(names))
            await asyncio.sleep(seconds)

    async def decide_slowly(self, names: Sequence[str], *, decided_after: float, committed_after: float) -> None:
        """Act as one more replica: it locks these pools, decides for them that many seconds later, and commits later
        still."""
        async with self._session() as session, session.transaction():
            await session.execute(LOCK_POOLS, sorted(names))
            began = monotonic_seconds()
            await asyncio.sleep(decided_after)
            replica = admissions(lost_linger_seconds=0.0, waiter_ttl_seconds=self.waiter_ttl_seconds)
            admission = replica.begin(session)
            await admission.lock(names)
            await admission.decide(admission.pools)
            await asyncio.sleep(max(0.0, began + committed_after - monotonic_seconds()))

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        """A session like a broker's. An error of the database ends the work in it, and has no other effect."""
        session = await postgres.session(self.database_url, SERVICE)
        try:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                yield session
        finally:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await session.close(timeout=1)
