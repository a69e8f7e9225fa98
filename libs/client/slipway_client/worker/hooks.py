"""Calls of an agent's job hooks to their `slipway-worker wrap`: one JSON line each way, over a unix socket that only
this user can reach. This side starts fast, since a hook runs before and after every job.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

from slipway_client.worker.preset_hooks.slipway_hooks import asked

SOCKET: Final = "SLIPWAY_WORKER_SOCKET"
TASK: Final = "SLIPWAY_TASK_ID"
SOURCE: Final = "SLIPWAY_SOURCE"
POOL: Final = "SLIPWAY_POOL_ID"
NO_WRAP: Final = 2


def call(request: Mapping[str, object]) -> dict[str, object]:
    """Call the wrap and return its answer. Prints the problem and exits with 2 if no wrap answers."""
    path = os.environ.get(SOCKET)
    if not path:
        return _no_wrap(f"{SOCKET} is not set; call this from a process that `slipway-worker wrap` has started")
    try:
        return asked(path, request)
    except (OSError, ValueError) as error:
        return _no_wrap(f"the wrap at {path} does not answer: {error}")


def _no_wrap(why: str) -> dict[str, object]:
    print(f"slipway-worker hook: {why}", file=sys.stderr)
    sys.exit(NO_WRAP)
