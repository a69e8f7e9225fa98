"""Plugin processes of `slipway-terraform serve`, over its Unix socket: docs/guides/terraform-daemon.md.

One request of the daemon's protocol needs no library, so that this package does not depend on the scheduler's.
"""

import socket
from pathlib import Path
from typing import Final

import msgspec

from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Decoded

SOCKET: Final = Path("/run/slipway-terraform/daemon.sock")
REPLY_SECONDS: Final = 10.0
REPLY_BYTES_MAX: Final = 1 << 24


class PluginProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin process of the daemon."""

    handle: str
    source: str
    version: str
    pid: int
    state: str
    in_use: int
    age_seconds: float
    invocations: int
    memory_bytes: int | None


class _Reply(msgspec.Struct):
    result: dict[str, list[msgspec.Raw]] | None = None
    error: dict[str, object] | None = None


def processes(path: Path) -> list[Decoded[PluginProcess]]:
    """Plugin processes of the daemon at `path`. Raises Failed."""
    request = {"jsonrpc": "2.0", "id": 1, "method": "v1.ls"}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(REPLY_SECONDS)
            connection.connect(str(path))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as replies:
                line = replies.readline(REPLY_BYTES_MAX)
    except OSError as error:
        raise Failed(
            f"no daemon at {path}: {error.strerror or error}\n"
            "Start `slipway-terraform serve`, run as its user, or name its socket with --socket"
        ) from None
    try:
        reply = msgspec.json.decode(line, type=_Reply)
        if reply.error is not None:
            raise Failed(f"{reply.error.get('message')}")
        rows = (reply.result or {}).get("processes", [])
        return [Decoded(msgspec.json.decode(row, type=PluginProcess), row) for row in rows]
    except msgspec.DecodeError:
        raise Failed(
            f"{path} does not answer as a daemon of slipway-terraform; name its socket with --socket"
        ) from None
