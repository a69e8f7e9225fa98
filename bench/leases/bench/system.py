"""One lease-broker process on embedded servers, and the CPU time used by the broker and its database."""

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec

from bench.leases.bench.http_client import HttpClient
from slipway_api.percent import encoded
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import hash_secret
from slipway_common.database import migrate, postgres
from slipway_common.messaging import topic_admin
from slipway_common.messaging.relay import partition_for
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Service, Supervisor, http_ready

SERVICE: Final = "lease-broker"
PREFIX: Final = "bench."
PARTITIONS: Final = 2
SECRET: Final = "secret of the bench"
TICKS: Final = os.sysconf("SC_CLK_TCK")


class System:
    """The lease-broker under measurement; the given supervisor starts and stops it."""

    def __init__(self, supervisor: Supervisor, folder: Path, kafka: EmbeddedKafka, server: EmbeddedPostgres) -> None:
        self.supervisor = supervisor
        self.folder = folder
        self.kafka = kafka
        self.server = server
        (self.port,) = free_ports(1)
        self.database: Any = None

    async def start(self) -> None:
        """Create database, topics and tokens, then start the broker."""
        url = await self.server.create_database("bench")
        await migrate.upgrade(url, SERVICE)
        await topic_admin.create(self.kafka.bootstrap, prefix=PREFIX, partitions=PARTITIONS)
        self.database = await postgres.connect(url, SERVICE, size=32)
        tokens = self.folder / "tokens.yaml"
        tokens.touch(0o600)
        tokens.write_bytes(msgspec.json.encode([{"name": "bench", "sha256": hash_secret(SECRET), "scopes": ["admin"]}]))
        env = {key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")}
        env |= {
            "SLIPWAY_KAFKA": self.kafka.bootstrap,
            "SLIPWAY_TOPIC_PREFIX": PREFIX,
            "SLIPWAY_PARTITIONS": str(PARTITIONS),
            "SLIPWAY_DATABASE_URL": url,
            "SLIPWAY_PORT": str(self.port),
            "SLIPWAY_TOKENS_FILE": str(tokens),
            "SLIPWAY_REQUESTS_PER_SECOND_MAX": "1000000",  # all clients have one token
        }
        await self.supervisor.start(
            Service(
                SERVICE,
                [sys.executable, "-m", "slipway_lease_broker.main"],
                env=env,
                log=self.folder / "lease-broker.log",
                ready=partial(http_ready, self.port),
                start_seconds=60,
            )
        )

    async def declare(self, limits: dict[str, int], owner: str = "bench") -> None:
        """Create all lease pools of an owner, by name and limit, without pacing, so that only the broker's work is
        measured."""
        body = [
            {
                "id": name,
                "limit": limit,
                "hold_seconds": 3600.0,
                "ttl_seconds": 3600.0,
                "reserve_seconds": 3600.0,
                "pacing": "off",
            }
            for name, limit in limits.items()
        ]
        async with HttpClient(self.port, SECRET) as client:
            documents = {"documents": [{"owner": owner, "lease_pools": body}]}
            status, answer = await client.call("PUT", "/lease-pools", documents)
        if status != 200:
            raise RuntimeError(f"lease pools rejected: {status} {answer}")

    def used_seconds(self) -> float:
        """CPU time so far of the broker and of all sessions of its database."""
        broker, server = self.supervisor[SERVICE].pid, self.server.pid
        assert broker is not None
        assert server is not None
        return sum(map(_used, (broker, server, *_children(server))))


def partition_of(lease_pool: str) -> int:
    return partition_for(encoded(lease_pool), PARTITIONS)


def _used(pid: int) -> float:
    """User and system seconds of a process and of its exited children; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def _children(pid: int) -> Sequence[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


async def commits_per_second(url: str, clients: int, seconds: float) -> float:
    """Durable commits of one small row per second by `clients` sessions: the yardstick."""
    sessions = [await asyncpg.connect(url) for _ in range(clients)]
    await sessions[0].execute("CREATE TABLE IF NOT EXISTS yardstick (id bigint, content text)")

    async def insert(session: Any) -> int:
        done = 0
        while monotonic_seconds() < end:
            await session.execute("INSERT INTO yardstick VALUES ($1, 'one small row')", done)
            done += 1
        return done

    began = monotonic_seconds()
    end = began + seconds
    total = sum(await asyncio.gather(*map(insert, sessions)))
    took = monotonic_seconds() - began
    for session in sessions:
        await session.close()
    return total / took
