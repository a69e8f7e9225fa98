"""Fixtures of the scheduler's checks."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.terraform import installed
from tests.support.terraform_fleet import Fleet, fleet_on
from tests.support.terraform_runs import Place, new_place

if TYPE_CHECKING:
    from slipway_terraform.scheduler.shared import SharedScheduler
    from tests.support.terraform_aws import AwsCloud


@pytest.fixture
def place() -> Iterator[Place]:
    """A ledger, its provider in a mirror, and room for modules and runs. Skips the test without Terraform."""
    with new_place() as opened:
        yield opened


@pytest.fixture
async def shared(place: Place) -> "AsyncIterator[SharedScheduler]":
    """One process per configuration. Ends by itself what the test leaves."""
    from tests.support.terraform_runs import schedulers

    async with schedulers(place.folder) as opened:
        yield opened


@pytest.fixture(scope="session")
async def aws(session_folder: Path) -> "AsyncIterator[AwsCloud]":
    """moto, of which a test clears what it needs empty (`await aws.server.reset()`)."""
    installed()
    from tests.support.terraform_aws import AwsCloud

    cloud = AwsCloud(session_folder)
    await cloud.server.start()
    yield cloud
    await cloud.server.stop()


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Folder for the sockets of plugins, whose paths have little room."""
    with tempfile.TemporaryDirectory(prefix="tf-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
async def fleet(postgres: EmbeddedPostgres) -> AsyncIterator[Fleet]:
    async with fleet_on(postgres) as fleet:
        yield fleet
