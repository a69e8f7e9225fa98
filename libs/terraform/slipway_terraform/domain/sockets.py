"""Limit of the paths of Unix sockets. Pure."""

from typing import Final

SOCKET_BYTES_MAX: Final = 107
"""Longest path of a Unix socket on Linux: sun_path has 108 bytes with its terminating zero (unix(7))."""
