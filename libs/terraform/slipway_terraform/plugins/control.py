"""Calls to a plugin's own gRPC services: health and shutdown of go-plugin, as bytes, without generated code."""

import asyncio
import contextlib
import functools
import os
from typing import Final

from slipway_terraform.domain.handshake import Address

# Otherwise gRPC writes to our standard error that a stopped plugin has closed its connection.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc

CHECK: Final = "/grpc.health.v1.Health/Check"
CHECK_PLUGIN: Final = b"\x0a\x06plugin"  # HealthCheckRequest{service: "plugin"}
NOT_SERVING: Final = b"\x08\x02"  # HealthCheckResponse{status: NOT_SERVING}
SHUTDOWN: Final = "/plugin.GRPCController/Shutdown"
EMPTY: Final = b""
NO_ANSWER: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


async def check(address: Address, timeout_seconds: float) -> bool:
    """True if the plugin answers anything but NOT_SERVING, also that it has no health service."""
    try:
        return await _call(address, CHECK, CHECK_PLUGIN, timeout_seconds) != NOT_SERVING
    except grpc.aio.AioRpcError as error:
        return error.code() not in NO_ANSWER
    except TimeoutError:
        return False


async def shut_down(address: Address, timeout_seconds: float) -> None:
    """Ask the plugin to exit, at once: it cancels the calls that it serves. It may exit without an answer."""
    with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
        await _call(address, SHUTDOWN, EMPTY, timeout_seconds)


@functools.cache
def keep_open() -> None:
    """Initialize gRPC for the life of the process, which keeps its few files open. It would otherwise be shut down with
    each channel, since there is seldom another one, and a shutdown that races with the end of a call can abort the
    process by a failed check."""
    grpc.aio.init_grpc_aio()


async def _call(address: Address, method: str, request: bytes, timeout_seconds: float) -> bytes:
    keep_open()
    async with grpc.aio.insecure_channel(f"unix:{address.path}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        async with asyncio.timeout(timeout_seconds + 1):  # gRPC keeps its own deadline
            return await call(request, timeout=timeout_seconds)
