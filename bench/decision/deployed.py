"""The whole system at the size of a cell, as processes, and what the benchmark asks it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import asyncpg
import psutil
from aiokafka import AIOKafkaProducer

from bench.decision import cell as cells
from bench.decision.cell import Cell
from bench.decision.cost import Planner, planner
from bench.decision.load import Reporter
from slipway_api.events.topics import POOL_DEMAND
from slipway_common.database import migrate, postgres
from slipway_common.declaration.models import Declaration
from slipway_local.demo.deployment import PARTITIONS, Deployment
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator import facts, ledger
from tests.support import harness
from tests.support.harness import until
from tests.support.provisioner import PASSED, SERVICE, Provisioner

# Longer than the run: machines neither boot nor end, and accounts are not listed.
LONG_SECONDS: Final = 100_000.0
SECONDS: Final = dict.fromkeys(
    (
        "boot_timeout_seconds",
        "identity_grace_seconds",
        "idle_timeout_seconds",
        "give_up_idle_seconds",
        "unresponsive_timeout_seconds",
        "starved_after_seconds",
        "reap_seconds",
    ),
    LONG_SECONDS,
)
SCENARIO: Final = {
    "accounts": {"*": {"latency_seconds": 0, "latency_sigma": 0}},
    "boot_seconds_median": LONG_SECONDS,
    "boot_sigma": 0,
}
OTHERS: Final = ("weight-calculator", "lease-broker", "simulator")
PUBLISHED: Final = "SELECT NOT EXISTS (SELECT FROM {schema}.outbox)"
WEIGHED: Final = "SELECT count(*) = (SELECT count(*) FROM launch_config) FROM weight"
POOL_OF: Final = "SELECT id, pool_id FROM provisioner.launch_config"
REQUESTED: Final = """
SELECT pool_id, extract(epoch FROM requested_at)::float8 AS at FROM provisioner.worker
WHERE requested_at >= to_timestamp($1) ORDER BY requested_at"""


class Deployed:
    """A running deployment that has been filled, and the claimed tasks of its pools."""

    def __init__(self, supervisor: Supervisor, deployment: Deployment, claimed: Mapping[str, int]) -> None:
        self.supervisor = supervisor
        self.deployment = deployment
        self.claimed = claimed
        self.names = [SERVICE]

    @property
    def servers(self) -> tuple[Any, Any]:
        return self.deployment.kafka_server, self.deployment.postgres_server

    @contextlib.asynccontextmanager
    async def reporter(self, rng: Random) -> AsyncIterator[Reporter]:
        """A monitor that reports demand."""
        producer = AIOKafkaProducer(bootstrap_servers=self.deployment.kafka, acks="all")
        await producer.start()
        try:
            topic = self.deployment.prefix + POOL_DEMAND.name
            yield Reporter(producer, topic, PARTITIONS, self.claimed, rng)
        finally:
            await producer.stop()

    async def owned(self, name: str) -> set[str]:
        """Partitions that a provisioner owns, as "topic/partition"."""
        status = await self.deployment.call("GET", name, "/status")
        return {f"{row['topic']}/{row['partition']}" for row in status["partitions"] if row["owned"]}

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        """Rows of the provisioner, read as superuser."""
        db = await asyncpg.connect(self.deployment.database_url)
        try:
            rows: list[Any] = await db.fetch(query, *arguments)
            return rows
        finally:
            await db.close()

    async def requested(self, since: float) -> list[tuple[str, float]]:
        """Pool and time of each machine that was requested since a time."""
        return [(row["pool_id"], row["at"]) for row in await self.fetch(REQUESTED, since)]

    async def pool_of(self) -> Mapping[str, str]:
        """Pool of each launch config."""
        return dict(await self.fetch(POOL_OF))

    def played(self) -> list[facts.Fact]:
        """The simulator's ledger."""
        return list(ledger.read(self.deployment.ledger))

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time of each process so far, of PostgreSQL with that of its sessions."""
        found = {}
        for name in ("postgres", "kafka", *self.names, *OTHERS):
            process = psutil.Process(self.supervisor[name].pid)
            found[name] = 0.0
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):  # a worker of autovacuum ends by itself
                    found[name] += sum(each.cpu_times()[:2])
        return found

    async def planner(self, pending: Mapping[str, int]) -> Planner:
        """Planner on the database of the deployment, whose services end."""
        for name in (SERVICE, *OTHERS):
            await self.supervisor.kill(name)
        return await planner(self.deployment.database_url, self.claimed, pending)


@contextlib.asynccontextmanager
async def deployed(supervisor: Supervisor, folder: Path, cell: Cell) -> AsyncIterator[Deployed]:
    """Start everything, declare the cell and fill it."""
    environment = {"provisioner": {"SLIPWAY_REQUESTS_PER_SECOND_MAX": "1000000"}}  # all sources have one token
    deployment = Deployment(supervisor, folder, speed=1.0, seconds=SECONDS, environment=environment)
    deployment.http.timeout = 120.0
    try:
        await deployment.start()
        await deployment.call("POST", "simulator", "/scenario", SCENARIO)
        declared = Declaration.model_validate(cells.declaration(cell))
        await deployment.apply(declared)
        await _drop_first_plans(deployment.database_url)
        claimed = await cells.fill(deployment.database_url, cell)
        await harness.make_template(deployment.postgres_server)
        yield Deployed(supervisor, deployment, claimed)
    finally:
        await supervisor.stop()
        await deployment.remove()


async def _drop_first_plans(url: str) -> None:
    """Wait until every config has a weight and all events are published. The first plans of new pools, a minute of
    work, are dropped meanwhile."""
    provisioner = await postgres.session(url, SERVICE)
    superuser = await asyncpg.connect(url)
    try:

        async def settled() -> bool:
            await provisioner.execute("DELETE FROM dirty_pool")
            return bool(await provisioner.fetchval(WEIGHED)) and all(
                [
                    await superuser.fetchval(PUBLISHED.format(schema=schema))
                    for schema in ("provisioner", "weight_calculator")
                ]
            )

        await until(settled, "every launch config has a weight", seconds=120.0)
    finally:
        await provisioner.close()
        await superuser.close()


async def reference(server: Any, cell: Cell) -> Planner:
    """Planner on a database of its own with a cell, whose events nobody publishes."""
    url = await server.create_database("reference")
    await migrate.upgrade(url, SERVICE)
    database = await postgres.connect(url, SERVICE, size=1)
    try:
        await database.execute("UPDATE incarnation SET server = slipway_server()")
        await Provisioner(database).declare(cells.declaration(cell))
        await database.execute(PASSED)
    finally:
        await database.close()
    claimed = await cells.fill(url, cell)
    return await planner(url, claimed, dict.fromkeys(claimed, 0))


async def take_over(there: Deployed, killed: str, others: Sequence[str]) -> tuple[set[str], float]:
    """Kill a provisioner; returns its partitions, and the seconds until the others own all of them."""
    lost = await there.owned(killed)
    began = asyncio.get_running_loop().time()
    await there.supervisor.kill(killed)

    async def owned() -> bool:
        return lost <= set().union(*[await there.owned(name) for name in others])

    await until(owned, f"the partitions of {killed} are owned", seconds=60.0)
    return lost, asyncio.get_running_loop().time() - began
