"""Which process is which, on Linux: an identity that outlives the number's reuse, and processes found by a tag in
their environment. Reads /proc and decides nothing.

Every function raises Unsupported where there is no /proc of Linux.
"""

import os
import signal
import time
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from slipway_common.clock import utc_now

# What a process started as an instance carries, and its children inherit: deployment/batch/n/launch config.
INSTANCE_TAG: Final = "SLIPWAY_INSTANCE_TAG"
PROC: Final = Path("/proc")
BOOT_ID: Final = PROC / "sys/kernel/random/boot_id"
GONE: Final = frozenset({b"Z", b"X", b"x"})  # a zombie runs nothing: only its exit status is left


class Unsupported(OSError):
    """This system keeps no /proc that tells processes apart."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One that ran when it was looked at. `tag` is the value of the tag asked for, empty when it carries none;
    `started_at` is by today's wall clock and moves with it, `start_ticks` do not."""

    pid: int
    identity: str
    session: int
    start_ticks: int
    started_at: datetime
    tag: str

    @property
    def leads(self) -> bool:
        """Whether it leads its session."""
        return self.pid == self.session


def supported() -> bool:
    return BOOT_ID.exists() and hasattr(os, "pidfd_open")


def own_identity() -> str:
    """This process's identity."""
    own = identity(os.getpid())
    assert own is not None
    return own


def identity(pid: int) -> str | None:
    """`{pid}-{start ticks since boot}-{boot}`, the same for as long as the process lives, through every exec; None
    when it is gone, and when only its exit status is left."""
    looked = _look(pid, "")
    return looked.identity if looked else None


def child_identity(pid: int) -> str:
    """The identity of a child of ours that nobody has waited for yet, also of one that has ended."""
    looked = _look(pid, "", also_gone=True)
    assert looked is not None
    return looked.identity


def identity_of(pid: int, start_ticks: int) -> str:
    """The identity of whoever has, or had, that number and start in this boot of the machine."""
    return f"{pid}-{start_ticks}-{_boot()}"


def started_at(start_ticks: int) -> datetime:
    """By today's wall clock, to a hundredth of a second."""
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    return utc_now() - timedelta(seconds=age_seconds)


def alive(identity: str) -> bool:
    """Whether the very process still runs. Any text may be asked about: what names no process is not alive."""
    return _found(identity) is not None


def tagged(name: str, value_prefix: str = "") -> list[Process]:
    """Those whose environment carries the tag `name` with a value that begins so, the earliest started first.

    What we may not read is somebody else's and is left out, as is a program that has overwritten its environment.
    """
    return [process for process in running(name) if process.tag and process.tag.startswith(value_prefix)]


def running(tag_name: str) -> list[Process]:
    """Every process there is, the earliest started first, with what it carries as that tag."""
    seen = (_look(int(entry.name), tag_name) for entry in os.scandir(_proc()) if entry.name.isdecimal())
    return sorted((process for process in seen if process), key=lambda process: (process.start_ticks, process.pid))


def send(identity: str, signum: signal.Signals) -> bool:
    """Signal the very process, and nobody who has its number now; False when it is gone."""
    if (found := _found(identity)) is None:
        return False
    try:
        handle = os.pidfd_open(found.pid)
        try:
            # The handle is whoever's the number is; only if that is still ours, it stays so.
            if not alive(identity):
                return False
            signal.pidfd_send_signal(handle, signum)
        finally:
            os.close(handle)
    except ProcessLookupError:
        return False
    return True


def _found(identity: str) -> Process | None:
    pid = identity.partition("-")[0]
    looked = _look(int(pid), "") if pid.isascii() and pid.isdecimal() else None
    return looked if looked and looked.identity == identity else None


def _look(pid: int, tag_name: str, *, also_gone: bool = False) -> Process | None:
    """None when it is gone; `also_gone`: when nothing of it is left."""
    try:
        # An open folder is this process's for ever: reading from it fails once the process is gone, whoever has its
        # number by then.
        folder = os.open(_proc() / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    try:
        # The name stands in parentheses and may hold anything, also spaces and parentheses.
        fields = _read(folder, "stat").rpartition(b") ")[2].split()
        if fields[0] in GONE and not also_gone:
            return None
        start_ticks = int(fields[19])
        return Process(
            pid=pid,
            identity=identity_of(pid, start_ticks),
            session=int(fields[3]),
            start_ticks=start_ticks,
            started_at=started_at(start_ticks),
            tag=_tag(folder, tag_name) if tag_name else "",
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    finally:
        os.close(folder)


def _tag(folder: int, name: str) -> str:
    start = f"{name}=".encode()
    try:
        variables = _read(folder, "environ").split(b"\0")
    except PermissionError:
        return ""  # another user's
    return next((os.fsdecode(v.removeprefix(start)) for v in variables if v.startswith(start)), "")


def _read(folder: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
        return file.read()


def _proc() -> Path:
    if not supported():
        raise Unsupported("processes are told apart by Linux's /proc and pidfd_open; there is none here")
    return PROC


@cache
def _boot() -> str:
    """This boot of the machine: start ticks begin anew with each."""
    return BOOT_ID.read_text()[:8]
