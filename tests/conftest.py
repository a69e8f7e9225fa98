"""Fixtures: one Apache Kafka and one PostgreSQL per test session, started on first use; a place with its own database
and topics per test. Fixtures import their dependencies themselves, since these take more than half of the startup
of a run of pure tests, and every mutant is such a run."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from slipway_local.ec2.server import EmbeddedEc2
    from slipway_local.servers.kafka import EmbeddedKafka
    from slipway_local.servers.postgres import EmbeddedPostgres
    from tests.support.harness import Place
    from tests.support.lease_broker import Broker
    from tests.support.provisioner import Provisioner

# A shell without job control starts background commands with these ignored, and children of tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
# The same under nohup. A handler that does nothing keeps this process alive, and its children start with the default.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Workers under test are processes, also on an EC2 instance; tests of its metadata service give a fake one.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

# httpx2 looks for this module, which is not installed, at each request to an app, in all folders of the path.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]

# One broken law must be one failed assertion, since mutants are judged by assertions. Neither an example nor its
# generation has a deadline, since their time depends on the machine.
settings.register_profile(
    "one-at-a-time", report_multiple_bugs=False, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("one-at-a-time")


@pytest.fixture(scope="session")
def session_folder() -> Iterator[Path]:
    """Folder for the data of the session's servers; removed afterwards, even if the session is killed."""
    from tests.support.folders import temporary_folder

    with temporary_folder("slipway-tests-") as folder:
        yield folder


@pytest.fixture(scope="session")
async def kafka(session_folder: Path) -> "AsyncIterator[EmbeddedKafka]":
    from slipway_local.servers.kafka import EmbeddedKafka

    broker = EmbeddedKafka(session_folder / "kafka")
    await broker.start()
    yield broker
    await broker.kill()  # its data are discarded, and closing hundreds of partitions takes seconds


@pytest.fixture(scope="session")
async def ec2_server(session_folder: Path) -> "AsyncIterator[EmbeddedEc2]":
    """The stand-in for EC2. A test that uses it clears it first (`DELETE /scenario`)."""
    from slipway_local.ec2.server import EmbeddedEc2

    server = EmbeddedEc2(session_folder / "ec2")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="session")
async def postgres(session_folder: Path) -> "AsyncIterator[EmbeddedPostgres]":
    from slipway_local.servers.postgres import EmbeddedPostgres

    # Writes of a killed server survive in the system's cache, so that fsync matters only for power failures, while
    # recovery would sync every file of every test's database. The log of databases that were dropped is not kept long.
    server = EmbeddedPostgres(session_folder / "postgres", {"fsync": "off", "max_wal_size": "128MB"})
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="session")
async def templated(postgres: "EmbeddedPostgres") -> "EmbeddedPostgres":
    """The server with the template of places."""
    from tests.support import harness

    await harness.make_template(postgres)
    return postgres


@pytest.fixture(scope="session")
async def servers(kafka: "EmbeddedKafka", templated: "EmbeddedPostgres") -> "tuple[EmbeddedKafka, EmbeddedPostgres]":
    return kafka, templated


@pytest.fixture
async def place(servers: "tuple[EmbeddedKafka, EmbeddedPostgres]") -> "AsyncIterator[Place]":
    from tests.support import harness

    async with harness.new_place(servers) as place:
        yield place


@pytest.fixture
async def provisioner(postgres: "EmbeddedPostgres") -> "AsyncIterator[Provisioner]":
    from tests.support.provisioner import provisioner_on

    async with provisioner_on(postgres) as provisioner:
        yield provisioner


@pytest.fixture
async def broker(postgres: "EmbeddedPostgres") -> "AsyncIterator[Broker]":
    """A lease-broker with a lease pool, on an empty database of its own."""
    from tests.support.lease_broker import broker_on, terms

    async with broker_on(postgres) as broker:
        await broker.declare(terms())
        await broker.events()
        yield broker
