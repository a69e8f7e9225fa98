"""Linux process identities that survive PID reuse, and processes found by a tag in their environment. Reads /proc.

Every function raises Unsupported on systems without Linux's /proc.
"""

import errno
import os
import signal
import time
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.process.groups import readable

# Environment variable of a process that acts as an instance, inherited by its children. Its value is
# deployment/account/batch/n/revision of the launch config/incarnation, each percent-encoded.
INSTANCE_TAG: Final = "SLIPWAY_INSTANCE_TAG"
TAG_PARTS: Final = 6
PROC: Final = Path("/proc")
BOOT_ID: Final = PROC / "sys/kernel/random/boot_id"
GONE: Final = frozenset({b"Z", b"X", b"x"})  # a zombie has exited; only its exit status is left
KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD: has no environment
EXEC_SECONDS: Final = 2.0  # an exec that takes longer waits for its disk


class Unsettled(OSError):
    """A process stays in the middle of an exec, so its environment cannot be read now. Try again later."""


class Unsupported(OSError):
    """The system has no /proc with Linux process identities."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was running when it was read. `tag` is the value of the requested tag, empty if it has none.

    `started_at` is derived from the current wall clock and moves with it; `start_ticks` does not."""

    pid: int
    identity: str
    session: int
    start_ticks: int
    started_at: datetime
    tag: str

    @property
    def leads(self) -> bool:
        """True if it is the session leader."""
        return self.pid == self.session


def supported() -> bool:
    return BOOT_ID.exists() and hasattr(os, "pidfd_open")


def own_identity() -> str:
    """Identity of the current process."""
    own = identity(os.getpid())
    assert own is not None
    return own


def identity(pid: int) -> str | None:
    """`{pid}-{start ticks since boot}-{boot}`, stable for the lifetime of the process, across every exec.

    None if the process is gone or only its exit status is left."""
    process = _read_process(pid, "")
    return process.identity if process else None


def child_identity(pid: int) -> str:
    """Identity of a child that has not been waited for yet, even if it has exited."""
    process = _read_process(pid, "", also_gone=True)
    assert process is not None
    return process.identity


def identity_of(pid: int, start_ticks: int) -> str:
    """Identity of the process with this PID and start time in the current boot."""
    return f"{pid}-{start_ticks}-{_boot()}"


def started_at(start_ticks: int) -> datetime:
    """Start time by the current wall clock, to a hundredth of a second."""
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    return utc_now() - timedelta(seconds=age_seconds)


def alive(identity: str) -> bool:
    """True if exactly this process is still running. Any text is accepted; False if it is not an identity."""
    return _found(identity) is not None


def tagged(name: str, value_prefix: str = "") -> list[Process]:
    """Processes whose environment has the tag `name` with a value of this prefix, in order of start.

    Processes of other users are left out, as are programs that have overwritten their environment.
    """
    return [process for process in running(name) if process.tag and process.tag.startswith(value_prefix)]


def running(tag_name: str) -> list[Process]:
    """All processes in order of start, with the value of the tag."""
    seen = (_read_process(int(entry.name), tag_name) for entry in os.scandir(_proc()) if entry.name.isdecimal())
    return sorted((process for process in seen if process), key=lambda process: (process.start_ticks, process.pid))


def send(identity: str, signum: signal.Signals) -> bool:
    """Signal exactly this process, never another with a reused PID; False if it is gone."""
    if (handle := _opened(identity)) is None:
        return False
    try:
        signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


async def ended(identity: str) -> None:
    """Wait until exactly this process has ended, whosever child it is."""
    if (handle := _opened(identity)) is not None:
        await readable(handle)


def _opened(identity: str) -> int | None:
    """Handle of exactly this process, to be closed; None if it is gone."""
    if (found := _found(identity)) is None:
        return None
    try:
        handle = os.pidfd_open(found.pid)
    except ProcessLookupError:
        return None
    # The handle is of the process that has the PID now; check that it is still the right one.
    if alive(identity):
        return handle
    os.close(handle)
    return None


def _found(identity: str) -> Process | None:
    pid = identity.partition("-")[0]
    process = _read_process(int(pid), "") if pid.isascii() and pid.isdecimal() else None
    return process if process and process.identity == identity else None


def _read_process(pid: int, tag_name: str, *, also_gone: bool = False) -> Process | None:
    """Read a process; None if it is gone. With `also_gone`, a zombie is returned as well."""
    try:
        # An open directory stays bound to this process: reads fail once it is gone, even if its PID is reused.
        folder = os.open(_proc() / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    try:
        fields = _stat(folder)
        if fields[0] in GONE and not also_gone:
            return None
        start_ticks = int(fields[19])
        return Process(
            pid=pid,
            identity=identity_of(pid, start_ticks),
            session=int(fields[3]),
            start_ticks=start_ticks,
            started_at=started_at(start_ticks),
            tag=_tag(pid, folder, tag_name) if tag_name else "",
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    finally:
        os.close(folder)


def _tag(pid: int, folder: int, name: str) -> str:
    start = f"{name}=".encode()
    try:
        variables = _environment(pid, folder).split(b"\0")
    except PermissionError:
        return ""  # a process of another user
    return next((os.fsdecode(v.removeprefix(start)) for v in variables if v.startswith(start)), "")


def _environment(pid: int, folder: int) -> bytes:
    """The complete environment of a process; empty for a kernel thread. Raises ProcessLookupError once it is gone.

    In the middle of an exec the environment reads as empty: the new address space has no environment yet, or the file
    refers to the old one. A read is complete if it has the length in `stat`, or if two reads in a row are equal. Raises
    Unsettled if there is none within EXEC_SECONDS.
    """
    previous: tuple[int, int, bytes] | None = None
    deadline = monotonic_seconds() + EXEC_SECONDS
    while True:
        fields = _stat(folder)
        if fields[0] in GONE:
            raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone")
        if int(fields[6]) & KERNEL_THREAD:
            return b""
        begin, end = int(fields[47]), int(fields[48])
        content = _read(folder, "environ")
        if end and len(content) == end - begin:
            return content
        if (end or content) and previous == (begin, end, content):
            return content  # the program has changed its own memory, or the kernel does not show the addresses
        previous = (begin, end, content)
        if monotonic_seconds() > deadline:
            raise Unsettled(errno.EAGAIN, f"process {pid} has been in the middle of an exec for {EXEC_SECONDS:g} s")
        os.sched_yield()


def _stat(folder: int) -> list[bytes]:
    """Fields of `stat` from the third on. The second is the name in parentheses, which may hold anything."""
    return _read(folder, "stat").rpartition(b") ")[2].split()


def _read(folder: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
        return file.read()


def _proc() -> Path:
    if not supported():
        raise Unsupported("process identities need Linux's /proc and pidfd_open, which this system does not have")
    return PROC


@cache
def _boot() -> str:
    """Id of the current boot; start ticks restart with each boot."""
    return BOOT_ID.read_text()[:8]
