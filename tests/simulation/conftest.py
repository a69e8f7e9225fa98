"""One PostgreSQL for all histories of a test session, beside that of other tests and with the settings of a run."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from slipway_local.servers.postgres import EmbeddedPostgres


@pytest.fixture(scope="session")
async def postgres(session_folder: Path) -> "AsyncIterator[EmbeddedPostgres]":
    from slipway_local.servers.postgres import EmbeddedPostgres
    from tests.simulation.run import FAST

    server = EmbeddedPostgres(session_folder / "simulation", FAST)
    await server.start()
    yield server
    await server.stop()
