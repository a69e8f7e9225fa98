"""What the benchmark of loops counts."""

from bench.loops.cost import cpu_seconds
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.provisioner import provisioner_on

BUSY = "SELECT sum(n) FROM generate_series(1, 3_000_000) AS n"
BUSY_SECONDS = 0.05  # a fifth of what it takes, and fifty times what the process takes to ask for it


async def test_time_in_the_database_is_counted(postgres: EmbeddedPostgres) -> None:
    """Of a service's sessions, which have its role."""
    async with provisioner_on(postgres) as provisioner:
        assert await cpu_seconds(provisioner.database, lambda: provisioner.database.fetchval(BUSY)) > BUSY_SECONDS
