"""Free loopback ports for servers that have to restart on the same port."""

import os
import socket
from typing import Final

# Below the range of ephemeral ports (from 32768 on Linux, 49152 on macOS). Inside that range, a client that keeps
# reconnecting to a dead server's port is eventually assigned this port itself and connects to itself, and the server
# cannot bind it again.
LOWEST: Final = 20_000
HIGHEST: Final = 30_000


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports of 127.0.0.1; each process starts its search at another one. Raises OSError
    if there are too few."""
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


_given: Final[set[int]] = set()  # never returned twice by one process, because the first server may not listen yet


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, so that TIME_WAIT does not matter
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
