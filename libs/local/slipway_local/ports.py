"""Free loopback ports for servers that are restarted on the port they had."""

import os
import socket
from typing import Final

# Below the range from which kernels take ports for outgoing connections (32768 on Linux, 49152 on macOS). A client
# that keeps dialling a dead server's port inside that range sooner or later gets it as its own, connects to itself,
# and the server cannot come back.
LOWEST: Final = 20_000
HIGHEST: Final = 30_000


def free_ports(count: int) -> list[int]:
    """`count` different ports of 127.0.0.1 on which nobody listens. Processes begin their search at different ones."""
    found: list[int] = []
    size = HIGHEST - LOWEST
    begin = os.getpid() * 7919 + len(_given) * 13
    for step in range(size):
        port = LOWEST + (begin + step) % size
        if port not in _given and _is_free(port):
            _given.add(port)
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} free ports between {LOWEST} and {HIGHEST}")


_given: Final[set[int]] = set()  # not twice in one process: the first one's server may not listen yet


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
