"""Starts the services of docker-compose.yml, in its order and with its environment, without a container engine.

Volumes are folders, container names are ports of this machine, and Kafka and PostgreSQL are the embedded ones (Kafka
with the settings of the compose file, PostgreSQL with its password). Processes run as the user of their image, if this
process may change users; their tree belongs to another user, so it is read-only to them.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import asyncpg

from slipway_local.servers.cache import to_the_end
from slipway_local.servers.child import Account, Child
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor
from tests.compose.image import Builder, Image
from tests.compose.rules import ComposeFiles, Container, containers

WAIT_SECONDS: Final = 120.0  # generous for a busy machine
# Variables of the Kafka image that are not broker settings.
KAFKA_OWN: Final = {"KAFKA_HEAP_OPTS", "KAFKA_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS"}


class StackFailed(Exception):
    """A service did not start or did not stop correctly; the message has the end of its log."""


def properties(environment: Mapping[str, str]) -> dict[str, str]:
    """Broker settings that the Kafka image derives from its environment."""
    found = {}
    for variable, value in environment.items():
        if variable.startswith("KAFKA_") and variable not in KAFKA_OWN:
            words = re.split("(___|__|_)", variable.removeprefix("KAFKA_").lower())
            found["".join({"___": "-", "__": "_", "_": "."}.get(word, word) for word in words)] = value
    return found


class ComposedKafka(EmbeddedKafka):
    """Embedded broker with the settings of the compose file, except for addresses and the data folder."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str]) -> None:
        port, self.other_port = free_ports(2)
        super().__init__(data_dir, port)
        self._given = settings

    def _write_settings(self, storage: Path) -> Path:
        ports = {"19092": self._port, "9092": self.other_port, "29093": self._controller_port}
        lines = []
        for name, value in self._given.items():
            if name in ("listeners", "advertised.listeners", "controller.quorum.voters"):
                value = re.sub(r"(//|@)[\w.]*:(\d+)", lambda m: f"{m[1]}127.0.0.1:{ports[m[2]]}", value)
            lines.append(f"{name}={storage if name == 'log.dirs' else value}\n")
        path = storage.with_suffix(".properties")
        path.write_text("".join(lines))
        return path


