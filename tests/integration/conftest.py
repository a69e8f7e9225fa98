"""A database and topics of its own for each test of what all services share."""

from collections.abc import AsyncIterator

import pytest

from slipway_local.kafka import EmbeddedKafka
from slipway_local.postgres import EmbeddedPostgres
from tests import harness
from tests.harness import Place


@pytest.fixture(scope="session")
async def servers(kafka: EmbeddedKafka, postgres: EmbeddedPostgres) -> tuple[EmbeddedKafka, EmbeddedPostgres]:
    await harness.make_template(postgres)
    return kafka, postgres


@pytest.fixture
async def place(servers: tuple[EmbeddedKafka, EmbeddedPostgres]) -> AsyncIterator[Place]:
    async with harness.new_place(servers) as place:
        yield place
