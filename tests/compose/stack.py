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
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import asyncpg

from slipway_local.servers.cache import to_the_end
from slipway_local.servers.child import Account, Child
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor
from tests.compose.image import Builder, Image, Layers, base_folder
from tests.compose.rules import KAFKA_OWN, ComposeFiles, Container, containers

HEALTHY_SECONDS: Final = 120.0  # generous for a busy machine
ONE_SHOT_SECONDS: Final = 120.0
# The group that may read the secrets; the compose file adds it to PostgreSQL's user.
SECRETS_GROUP: Final = 10001


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

    def __init__(self, house: ComposeFiles, folder: Path, supervisor: Supervisor) -> None:
        self.house = house
        self.folder = folder
        self.supervisor = supervisor
        self.entries = containers(house)
        self.ours = {name: one for name, one in self.entries.items() if one.dockerfile}
        self.images: dict[str, asyncio.Future[Image]] = {}
        self.children: dict[str, Child] = {}
        self.up: dict[str, asyncio.Task[None]] = {}
        self.seconds: dict[str, float] = {}
        self.abandoned = False
        self.logs = folder / "logs"
        self.volumes = folder / "volumes"
        kafka = properties(self.entries["kafka"].environment)
        self.kafka = ComposedKafka(folder / "kafka", kafka)
        self.ports = {(name, port): free_ports(1)[0] for name, one in self.ours.items() for port in one.ports()}
        self.ports |= {("postgres", "5432"): free_ports(1)[0], ("kafka", "19092"): int(self.kafka.bootstrap[10:])}
        access = folder / "pg_hba.conf"
        access.write_text("local all postgres trust\nhost all slipway 127.0.0.1/32 scram-sha-256\n")
        self.postgres = EmbeddedPostgres(
            folder / "postgres",
            {
                "listen_addresses": "127.0.0.1",
                "port": str(self.ports["postgres", "5432"]),
                "hba_file": str(access),
                "fsync": "off",
            },
        )

    async def start(self) -> None:
        """Start the default profile and return when `up --wait` would return. Raises StackFailed or BuildFailed."""
        loop = asyncio.get_running_loop()
        paths = list(dict.fromkeys(self._path(one) for one in self.ours.values()))
        self.images = {path: loop.create_future() for path in paths}
        wanted = [name for name, one in self.entries.items() if not one.profiles]
        async with asyncio.TaskGroup() as group:
            servers = group.create_task(self.supervisor.start(self.kafka, self.postgres))
            group.create_task(to_the_end(lambda: self._build(paths, loop)))
            for name in wanted:
                self.up[name] = group.create_task(self._bring_up(name, servers))

    def _path(self, one: Container) -> str:
        return str(one.entry["build"]["dockerfile"])

    def _build(self, paths: list[str], loop: asyncio.AbstractEventLoop) -> None:
        base = base_folder(self.folder / "base")
        layers = Layers(self.folder / "layers")
        builders = [Builder(path, self.house.dockerfiles[path], self.house.root, base, layers) for path in paths]
        layers.shared = {key for key, count in Counter(k for b in builders for k in b.run_keys()).items() if count > 1}
        for builder in builders:
            if self.abandoned:
                return
            begin = time.monotonic()
            image = builder.build(self.folder / f"image-{Path(builder.path).parent.name}")
            self.seconds[f"build {builder.path}"] = time.monotonic() - begin
            if unfit := image.unfit():
                raise StackFailed(f"{builder.path}: {', '.join(unfit)}")
            loop.call_soon_threadsafe(self.images[builder.path].set_result, image)

    async def _bring_up(self, name: str, servers: "asyncio.Task[None]") -> None:
        try:
            await self._begin(name, servers)
        except BaseException:
            self.abandoned = True  # stops the build of further images
            raise

    async def _begin(self, name: str, servers: "asyncio.Task[None]") -> None:
        one = self.entries[name]
        for other in one.entry.get("depends_on", {}):
            await asyncio.shield(self.up[other])
        begin = time.monotonic()
        if name in ("kafka", "postgres"):
            await asyncio.shield(servers)
            if name == "postgres":
                await self._create_user()
        else:
            image = await asyncio.shield(self.images[self._path(one)])
            begin = time.monotonic()  # the time of the build is counted separately
            if one.one_shot:
                await self.run_once(name)
            else:
                await self._serve(one, image)
        self.seconds[name] = time.monotonic() - begin

    async def _create_user(self) -> None:
        """Create user and database from POSTGRES_*, as the PostgreSQL image does; the secrets have to be readable."""
        given = self.entries["postgres"].environment
        path = self._outside(given["POSTGRES_PASSWORD_FILE"], self.entries["postgres"])
        stat = os.stat(path)
        if os.geteuid() == 0 and (stat.st_gid != SECRETS_GROUP or stat.st_mode & 0o777 != 0o640):
            raise StackFailed(f"PostgreSQL's user cannot read {path}: mode {stat.st_mode:o}, group {stat.st_gid}")
        password = Path(path).read_text().strip()
        db = await asyncpg.connect(self.postgres.url())
        try:
            await db.execute(f"CREATE ROLE {given['POSTGRES_USER']} SUPERUSER LOGIN PASSWORD '{password}'")
            await db.execute(f"CREATE DATABASE {given['POSTGRES_DB']} OWNER {given['POSTGRES_USER']}")
        finally:
            await db.close()

    async def run_once(self, name: str, command: list[str] | None = None) -> str:
        """Run a one-shot service to its end; returns its output. Raises StackFailed unless it exits with 0."""
        one = self.entries[name]
        image = await asyncio.shield(self.images[self._path(one)])
        child = self._child(one, image, command or one.command)
        child.start()
        try:
            async with asyncio.timeout(ONE_SHOT_SECONDS):
                code = await child.wait()
        except TimeoutError:
            raise StackFailed(f"{name} did not exit within {ONE_SHOT_SECONDS:g} s{child.log_tail()}") from None
        finally:
            await child.kill()
        if code != 0:
            raise StackFailed(f"{name} exited with code {code}{child.log_tail()}")
        return child.log_tail(1000)

    async def _serve(self, one: Container, image: Image) -> None:
        child = self.children[one.name] = self._child(one, image, one.command)
        child.start()
        deadline = time.monotonic() + HEALTHY_SECONDS
        check = self._child(one, image, one.health_command, log=f"{one.name}.health")
        while True:
            check.start()
            try:
                code = await check.wait()
            finally:
                await check.kill()
            if code == 0:
                return
            if not child.alive:
                raise StackFailed(f"{one.name} exited with code {child.exit_code}{child.log_tail()}")
            if time.monotonic() > deadline:
                raise StackFailed(f"{one.name} is not healthy{check.log_tail(3)}{child.log_tail()}")
            await asyncio.sleep(0.5)  # an engine checks each second; every check starts an interpreter

    def _child(self, one: Container, image: Image, command: list[str], log: str = "") -> Child:
        program, *arguments = (self._outside(word, one) for word in command)
        temporary = self.folder / "tmpfs" / one.name
        if not temporary.exists():
            temporary.mkdir(parents=True)
            temporary.chmod(0o1777)
        environment = {name: self._outside(value, one) for name, value in image.environment.items()}
        environment |= {name: self._outside(str(v), one) for name, v in one.entry.get("environment", {}).items()}
        environment |= {"HOME": str(temporary), "TMPDIR": str(temporary)}
        if "SLIPWAY_HOST" in environment:
            (port,) = one.ports()
            environment |= {"SLIPWAY_HOST": "127.0.0.1", "SLIPWAY_PORT": str(self.ports[one.name, port])}
        may_change = os.geteuid() == 0
        return Child(
            one.name,
            [image.find(program), *arguments],
            log=self.logs / f"{log or one.name}.log",
            env=environment,
            cwd=temporary,
            account=Account(image.uid, image.gid) if may_change else None,
        )

    def _outside(self, text: str, one: Container) -> str:
        """Text with addresses and paths of containers replaced by those of this machine."""
        for (name, port), free in self.ports.items():
            text = re.sub(rf"\b{name}:{port}\b", f"127.0.0.1:{free}", text)
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
                text = (self.house.root / source).read_text()
                copy.write_text(re.sub(r"\b([a-z][a-z-]*[a-z]):(\d{4,5})\b", self._address, text))
            return copy
        volume = self.volumes / source
        if not volume.exists():
            volume.mkdir(parents=True)
            image = self.images[self._path(one)].result() if one.dockerfile else None
            below = image.root / target.lstrip("/") if image else None
            if below is not None and below.exists() and os.geteuid() == 0:
                stat = below.stat()
                os.chown(volume, stat.st_uid, stat.st_gid)
        return volume

    def _address(self, found: re.Match[str]) -> str:
        free = self.ports.get((found[1], found[2]))
        return f"127.0.0.1:{free}" if free else found[0]

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
        """Kill all services."""
        for child in self.children.values():
            await child.kill()
