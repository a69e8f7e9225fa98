"""A daemon of the Terraform scheduler for tests, in this process or in one of its own, and clients of it."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import psutil

from slipway_local.servers.child import Child
from slipway_local.terraform.ledger import SOURCE, VERSION, Ledger, write_executable
from slipway_terraform.daemon.server import Daemon
from slipway_terraform.daemon.settings import Settings
from slipway_terraform.domain.specs import Mode, ProviderSpec
from tests.support.harness import until

REPLY_SECONDS: Final = 30.0


class Raw:
    """A connection that sends whatever a test writes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def line(self) -> dict[str, Any]:
        """Next reply. Raises AssertionError if there is none."""
        line = await self._read()
        assert line, "the daemon has closed the connection"
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def closed(self) -> bool:
        """True if the daemon closes the connection and replies no more."""
        try:
            return await self._read() == b""
        except ConnectionResetError:
            return True

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                return await self.reader.readline()
        except TimeoutError:
            raise AssertionError(f"nothing within {REPLY_SECONDS:g} s") from None

    async def send(self, line: bytes) -> dict[str, Any]:
        self.writer.write(line)
        return await self.line()

    async def call(self, method: str, params: Mapping[str, Any] | None = None, id_: int | str = 1) -> dict[str, Any]:
        self.write(method, params, id_)
        return await self.line()

    def write(self, method: str, params: Mapping[str, Any] | None = None, id_: int | str = 1) -> None:
        request = {"jsonrpc": "2.0", "id": id_, "method": method} | ({} if params is None else {"params": params})
        self.writer.write(json.dumps(request).encode() + b"\n")


@contextlib.asynccontextmanager
async def connected(socket: Path) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


async def accepts(socket: Path) -> bool:
    async with connected(socket):
        return True


@contextlib.asynccontextmanager
async def serving(daemon: Daemon, settings: Settings) -> AsyncIterator[Path]:
    """Runs the daemon in this process, and stops it at once at the end."""
    stop, stop_now = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(daemon.run(stop, stop_now))
    try:
        await until(lambda: accepts(settings.socket), "the daemon accepts connections")
        yield settings.socket
    finally:
        stop.set()
        stop_now.set()
        await running


def settings_for(folder: Path, **changes: Any) -> Settings:
    return msgspec.structs.replace(Settings(socket=folder / "daemon" / "daemon.sock"), **changes)


class Plugin:
    """The provider `ledger` as an executable in a folder, and its ledger."""

    def __init__(self, folder: Path) -> None:
        self.binary = folder / "plugin"
        self.digest = write_executable(self.binary)
        self.ledger = Ledger(folder / "ledger")

    def configuration(self, region: str = "east") -> dict[str, str]:
        return {"folder": str(self.ledger.folder), "region": region}

    def spec(self, region: str = "east") -> ProviderSpec:
        return ProviderSpec(
            source=SOURCE,
            version=VERSION,
            binary=str(self.binary),
            digest=self.digest,
            arguments=("--dev",),
            mode=Mode.DEBUG,
            configuration=self.configuration(region),
        )

    def root(self, region: str, name: str) -> dict[str, Any]:
        return {
            "terraform": {"required_providers": {"ledger": {"source": SOURCE}}},
            "provider": {"ledger": self.configuration(region)},
            "resource": {"ledger_machine": {"one": {"name": name}}},
        }

    def settings(self, socket: Path, scheduler: str, **policy: float) -> str:
        """Settings of a daemon that may start this plugin, as TOML."""
        lines = [
            f"socket = {json.dumps(str(socket))}",
            f'scheduler = "{scheduler}"',
            "[policy]",
            *(f"{name} = {value}" for name, value in policy.items()),
            "[[provider]]",
            f'source = "{SOURCE}"',
            f'version = "{VERSION}"',
            f"binary = {json.dumps(str(self.binary))}",
            f'digest = "{self.digest}"',
            'arguments = ["--dev"]',
            'mode = "debug"',
        ]
        return "\n".join(lines) + "\n"


class DaemonProcess:
    """`slipway-terraform serve` as a process, with settings in its folder."""

    def __init__(self, folder: Path, settings: str) -> None:
        folder.mkdir(exist_ok=True)
        self.socket = folder / "run" / "daemon.sock"
        file = folder / "daemon.toml"
        file.write_text(settings)
        argv: list[str | Path] = [sys.executable, "-m", "slipway_terraform.main", "serve", "--settings", file]
        self.child = Child("slipway-terraform", argv, log=folder / "daemon.log", stop_signal=15)

    async def __aenter__(self) -> Self:
        self.child.start()
        await until(lambda: accepts(self.socket), "the daemon accepts connections")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.child.stop()

    def plugins(self, binary: Path) -> list[psutil.Process]:
        """Processes that run the plugin, in the process table."""
        return [
            process for process in psutil.process_iter(["cmdline"]) if str(binary) in (process.info["cmdline"] or ())
        ]


class Client:
    """A process that holds a lease: `tests.support.terraform_client`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, socket: Path, folder: Path, spec: ProviderSpec, root: Mapping[str, Any]) -> Self:
        """Start it; its lease comes as its first answer."""
        folder.mkdir()
        (folder / "main.tf.json").write_text(json.dumps(root))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.terraform_client", str(socket), str(folder),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        client = cls(process)
        client.write(msgspec.json.encode(spec).decode())
        return client

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(REPLY_SECONDS):
            answer: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return answer

    async def ask(self, command: str) -> dict[str, Any]:
        self.write(command)
        return await self.answer()

    async def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await self.process.wait()


def running(binary: Path) -> list[int]:
    """Processes that run an executable, in the process table."""
    return [each.pid for each in psutil.process_iter(["cmdline"]) if str(binary) in (each.info["cmdline"] or ())]


def has_ended(pid: int) -> bool:
    """True once a process is a zombie, or gone: one that exits has no command line before."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def plugin_pid(leased: Mapping[str, str]) -> int:
    """Process of the plugin in the answer of a client that has leased it."""
    (provider,) = json.loads(leased["TF_REATTACH_PROVIDERS"]).values()
    return int(provider["Pid"])
