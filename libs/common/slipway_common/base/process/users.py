"""User as whom a service starts commands that are not its own, so that they reach nothing that is the service's."""

import os
import pwd
from pathlib import Path
from typing import Final, NamedTuple, Self

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
        """Make files and folders, with all that is in them, those of the user; links are not followed."""
        for path in paths:
            for folder, _, files in os.walk(path):
                for each in (folder, *(os.path.join(folder, file) for file in files)):
                    os.chown(each, self.uid, self.gid, follow_symlinks=False)
            if not path.is_dir() or path.is_symlink():
                os.chown(path, self.uid, self.gid, follow_symlinks=False)


def _missing() -> list[str]:
    """Capabilities that this process lacks."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return list(CAPABILITIES)  # no Linux
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return [name for name, number in CAPABILITIES.items() if not effective >> number & 1]
