"""Plugin processes of `slipway-terraform serve`, over its Unix socket: docs/guides/terraform-daemon.md.

One request of the daemon's protocol needs no library, so that this package does not depend on the scheduler's.
"""

import json
import socket
from pathlib import Path
from typing import Any, Final

from slipway_client.transport.http import Failed

SOCKET: Final = Path("/run/slipway-terraform/daemon.sock")
REPLY_SECONDS: Final = 10.0
REPLY_BYTES_MAX: Final = 1 << 24


def processes(path: Path) -> list[dict[str, Any]]:
    """Plugin processes of the daemon at `path`. Raises Failed."""
    request = {"jsonrpc": "2.0", "id": 1, "method": "v1.ls"}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(REPLY_SECONDS)
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as replies:
                line = replies.readline(REPLY_BYTES_MAX)
    except OSError as error:
        raise Failed(
            f"no daemon at {path}: {error.strerror or error}\n"
            "Start `slipway-terraform serve`, run as its user, or name its socket with --socket"
        ) from None
    try:
        reply = json.loads(line)
        if "error" in reply:
            raise Failed(str(reply["error"]["message"]))
        return list(reply["result"]["processes"])
    except (ValueError, KeyError, TypeError):
        raise Failed(
            f"{path} does not answer as a daemon of slipway-terraform; name its socket with --socket"
        ) from None
