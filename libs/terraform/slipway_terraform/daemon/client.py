"""Client of the daemon with the interface of a scheduler: each lease has a connection of its own.

A lease ends with its connection, also when this process is killed. CLIs that this process starts do not inherit the
connection; children that are forked without exec do, and keep the lease.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeVar, cast

import msgspec

from slipway_terraform.daemon import protocol
from slipway_terraform.daemon.protocol import (
    Acquire,
    EndInvocation,
    Granted,
    Listed,
    Nothing,
    ProcessRow,
    Reply,
    Taint,
    WantedProvider,
)
from slipway_terraform.daemon.settings import SOCKET
from slipway_terraform.domain import errors
from slipway_terraform.domain.errors import OutcomeUnknown, ProviderIncompatible, SchedulerClosed, TerraformError
from slipway_terraform.domain.specs import ProviderSpec

ERRORS: Final[dict[str, type[TerraformError]]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TerraformError)
}
Result = TypeVar("Result", bound=msgspec.Struct)


class DaemonUnavailable(TerraformError):
    """The daemon does not answer, or has gone away and its leases with it."""

    retryable = True


class DaemonRefused(TerraformError):
    """The daemon refused a request, by the error `name` of its protocol."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Connection:
    """One connection. Calls may overlap: each waits for the reply with its id."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting: dict[protocol.RequestId, asyncio.Future[Reply]] = {}
        self._last_id = 0
        self._lost: DaemonUnavailable | None = None
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, socket: Path) -> Self:
        """Connect to the daemon. Raises DaemonUnavailable."""
        try:
            return cls(*await asyncio.open_unix_connection(str(socket), limit=protocol.MESSAGE_BYTES_MAX))
        except OSError as error:
            raise DaemonUnavailable(
                f"cannot connect to {socket}: {error.strerror}; start `slipway-terraform serve`, as the same user"
            ) from None

    async def call(self, method: str, parameters: msgspec.Struct, type_: type[Result]) -> Result:
        """Send a request and wait for its result. Raises DaemonUnavailable, DaemonRefused, the scheduler's errors."""
        reply = await self.send(method, parameters)
        if isinstance(reply.error, protocol.ErrorObject):
            raise _error(reply.error)
        return msgspec.json.decode(reply.result or b"{}", type=type_)

    def send(self, method: str, parameters: msgspec.Struct) -> asyncio.Future[Reply]:
        """Send a request; the reply is the future's result."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            future.set_exception(self._lost)
            return future
        self._last_id += 1
        self._waiting[self._last_id] = future
        self._writer.write(protocol.write_request(self._last_id, method, parameters))
        return future

    async def close(self) -> None:
        self._writer.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        lost = "the connection to the daemon is lost, and the lease with it; acquire again"
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                reply = msgspec.json.decode(line, type=Reply)
                if reply.id is None and isinstance(reply.error, protocol.ErrorObject):
                    lost = reply.error.message  # sent before the daemon closes a connection
                elif (future := self._waiting.pop(reply.id or 0, None)) is not None and not future.done():
                    future.set_result(reply)
        except (OSError, ValueError, msgspec.DecodeError):
            pass
        finally:
            self._lost = DaemonUnavailable(lost)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(self._lost)


class DaemonLease:
    """A lease of the daemon, and the connection on which it lives."""

    def __init__(self, connection: Connection, env: Mapping[str, str]) -> None:
        self.env = env
        self._connection = connection

    @contextlib.asynccontextmanager
    async def invocation(self) -> AsyncIterator[None]:
        """One run of the CLI. A run that ends by a cancellation taints the processes.

        Raises ProviderCrashed before it, OutcomeUnknown in place of its error, DaemonUnavailable.
        """
        await self._connection.call("v1.begin_invocation", Nothing(), Nothing)
        try:
            yield
        except Exception as error:
            await self._end_invocation(failed=True, cause=error)
            raise
        except BaseException:
            self.taint("interrupted")
            with contextlib.suppress(OutcomeUnknown):  # the cancellation is the cause
                await self._end_invocation(failed=True)
            raise
        else:
            await self._end_invocation(failed=False)

    async def _end_invocation(self, *, failed: bool, cause: Exception | None = None) -> None:
        try:
            await self._connection.call("v1.end_invocation", EndInvocation(failed=failed), Nothing)
        except OutcomeUnknown as error:
            raise error from cause
        except DaemonUnavailable as error:
            if failed:
                text = (
                    "the daemon ended during the run, and its plugins with it; look up what was created before a repeat"
                )
                raise OutcomeUnknown(text) from (cause or error)

    def taint(self, reason: str) -> None:
        """Replace the processes: they take no new leases."""
        reply = self._connection.send("v1.taint", Taint(reason=reason))
        reply.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # without a daemon there is no process to taint

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            with contextlib.suppress(DaemonUnavailable):
                await self._connection.call("v1.release", Nothing(), Nothing)
        finally:
            await self._connection.close()


class DaemonScheduler:
    """Scheduler whose processes belong to the daemon at `socket`.

    Of a specification the daemon takes neither binary nor arguments nor mode: it has its own by source and version, and
    refuses another digest.
    """

    def __init__(self, socket: Path = SOCKET) -> None:
        self._socket = socket
        self._closed = False

    async def acquire(self, specs: Sequence[ProviderSpec], *, owner: str, deadline: float) -> DaemonLease:
        """Lease a process of every spec, as ProviderScheduler. Raises also DaemonUnavailable and DaemonRefused."""
        if self._closed:
            raise SchedulerClosed("this client of the daemon is closed")
        connection = await Connection.open(self._socket)
        try:
            wait_seconds = max(0.0, deadline - asyncio.get_running_loop().time())
            wanted = Acquire(providers=[_wanted(spec) for spec in specs], owner=owner, wait_seconds=wait_seconds)
            granted = await connection.call("v1.acquire", wanted, Granted)
        except BaseException:
            await connection.close()
            raise
        return DaemonLease(connection, granted.env)

    async def processes(self) -> list[ProcessRow]:
        """Plugin processes of the daemon. Raises DaemonUnavailable."""
        connection = await Connection.open(self._socket)
        try:
            return (await connection.call("v1.ls", Nothing(), Listed)).processes
        finally:
            await connection.close()

    async def aclose(self, drain_seconds: float) -> None:
        """Refuse new callers. Leases end with their blocks; the processes belong to the daemon."""
        self._closed = True


def _wanted(spec: ProviderSpec) -> WantedProvider:
    return WantedProvider(
        source=spec.source,
        version=spec.version,
        digest=spec.digest,
        configuration=dict(spec.configuration),
        environment=dict(spec.environment),
        tenant=spec.tenant,
    )


def _error(found: protocol.ErrorObject) -> TerraformError:
    """The exception of an error: of the same class as in the daemon, or DaemonRefused."""
    kind = ERRORS.get(found.data.name)
    error = DaemonRefused(found.data.name, found.message) if kind is None else kind(found.message)
    error.retryable = found.data.retryable
    if isinstance(error, ProviderIncompatible):
        error.reason = cast(Literal["netrpc", "tls", "version", "network"], found.data.reason)
    return error
