"""One database for all of these tests, emptied for each: they are many and small."""

from collections.abc import AsyncIterator

import pytest

from slipway_local.postgres import EmbeddedPostgres
from tests.contract.boskos.garage import Garage, garage_on


@pytest.fixture(scope="session")
async def building(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Garage]:
    async with garage_on(postgres, tmp_path_factory.mktemp("garage")) as garage:
        yield garage


@pytest.fixture
async def garage(building: Garage) -> Garage:
    building.use()
    await building.open()
    return building
