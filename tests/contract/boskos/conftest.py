"""One database for all of these tests, emptied for each, since the tests are many and small."""

from collections.abc import AsyncIterator

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.contract.boskos.slot_broker import SlotBroker, slot_broker_on


@pytest.fixture(scope="session")
async def building(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SlotBroker]:
    async with slot_broker_on(postgres, tmp_path_factory.mktemp("slot_broker")) as slot_broker:
        yield slot_broker


@pytest.fixture
async def slot_broker(building: SlotBroker) -> SlotBroker:
    building.use()
    await building.open()
    return building