class Stack:
    """One run of the default profile of the compose file in `folder`, which every user can enter."""

    def __init__(self, files: ComposeFiles, folder: Path, supervisor: Supervisor) -> None:
        self.files = files
        self.folder = folder
        self.supervisor = supervisor
        self.entries = containers(files)
        self.images: dict[str, Image] = {}  # by their names in the compose file
        self.children: dict[str, Child] = {}
        self.seconds: dict[str, float] = {}
        self.kafka = ComposedKafka(folder / "kafka", properties(self.entries["kafka"].environment))
        listening = [(name, port) for name, one in self.entries.items() if one.image for port in one.ports()]
        listening.append(("postgres", "5432"))
        self.ports = dict(zip(listening, free_ports(len(listening)), strict=True))
        self.ports["kafka", "19092"] = int(self.kafka.bootstrap[10:])
        access = folder / "pg_hba.conf"
        access.write_text("local all postgres trust\nhost all slipway 127.0.0.1/32 scram-sha-256\n")
        settings = {"listen_addresses": "127.0.0.1", "port": str(self.ports["postgres", "5432"]), "fsync": "off"}
        self.postgres = EmbeddedPostgres(folder / "postgres", settings | {"hba_file": str(access)})
        self.builder = Builder(files.root, folder / "build")

    async def start(self) -> None:
        """Start the default profile and return when `up --wait` would return. Raises StackFailed or BuildFailed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.supervisor.start(self.kafka, self.postgres))
            group.create_task(to_the_end(self._build))
        order = TopologicalSorter({name: one.needs for name, one in self.entries.items() if not one.profiles})
        order.prepare()
        while ready := order.get_ready():
            async with asyncio.TaskGroup() as group:
                for name in ready:
                    group.create_task(self._bring_up(self.entries[name]))
            order.done(*ready)

    def _build(self) -> None:
        for one in self.entries.values():
            if one.image and (name := one.entry["image"]) not in self.images:
                begin = time.monotonic()
                self.images[name] = self.builder.build(
                    one.dockerfile, one.arguments, self.folder / name.replace(":", "-")
                )
                self.seconds[f"build {name}"] = time.monotonic() - begin

    async def _bring_up(self, one: Container) -> None:
        begin = time.monotonic()
        if one.name == "postgres":
            await self._create_user(one)
        elif one.one_shot:
            await self.run_once(one.name)
        elif one.image:
            await self._serve(one)
        self.seconds[one.name] = time.monotonic() - begin

    async def _create_user(self, one: Container) -> None:
        """Create user and database from POSTGRES_*, as the PostgreSQL image does; the secrets have to be readable."""
        path = Path(self._outside(one.environment["POSTGRES_PASSWORD_FILE"], one))
        stat, user = path.stat(), one.environment["POSTGRES_USER"]
        if os.geteuid() == 0 and (str(stat.st_gid) not in one.entry["group_add"] or stat.st_mode & 0o777 != 0o640):
            raise StackFailed(f"PostgreSQL's user cannot read {path}: mode {stat.st_mode:o}, group {stat.st_gid}")
        db = await asyncpg.connect(self.postgres.url())
        try:
            await db.execute(f"CREATE ROLE {user} SUPERUSER LOGIN PASSWORD '{path.read_text().strip()}'")
            await db.execute(f"CREATE DATABASE {one.environment['POSTGRES_DB']} OWNER {user}")
        finally:
            await db.close()

    async def run_once(self, name: str, command: Sequence[str] = ()) -> str:
        """Run a one-shot service to its end; returns its output. Raises StackFailed unless it exits with 0."""
        child = self._child(self.entries[name], command or self.entries[name].command)
        child.start()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                code = await child.wait()
        except TimeoutError:
            raise StackFailed(f"{name} did not exit within {WAIT_SECONDS:g} s{child.log_tail()}") from None
        finally:
            await child.kill()
        if code != 0:
            raise StackFailed(f"{name} exited with code {code}{child.log_tail()}")
        return child.log_tail(1000)

    async def _serve(self, one: Container) -> None:
        """Start a service and return when its health check succeeds."""
        child = self.children[one.name] = self._child(one, one.command)
        check = self._child(one, one.health_command, ".health")
        child.start()
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            check.start()
            try:
                if await check.wait() == 0:
                    return
            finally:
                await check.kill()
            if not child.alive:
                raise StackFailed(f"{one.name} exited with code {child.exit_code}{child.log_tail()}")
            if time.monotonic() > deadline:
                raise StackFailed(f"{one.name} is not healthy{check.log_tail(3)}{child.log_tail()}")
            await asyncio.sleep(0.5)  # an engine checks each second; every check starts an interpreter

    def _child(self, one: Container, command: Sequence[str], log: str = "") -> Child:
        image = self.images[one.entry["image"]]
        temporary = self.folder / "tmpfs" / one.name
        if not temporary.exists():
            temporary.mkdir(parents=True)
            temporary.chmod(0o1777)
        given = image.environment | {name: str(value) for name, value in one.entry.get("environment", {}).items()}
        environment = {name: self._outside(value, one) for name, value in given.items()}
        environment |= {"HOME": str(temporary), "TMPDIR": str(temporary)}
        for port in one.ports():
            environment |= {"SLIPWAY_HOST": "127.0.0.1", "SLIPWAY_PORT": str(self.ports[one.name, port])}
        program, *arguments = (self._outside(word, one) for word in command)
        return Child(
            one.name,
            [image.find(program), *arguments],
            log=self.folder / "logs" / f"{one.name}{log}.log",
            env=environment,
            cwd=temporary,
            account=Account(image.uid, image.gid) if os.geteuid() == 0 else None,
        )

    def _outside(self, text: str, one: Container) -> str:
        """Text with addresses and paths of containers replaced by those of this machine."""
        text = self._addressed(text)
        for mount in one.entry.get("volumes", []):
            source, target = str(mount).split(":")[:2]
            if target in text:
                text = text.replace(target, str(self._mounted(source, target, one)))
        return text

    def _mounted(self, source: str, target: str, one: Container) -> Path:
        """Path of a mount: a copy of a bind-mounted file with replaced addresses, or the folder of a volume, which has
        the owner that the folder has in the first image that mounts it."""
        if source.startswith("."):
            copy = self.folder / "mounted" / Path(target).name
            if not copy.exists():
                copy.parent.mkdir(exist_ok=True)
                copy.write_text(self._addressed((self.files.root / source).read_text()))
            return copy
        volume = self.folder / "volumes" / source
        if not volume.exists():
            volume.mkdir(parents=True)
            inside = self.images[one.entry["image"]].root / target.lstrip("/")
            if inside.exists() and os.geteuid() == 0:
                os.chown(volume, inside.stat().st_uid, inside.stat().st_gid)
        return volume

    def _addressed(self, text: str) -> str:
        for (name, port), free in self.ports.items():
            text = re.sub(rf"\b{name}:{port}\b", f"127.0.0.1:{free}", text)
        return text

    @property
    def token(self) -> str:
        """Token of the operator, which the first start has created."""
        return (self.folder / "volumes" / "secrets" / "operator_token").read_text().strip()

    def url(self, name: str) -> str:
        """URL of a service on this machine."""
        (port,) = self.entries[name].ports()
        return f"http://127.0.0.1:{self.ports[name, port]}"

    async def stop(self) -> None:
        """Stop the services as an engine does. Raises StackFailed for one that does not exit by itself or cleanly."""
        for child in self.children.values():
            child.signal(signal.SIGTERM)
        for child in self.children.values():
            alive = child.alive
            await child.stop()
            if alive and child.exit_code not in (0, -signal.SIGTERM):
                raise StackFailed(f"{child.name} exited with code {child.exit_code} after SIGTERM{child.log_tail()}")

    async def kill(self) -> None:
        for child in self.children.values():
            await child.kill()
