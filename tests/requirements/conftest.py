"""One test per requirement of the lease-broker, on real PostgreSQL. `broker` is a broker without processes, with a
clock set by the test; `live` are broker processes, two or with FULL=1 eight, shared by all tests."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor
from tests.requirements.live import Live
from tests.support.lease_broker import Broker, broker_on

BROKERS = 8 if os.environ.get("FULL") == "1" else 2


@pytest.fixture
async def broker(postgres: EmbeddedPostgres) -> AsyncIterator[Broker]:
    async with broker_on(postgres) as broker:
        yield broker


@pytest.fixture(scope="session")
async def live(kafka: EmbeddedKafka, postgres: EmbeddedPostgres, session_folder: Path) -> AsyncIterator[Live]:
    async with Supervisor() as supervisor:
        live = Live(supervisor, session_folder, kafka, postgres, name="requirements", brokers=BROKERS)
        try:
            await live.start()
            yield live
        finally:
            live.close()
