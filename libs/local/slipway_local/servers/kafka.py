"""Embedded Apache Kafka: one KRaft node, the same broker that production runs. Creates no topics.

jars.py provides the jars, java.py the Java, child.py the process.
"""

import asyncio
import base64
import hashlib
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from slipway_common.messaging.clients import Kafka, client_options
from slipway_local.servers.cache import build_once, to_the_end
from slipway_local.servers.child import Child, StartFailed
from slipway_local.servers.jars import BROKER_FILES, classpath, ensure_jars
from slipway_local.servers.java import ClassArchive, Java, find_java
from slipway_local.servers.ports import free_ports

# For a small footprint and a quick start, at the cost of peak throughput: only the C1 compiler, the serial collector.
JVM_OPTIONS: Final = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
IDS: Final = re.compile(r"^(cluster\.id|directory\.id)=.*", re.MULTILINE)  # in meta.properties of formatted storage
NO_USERS: Final[Mapping[str, str]] = MappingProxyType({})
START_SECONDS: Final = 90.0  # 2 to 4 s on an idle machine, more beside other tests

# The quorum is static (`controller.quorum.voters`). A dynamic one writes the controller's port into the formatted
# storage, but the ports of an embedded broker differ from run to run.
SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={storage}
auto.create.topics.enable=false

# After SIGKILL a broker waits until its previous registration has expired, by default 9 s.
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500

# One node holds every replica, and a few groups need only a few internal partitions.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=2

# Each thread that waits for requests wakes up several times a second.
num.io.threads=2
num.network.threads=1
group.coordinator.threads=1
share.coordinator.threads=1

# The first member of a group does not wait for others, and tests may use short session time-outs.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
"""


class EmbeddedKafka:
    """One broker on one data folder. Its ports are chosen once and kept over restarts of this object."""

    name = "kafka"

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        *,
        access: Callable[[str], Kafka] = str,
        scram: Mapping[str, str] = NO_USERS,
    ) -> None:
        """`settings` extend or replace SETTINGS; {port} and {controller_port} in their values are filled in. `access`
        makes of its address how the broker itself is asked if it is ready. `scram` are passwords of the users of
        SCRAM-SHA-512 with which the storage is formatted."""
        self._data_dir = data_dir.absolute()
        self._template = SETTINGS + "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
        self._access = access
        self._scram = scram
        self._port = port
        self._controller_port = 0
        self._child: Child | None = None
        self._archive: ClassArchive | None = None
        self.java: Java | None = None  # found by the first start

    @property
    def bootstrap(self) -> str:
        """Address for clients as host:port. Raises RuntimeError before the first start."""
        if not self._port:
            raise RuntimeError("the broker has no port before its first start; call start()")
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    @property
    def log(self) -> Path:
        return self._data_dir / "kafka.log"

    async def start(self) -> None:
        """Start the broker; return when it answers metadata requests. Downloads jars on first use."""
        jars = await ensure_jars()
        if self.java is None:
            self.java = await asyncio.to_thread(find_java)
        self._data_dir.mkdir(parents=True, exist_ok=True)
        if not self._port or not self._controller_port:
            port, self._controller_port = free_ports(2)
            self._port = self._port or port
        path = classpath(jars)
        self._archive = ClassArchive(self.java, JVM_OPTIONS, path, jars)
        if not self.storage.exists():
            await to_the_end(lambda: self._format_own(path) if self._scram else self._copy_formatted(jars, path))
        class_list = self._data_dir / "classes.list"
        command = self._command(*self._archive.options(class_list), "kafka.Kafka", self._write_settings(self.storage))
        self._child = Child(self.name, command, log=self.log, env={**os.environ, "CLASSPATH": path})
        self._child.start()
        await self._child.ready(self._answers, START_SECONDS)
        self._archive.make(class_list)

    async def stop(self) -> None:
        """Shut down cleanly."""
        await self._end_archive()
        if self._child is not None:
            await self._child.stop()

    async def kill(self) -> None:
        """Send SIGKILL, like a crash; `start` brings the broker back on the same port and data."""
        if self._child is not None:
            await self._child.kill()
        await self._end_archive()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def signal(self, signum: int) -> None:
        if self._child is not None:
            self._child.signal(signum)

    def log_tail(self) -> str:
        return self._child.log_tail() if self._child is not None else ""

    @property
    def storage(self) -> Path:
        return self._data_dir / "storage"

    def _write_settings(self, storage: Path) -> Path:
        path = storage.with_suffix(".properties")
        path.write_text(self._template.format(port=self._port, controller_port=self._controller_port, storage=storage))
        return path

    def _copy_formatted(self, jars: Path, path: str) -> None:
        """Copy formatted storage under new ids; blocks. A killed copy leaves no storage."""
        unfinished = self.storage.with_name("unformatted")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(self._formatted(jars, path), unfinished)
        properties = unfinished / "meta.properties"
        properties.write_text(IDS.sub(lambda found: f"{found[1]}={new_id()}", properties.read_text()))
        unfinished.rename(self.storage)

    def _format_own(self, path: str) -> None:
        """Format storage that holds passwords; blocks. A killed one leaves no storage."""
        unfinished = self.storage.with_name("unformatted")
        shutil.rmtree(unfinished, ignore_errors=True)
        self._format(unfinished, path)
        unfinished.rename(self.storage)

    def _formatted(self, jars: Path, path: str) -> Path:
        """Freshly formatted storage to copy from, built once per version and settings; blocks."""
        key = hashlib.sha256(self._template.encode()).hexdigest()[:12]
        return build_once(jars / f"storage-{key}", lambda folder: self._format(folder, path))

    def _format(self, folder: Path, path: str) -> None:
        settings = self._write_settings(folder)
        argv = self._command("kafka.tools.StorageTool", "format", "--cluster-id", new_id(), "--config", settings)
        for user, password in self._scram.items():
            argv += ["--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]"]
        try:
            done = subprocess.run(argv, env={**os.environ, "CLASSPATH": path}, capture_output=True, text=True)
        finally:
            settings.unlink()
        if done.returncode != 0:
            raise StartFailed(f"Kafka's storage could not be formatted\n{done.stdout}{done.stderr}")

    def _command(self, *arguments: str | Path) -> list[str | Path]:
        assert self.java is not None
        logging_file = f"-Dlog4j2.configurationFile={BROKER_FILES / 'log4j2.properties'}"
        return [self.java.executable, *JVM_OPTIONS, logging_file, *arguments]

    async def _answers(self) -> bool:
        """True if a metadata answer names a broker; the port is open earlier."""
        if not await accepts_connections(self._port):
            return False  # checked first because the client logs every refused connection as an error
        admin = AIOKafkaAdminClient(**client_options(self._access(self.bootstrap)), request_timeout_ms=2000)
        try:
            await admin.start()
            return bool((await admin.describe_cluster())["brokers"])
        except (KafkaError, OSError):
            return False
        finally:
            await admin.close()

    async def _end_archive(self) -> None:
        if self._archive is not None:
            await self._archive.abandon()


def new_id() -> str:
    """A random id of Kafka's. It never begins with `-`, because Kafka's tools would parse it as an option."""
    while (drawn := base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")).startswith("-"):
        pass
    return drawn


async def accepts_connections(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
