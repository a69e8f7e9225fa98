"""What an agent's job hooks say to their `slipway-worker wrap`: one JSON line each way, over a unix socket that only
this user can reach. This side of it starts fast: a hook runs before and after every job.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final

SOCKET: Final = "SLIPWAY_WORKER_SOCKET"
# wrap asks its provisioner before it answers "draining"; longer than it does so.
ANSWER_SECONDS: Final = 15.0
NO_WRAP: Final = 2


def ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """The wrap's answer. Prints what is wrong and exits with 2 when no wrap is there."""
    path = os.environ.get(SOCKET)
    if not path:
        return _nobody(f"{SOCKET} is not set; call this from a process that `slipway-worker wrap` has started")
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        return _nobody(f"the wrap at {path} does not answer: {error}")
    return dict(answer)


def _nobody(why: str) -> dict[str, Any]:
    print(f"slipway-worker hook: {why}", file=sys.stderr)
    sys.exit(NO_WRAP)
