"""The provisioner under interleavings: no test may end with a deadlock, which PostgreSQL would end by a victim."""

from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.support.provisioner import Provisioner

DEADLOCKS: Final = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.fixture
async def provisioner(provisioner: Provisioner) -> AsyncIterator[Provisioner]:
    yield provisioner
    await provisioner.database.execute("SELECT pg_stat_force_next_flush()")
    assert await provisioner.database.fetchval(DEADLOCKS) == 0
