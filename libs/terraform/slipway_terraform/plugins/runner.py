"""Runner of plugins: checks the binary, starts it in a private folder, waits for its handshake, stops it."""

import asyncio
import errno
import os
import signal
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from slipway_common.base.process.guard import Guard
from slipway_common.base.process.programs import NOT_EXECUTED
from slipway_common.base.process.users import ChildUser
from slipway_terraform.domain.errors import (
    HandshakeTimeout,
    ProviderIncompatible,
    ProviderStartError,
)
from slipway_terraform.domain.handshake import (
    COOKIE,
    COOKIE_NAME,
    VERSIONS,
    VERSIONS_NAME,
    Address,
    parse,
    parse_debug,
)
from slipway_terraform.domain.port import Sample
from slipway_terraform.domain.reattach import Reattach
from slipway_terraform.domain.redaction import secrets_of
from slipway_terraform.domain.sockets import SOCKET_BYTES_MAX
from slipway_terraform.domain.specs import Mode, ProviderSpec
from slipway_terraform.plugins import control
from slipway_terraform.plugins.digests import Digests
from slipway_terraform.plugins.folders import SocketFolders
from slipway_terraform.plugins.process import PluginProcess

START_SECONDS: Final = 60.0
# Between the steps of a stop: request, SIGTERM, SIGKILL.
SHUTDOWN_SECONDS: Final = 2.0
TERMINATE_SECONDS: Final = 5.0
HEALTH_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.02
# go-plugin's name in its folder is "plugin" with a random number of up to 10 digits; tempfile of Python adds a folder
# of 11 characters.
SOCKET_NAME_BYTES: Final = 32
# Variables by which a caller could turn on TLS or move the socket.
RESERVED: Final = ("PLUGIN_", "TF_PLUGIN_", "TF_REATTACH_")


class PluginRunner:
    """Starts plugins. Their sockets are in a folder of the runner in `folder` [default: the system's temporary folder],
    which only `user`, as whom they run [default: ours], can read, since they have no other protection."""

    def __init__(
        self, folder: Path | None = None, *, start_seconds: float = START_SECONDS, user: ChildUser | None = None
    ) -> None:
        self._folders = SocketFolders(Path(tempfile.gettempdir()) if folder is None else folder, user)
        self._user = user
        self._start_seconds = start_seconds
        self._digests = Digests()

    async def start(self, spec: ProviderSpec) -> "RunningPlugin":
        """Start a plugin and wait until it answers. No process is left after an error or a cancellation, except one
        that the kernel does not end, which is reported.

        Raises ProviderStartError, HandshakeTimeout, ProviderIncompatible.
        """
        await self.check(spec)
        return await self._start(spec, *self._new_folder(spec))

    async def aclose(self) -> None:
        """End the guard, which removes the folder."""
        await asyncio.to_thread(self._folders.close)

    async def is_unchanged(self, spec: ProviderSpec) -> bool:
        """True if the binary of a specification is still the one that it names."""
        try:
            return await self._digests.digest(spec.binary) == spec.digest.lower()
        except OSError:
            return False

    async def check(self, spec: ProviderSpec) -> None:
        """Raises ProviderStartError unless the binary is there and has its digest."""
        try:
            async with asyncio.timeout(self._start_seconds):
                digest = await self._digests.digest(spec.binary)
        except TimeoutError:
            raise ProviderStartError(
                f"{_named(spec)}: {spec.binary} could not be read within {self._start_seconds:g} s; check its disk"
            ) from None
        except OSError as error:
            raise ProviderStartError(
                f"{_named(spec)}: cannot read {spec.binary}: {error.strerror}; install the provider there or correct "
                "the path",
                retryable=False,
            ) from error
        if digest != spec.digest.lower():
            raise ProviderStartError(
                f"{_named(spec)}: {spec.binary} has the digest {digest}, not {spec.digest}; install the release that "
                "was approved, or approve this one",
                retryable=False,
            )

    def _new_folder(self, spec: ProviderSpec) -> tuple[Path, Guard]:
        """Private folder of a plugin, with its guard. Raises ProviderStartError."""
        try:
            folder, guard = self._folders.new()
        except OSError as error:
            raise ProviderStartError(
                f"{_named(spec)}: cannot create a folder for its socket in {self._folders.parent}: {error.strerror}; "
                "free some space, or set another folder"
            ) from error
        length = len(os.fsencode(folder)) + 1 + SOCKET_NAME_BYTES
        if length > SOCKET_BYTES_MAX:
            folder.rmdir()
            raise ProviderStartError(
                f"{_named(spec)}: the path of a socket in {folder} may have {length} bytes, and the system allows "
                f"{SOCKET_BYTES_MAX}; set a shorter folder than {self._folders.parent}",
                retryable=False,
            )
        return folder, guard

    async def _start(self, spec: ProviderSpec, folder: Path, guard: Guard) -> "RunningPlugin":
        address: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
        read = parse if spec.mode == Mode.COOKIE else parse_debug

        def on_line(line: str) -> None:
            if not address.done():
                try:
                    if found := read(line):
                        address.set_result(found)
                except ProviderIncompatible as error:
                    address.set_exception(ProviderIncompatible(f"{_named(spec)}: {error}", reason=error.reason))

        process = PluginProcess(
            [_absolute(spec.binary), *spec.arguments],
            environment=environment(spec, folder),
            folder=folder,
            secrets=secrets_of(spec.configuration, spec.environment),
            guard=guard,
            on_line=on_line,
            user=self._user,
        )
        try:
            async with asyncio.timeout(self._start_seconds):
                await process.spawn()
                found = await _handshake(spec, process, address)
            if not Path(found.path).is_relative_to(folder):
                raise ProviderIncompatible(
                    f"{_named(spec)}: the plugin listens in {Path(found.path).parent}, where others may use it; it has "
                    "to use TMPDIR",
                    reason="network",
                )
            await self.check(spec)  # again: it may have been replaced between the first check and its execution
            return RunningPlugin(self, spec, process, found)
        except BaseException as error:
            await _uninterrupted(process.kill())
            if isinstance(error, TimeoutError):
                raise HandshakeTimeout(
                    f"{_named(spec)}: no handshake within {self._start_seconds:g} s; raise the start timeout, or run "
                    f"{spec.binary} by hand",
                    stderr=process.stderr() or process.stdout(),
                ) from None
            if isinstance(error, NOT_EXECUTED):
                raise _not_executed(spec, error) from error
            raise
        finally:
            if address.done() and not address.cancelled():
                address.exception()  # retrieved, whatever ended the start


