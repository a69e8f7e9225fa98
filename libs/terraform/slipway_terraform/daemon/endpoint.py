"""Unix socket of the daemon: private to its user, and of one daemon at a time."""

import contextlib
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PRIVATE_FOLDER: Final = 0o700
PRIVATE_SOCKET: Final = 0o600
OTHERS: Final = 0o077
BACKLOG: Final = 128
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid: struct ucred of SO_PEERCRED (unix(7))


class EndpointUnavailable(Exception):
    """The socket cannot be made; the message names it and the remedy."""


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket at `path`, removed at the end. Raises EndpointUnavailable.

    A lock on the folder proves that no other daemon lives, so that a socket that a killed one has left is removed. The
    lock is the kernel's: it ends with the process, and leaves no file.
    """
    with contextlib.ExitStack() as stack:
        folder = _private_folder(path.parent)
        stack.callback(os.close, folder)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EndpointUnavailable(
                f"another daemon serves in {path.parent}; stop it, or set `socket` to a path in another folder"
            ) from None
        _remove_stale(path)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            listener.bind(str(path))
            path.chmod(PRIVATE_SOCKET)
            listener.listen(BACKLOG)
        except OSError as error:
            raise EndpointUnavailable(f"socket {path}: {error.strerror}; set `socket` to a usable path") from None
        listener.setblocking(False)
        stack.callback(path.unlink, missing_ok=True)
        yield listener


def peer_uid(connection: socket.socket) -> int:
    """User of the process that made the connection, as the kernel knows it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)


def _private_folder(path: Path) -> int:
    """Make the folder where there is none, and open it. Raises EndpointUnavailable unless only we can enter it."""
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise EndpointUnavailable(f"folder {path}: {error.strerror}; set `socket` to a path in a usable one") from None
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & OTHERS:
        os.close(folder)
        raise EndpointUnavailable(
            f"folder {path} has mode {stat.S_IMODE(found.st_mode):03o} and user {found.st_uid}; expected 700 and "
            f"{os.geteuid()}: set `socket` to a path in a folder of its own, which the daemon makes, as "
            f"{path / 'slipway-terraform' / 'daemon.sock'}. A folder that is its own already needs mode 700"
        )
    return folder


def _remove_stale(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise EndpointUnavailable(f"{path} exists and is not a socket; remove it, or set `socket` to another path")
        path.unlink()
