"""User as whom a service starts commands that are not its own, so that they reach nothing that is the service's."""

import errno
import os
import pwd
import stat
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self

CAPABILITIES: Final = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SYS_PTRACE": 19,
}
"""Linux capabilities, by number, that a service needs to start, find, signal and clean up after processes of another
user."""


class UnusableUser(ValueError):
    """Nothing can be started as this user; the text says why, and what to do."""


class ChildUser(NamedTuple):
    """Another user of this host, with all of its groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @classmethod
    def named(cls, name: str) -> Self:
        """User of this name. Raises UnusableUser: there is none, it is ours or root, or we may not become it."""
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            raise UnusableUser(f"there is no user {name}; make one (useradd --system {name})") from None
        if user.pw_uid in (0, os.geteuid()):
            raise UnusableUser(
                f"{name} is {'root' if not user.pw_uid else 'the user of the service'}; name another one"
            )
        if missing := _missing():
            raise UnusableUser(
                f"the service may not start processes as {name}; start it as root, in a container with the "
                f"capabilities {', '.join(missing)}"
            )
        return cls(user.pw_uid, user.pw_gid, tuple(os.getgrouplist(name, user.pw_gid)), user.pw_dir)

    def __str__(self) -> str:
        """As `launch` reads it."""
        return ":".join((str(self.uid), str(self.gid), ",".join(map(str, self.groups))))

    def own(self, *paths: Path) -> None:
        """Make files and folders, with all that is in them, those of the user; links are not followed. A folder comes
        after what is in it: other processes of the user could put a link in its place."""
        for path in paths:
            for _, folders, files, folder in os.fwalk(path, topdown=False):
                for name in (*folders, *files):
                    os.chown(name, self.uid, self.gid, dir_fd=folder, follow_symlinks=False)
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def open_written(path: Path, uid: int | None) -> BinaryIO:
    """Open a file that another process has written. Raises OSError, also unless it is a file of this user [default:
    anybody's]: a link in its place could name one that only we may read, and to open a pipe would not end."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or uid not in (None, found.st_uid):
        os.close(handle)
        raise PermissionError(errno.EPERM, "no file of the process's user", str(path))
    return os.fdopen(handle, "rb")


def _missing() -> list[str]:
    """Capabilities that this process lacks."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return list(CAPABILITIES)  # no Linux
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return [name for name, number in CAPABILITIES.items() if not effective >> number & 1]