class RunningPlugin:
    """A plugin that has answered."""

    def __init__(self, runner: PluginRunner, spec: ProviderSpec, process: PluginProcess, address: Address) -> None:
        self._runner, self._spec, self._process, self._address = runner, spec, process, address
        self.reattach: Final = Reattach(address, process.pid)

    def is_alive(self) -> bool:
        return self._process.is_alive()

    async def exited(self) -> str:
        """Wait for its end; returns the exit code or signal and the end of its standard error."""
        return _ended(await self._process.exited(), self._process.stderr())

    async def stop(self) -> None:
        """End it: Shutdown, then SIGTERM after 2 s (SIGINT in debug mode at once), then SIGKILL after 5 s. One that
        does not end even then is reported and stays alive."""
        if self._process.is_alive():
            await control.shut_down(self._address, SHUTDOWN_SECONDS)
        if self._spec.mode == Mode.DEBUG:
            self._process.send(signal.SIGINT)
        if not await self._process.exits_within(SHUTDOWN_SECONDS):
            self._process.send(signal.SIGTERM)
            if not await self._process.exits_within(TERMINATE_SECONDS):
                await self._process.kill()
                return
        await self.exited()

    async def healthy(self) -> bool:
        return await control.check(self._address, HEALTH_SECONDS)

    async def replaced_on_disk(self) -> bool:
        return not await self._runner.is_unchanged(self._spec)

    def sample(self) -> Sample:
        return _sample(self._process.pid)


def environment(spec: ProviderSpec, folder: Path) -> dict[str, str]:
    """Environment of a plugin: variables of its specification and of the handshake, and none of this process."""
    given = {name: value for name, value in spec.environment.items() if not name.startswith(RESERVED)}
    handshake = {COOKIE_NAME: COOKIE, VERSIONS_NAME: ",".join(map(str, VERSIONS))}
    if spec.mode == Mode.DEBUG:
        handshake = {"PYTHONUNBUFFERED": "1"}  # its line would stay in a buffer, since standard output is a pipe
    return {"PATH": os.defpath, **given, **handshake, "TMPDIR": str(folder), "PLUGIN_UNIX_SOCKET_DIR": str(folder)}


async def _handshake(spec: ProviderSpec, process: PluginProcess, address: asyncio.Future[Address]) -> Address:
    """Address of a plugin that answers. Raises ProviderStartError if it exits before."""
    exited = asyncio.ensure_future(process.exited())
    try:
        first: list[asyncio.Future[Any]] = [address, exited]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        while not exited.done():
            # A plugin in debug mode prints its address before it listens.
            if await control.check(address.result(), HEALTH_SECONDS):
                return address.result()
            await asyncio.wait([exited], timeout=POLL_SECONDS)
        if address.done():
            address.result()
        code, stderr = exited.result(), process.stderr()
        raise ProviderStartError(
            f"{_named(spec)}: {_ended(code, stderr)} before its handshake; run {spec.binary} by hand",
            exit_code=code,
            stderr=stderr,
        )
    finally:
        exited.cancel()


async def _uninterrupted(work: Coroutine[Any, Any, Any]) -> None:
    """Finish `work` even if the task is cancelled meanwhile, and be cancelled then."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


def _absolute(path: str) -> str:
    """A path that does not depend on the folder of a process."""
    return os.path.abspath(path)


def _named(spec: ProviderSpec) -> str:
    return f"{spec.source} {spec.version}"


def _ended(code: int, stderr: str) -> str:
    """How a process has ended, for people."""
    how = f"exited with {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    last = stderr.rpartition("\n")[2]
    return f"{how} ({last})" if last else how


def _not_executed(spec: ProviderSpec, error: Exception) -> ProviderStartError:
    """Error of a binary that cannot be executed. It is retryable if the cause may pass: the file is being written, or
    the process table is full."""
    number = error.errno if isinstance(error, OSError) else None
    passing = number in (errno.ETXTBSY, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
    return ProviderStartError(
        f"{_named(spec)}: cannot execute {spec.binary}: {os.strerror(number) if number else error}; "
        + ("retry later" if passing else "check that it is an executable for this machine"),
        retryable=passing,
    )


def _sample(pid: int) -> Sample:
    """Resident memory and CPU time of a process so far, from Linux's /proc; zeros if it is gone, or without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return Sample(memory_bytes=0, cpu_seconds=0.0)
    return Sample(
        memory_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    )
