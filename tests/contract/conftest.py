"""A lease-broker with its routes on a real database."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from slipway_local.servers.postgres import EmbeddedPostgres
    from tests.support.lease_broker_http import World


@pytest.fixture
async def world(postgres: "EmbeddedPostgres", tmp_path: Path) -> "AsyncIterator[World]":
    from tests.support.lease_broker_http import world_on

    async with world_on(postgres, tmp_path) as world:
        yield world
