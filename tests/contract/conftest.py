"""A lease-broker with its routes, and a worker with its provisioner and queue, on a real database."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from slipway_local.servers.postgres import EmbeddedPostgres
    from tests.support.lease_broker_http import World
    from tests.support.worker_scenes import Scene


@pytest.fixture
async def world(postgres: "EmbeddedPostgres", tmp_path: Path) -> "AsyncIterator[World]":
    from tests.support.lease_broker_http import world_on

    async with world_on(postgres, tmp_path) as world:
        yield world


@pytest.fixture
async def scene(postgres: "EmbeddedPostgres", tmp_path: Path) -> "AsyncIterator[Scene]":
    from tests.support.worker_scenes import scene_on

    async with scene_on(postgres, tmp_path) as scene:
        yield scene
