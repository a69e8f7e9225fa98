"""Name of this process as a holder of leases. By it the broker tells apart processes with one request id."""

import functools
import os
import socket
from typing import Final

from slipway_common.base.ids import random_bytes

HOST_CHARACTERS_MAX: Final = 100


def holder() -> str:
    """host:pid:random; host and pid are for people. The same for all leases of a process, another one after a fork."""
    return _name(os.getpid())


@functools.cache
def _name(pid: int) -> str:
    return f"{socket.gethostname()[:HOST_CHARACTERS_MAX]}:{pid}:{random_bytes(4).hex()}"
