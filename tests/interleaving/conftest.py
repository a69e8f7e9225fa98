"""Two services under interleavings. No test of the provisioner may end with a deadlock, which PostgreSQL would end."""

from collections.abc import AsyncIterator
from typing import Final

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.lease_broker import Broker, broker_on, terms
from tests.support.pairs import Pair, pair_on
from tests.support.provisioner import Provisioner

DEADLOCKS: Final = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.fixture
async def provisioner(provisioner: Provisioner) -> AsyncIterator[Provisioner]:
    yield provisioner
    await provisioner.database.execute("SELECT pg_stat_force_next_flush()")
    assert await provisioner.database.fetchval(DEADLOCKS) == 0


@pytest.fixture
async def broker(postgres: EmbeddedPostgres) -> AsyncIterator[Broker]:
    """With a limit of 3."""
    async with broker_on(postgres) as broker:
        await broker.declare(terms(limit=3))
        await broker.events()
        yield broker


@pytest.fixture
async def pair(postgres: EmbeddedPostgres) -> AsyncIterator[Pair]:
    async with pair_on(postgres) as sessions:
        yield sessions
