"""One connection of a client: its requests, and the lease that ends with it."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from slipway_terraform.daemon import protocol
from slipway_terraform.daemon.holding import Holding
from slipway_terraform.daemon.protocol import (
    Acquire,
    EndInvocation,
    ErrorDetails,
    Granted,
    Listed,
    Nothing,
    ProcessRow,
    Refused,
    Request,
    Taint,
    WantedProvider,
)
from slipway_terraform.daemon.settings import Settings
from slipway_terraform.domain.errors import ProviderIncompatible, TerraformError
from slipway_terraform.domain.port import ProviderScheduler
from slipway_terraform.domain.specs import ProviderSpec
from slipway_terraform.scheduler.process import ProcessStatus

LOG: Final = structlog.get_logger(__name__)
PROVIDERS_MAX: Final = 16
Method = Callable[[Request], Awaitable[msgspec.Struct]]


class Session:
    """Serves one connection. `processes` lists the plugin processes of the scheduler."""

    def __init__(
        self,
        scheduler: ProviderScheduler,
        processes: Callable[[], Sequence[ProcessStatus]],
        settings: Settings,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._holding = Holding(scheduler)
        self._processes = processes
        self._settings = settings
        self._reader = reader
        self._writer = writer
        self._requests: set[asyncio.Task[None]] = set()
        self._methods: Mapping[str, Method] = {
            "v1.acquire": self._acquire,
            "v1.begin_invocation": self._begin_invocation,
            "v1.end_invocation": self._end_invocation,
            "v1.taint": self._taint,
            "v1.release": self._release,
            "v1.ls": self._ls,
        }

    async def serve(self) -> None:
        """Serve requests until the client goes away; then end its waits and its lease."""
        try:
            while line := await self._line():
                if len(self._requests) >= self._settings.requests_max:
                    await self._reply_busy()
                    continue
                task = asyncio.create_task(self._serve_request(line))
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
        except OSError:
            pass  # the connection is lost
        finally:
            for task in self._requests:
                task.cancel()
            await asyncio.gather(*self._requests, return_exceptions=True)
            await self._holding.lose()

    async def _line(self) -> bytes:
        """Next line; empty once there is none: the client went away, did nothing for too long, or sent too much."""
        while True:
            try:
                async with asyncio.timeout(self._settings.idle_connection_seconds):
                    line = await self._reader.readline()
            except TimeoutError:
                if self._holding.holds or self._requests:
                    continue
                return b""
            except ValueError:
                text = f"a line exceeds {protocol.MESSAGE_BYTES_MAX} bytes; send a smaller request"
                await self._write(protocol.write_refused(None, Refused("ParseError", text, code=protocol.PARSE_ERROR)))
                return b""
            return line if line.endswith(b"\n") else b""

    async def _reply_busy(self) -> None:
        text = f"{self._settings.requests_max} requests of this connection are waiting; read their replies first"
        await self._write(protocol.write_refused(None, Refused("TooManyRequests", text, retryable=True)))

    async def _serve_request(self, line: bytes) -> None:
        id_: protocol.RequestId | None = None
        try:
            request = protocol.read_request(line)
            id_ = request.id
            method = self._methods.get(request.method)
            if method is None:
                text = f"unknown method; this daemon has {', '.join(self._methods)}"
                raise Refused("MethodNotFound", text, code=protocol.METHOD_NOT_FOUND)
            reply = protocol.write_result(id_, await method(request))
        except Refused as refused:
            reply = protocol.write_refused(id_, refused)
        except TerraformError as error:
            details = ErrorDetails(name=type(error).__name__, retryable=error.retryable, reason=_reason(error))
            reply = protocol.write_error(id_, str(error), details)
        except Exception as error:
            # Its text may quote a configuration, so only its type is logged.
            LOG.error("terraform_request_failed", error=type(error).__name__)
            details = ErrorDetails(name="InternalError", retryable=False)
            reply = protocol.write_error(id_, "internal error of the daemon; its log has the type", details)
        with contextlib.suppress(OSError):  # the reader notices a lost connection
            await self._write(reply)

    async def _write(self, line: bytes) -> None:
        self._writer.write(line)
        await self._writer.drain()

    async def _acquire(self, request: Request) -> Granted:
        wanted = protocol.read_parameters(request, Acquire)
        _check(wanted)
        specs = [self._spec(each) for each in wanted.providers]
        deadline = asyncio.get_running_loop().time() + wanted.wait_seconds
        lease = await self._holding.acquire(specs, owner=wanted.owner, deadline=deadline)
        return Granted(env=lease.env)

    async def _begin_invocation(self, request: Request) -> Nothing:
        protocol.read_parameters(request, Nothing)
        await self._holding.begin_invocation()
        return Nothing()

    async def _end_invocation(self, request: Request) -> Nothing:
        await self._holding.end_invocation(failed=protocol.read_parameters(request, EndInvocation).failed)
        return Nothing()

    async def _taint(self, request: Request) -> Nothing:
        reason = protocol.read_parameters(request, Taint).reason
        self._holding.taint(reason[: protocol.TEXT_CHARACTERS_MAX])
        return Nothing()

    async def _release(self, request: Request) -> Nothing:
        protocol.read_parameters(request, Nothing)
        await self._holding.release()
        return Nothing()

    async def _ls(self, request: Request) -> Listed:
        protocol.read_parameters(request, Nothing)
        return Listed(processes=[_row(status) for status in self._processes()])

    def _spec(self, wanted: WantedProvider) -> ProviderSpec:
        """The specification of an allowed executable. Raises Refused."""
        allowed = self._settings.executable(wanted.source, wanted.version)
        if allowed is None:
            listed = ", ".join(f"{each.source} {each.version}" for each in self._settings.provider)
            raise Refused(
                "UnknownProvider",
                f"provider {wanted.source} {wanted.version} is not in the daemon's settings, which list {listed}; ask "
                "for one of them by its full source, or add a [[provider]] there",
            )
        if wanted.digest not in ("", allowed.digest):
            raise Refused(
                "DigestMismatch",
                f"provider {wanted.source} {wanted.version}: the daemon's settings pin {allowed.digest}; ask for that "
                "digest, or for none",
            )
        if refused := sorted(set(wanted.environment) - set(allowed.client_environment)):
            raise Refused(
                "EnvironmentRefused",
                f"provider {wanted.source} {wanted.version}: a client may not set {', '.join(refused)}; list it in "
                "client_environment of the daemon's settings, or leave it out",
            )
        return allowed.spec(wanted.configuration, wanted.environment, wanted.tenant)


def _check(wanted: Acquire) -> None:
    """Refuse numbers and texts out of bounds. Raises Refused."""
    if not 1 <= len(wanted.providers) <= PROVIDERS_MAX:
        raise Refused("InvalidParams", f"providers: expected 1 to {PROVIDERS_MAX}", code=protocol.INVALID_PARAMS)
    if not (math.isfinite(wanted.wait_seconds) and 0 <= wanted.wait_seconds <= protocol.WAIT_SECONDS_MAX):
        text = f"wait_seconds: expected 0 to {protocol.WAIT_SECONDS_MAX:g}"
        raise Refused("InvalidParams", text, code=protocol.INVALID_PARAMS)
    texts = [wanted.owner, *(text for each in wanted.providers for text in (each.source, each.version, each.tenant))]
    if any(len(text) > protocol.TEXT_CHARACTERS_MAX for text in texts):
        text = f"owner, source, version and tenant have at most {protocol.TEXT_CHARACTERS_MAX} characters"
        raise Refused("InvalidParams", text, code=protocol.INVALID_PARAMS)


def _row(status: ProcessStatus) -> ProcessRow:
    return ProcessRow(
        handle=status.handle,
        source=status.source,
        version=status.version,
        tenant=status.tenant,
        pid=status.pid or None,
        state=status.state,
        reason=status.reason,
        in_use=status.in_use,
        invocations=status.invocations,
        age_seconds=status.age_seconds,
        memory_bytes=status.memory_bytes,
    )


def _reason(error: TerraformError) -> str:
    return error.reason if isinstance(error, ProviderIncompatible) else ""
