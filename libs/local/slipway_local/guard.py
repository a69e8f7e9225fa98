"""Leaves nothing behind when a process ends, even by SIGKILL: its children are ended, its folders removed.

The guard is a process that reads a pipe. Its owner writes there what it starts and what it ends; when the owner dies,
however it dies, the kernel closes the pipe, and the guard clears up what is still on its list. Chosen over Linux's
PR_SET_PDEATHSIG because that one is lost when a child changes its user, fires when the *thread* that started the
child ends, and removes no folder. Only the standard library: the guard must start at once.
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

GRACE_SECONDS: Final = 5.0  # between an orphan's own signal and SIGKILL


class Guard:
    """The owner's end of the pipe."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        read_end, self._write_end = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=read_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)

    def pledge(self, orphan_signal: int) -> Callable[[], None]:
        """What a child runs between fork and exec, so that no instant passes in which it is not on the list."""

        def register() -> None:
            os.write(self._write_end, b"process %d %d\n" % (os.getpid(), orphan_signal))

        return register

    def forget(self, pid: int) -> None:
        """To be called once the child has been waited for: from then on its number may be another's."""
        self._tell(f"ended {pid}")

    def remove(self, path: Path) -> None:
        """Put a file or folder on the list; its owner removes it earlier if all goes well."""
        self._tell(f"remove {path}")

    def tagged(self, variable: str) -> None:
        """Put on the list every process whose environment has a variable that begins so, such as `NAME=value/`: what
        others start for us, in sessions of their own, when we are gone. Needs Linux's /proc."""
        self._tell(f"tagged {variable}")

    def close(self) -> None:
        """Let the guard clear up now, and wait for it: nothing outlives the owner visibly."""
        if os.getpid() == self.owner and self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1
            self._process.wait()

    def _tell(self, line: str) -> None:
        if "\n" in line:
            raise ValueError(f"cannot guard {line!r}")
        os.write(self._write_end, line.encode() + b"\n")  # one write below PIPE_BUF is never torn


_current: Guard | None = None


def guard() -> Guard:
    """This process's guard, started when first needed."""
    global _current
    if _current is None or _current.owner != os.getpid():
        _current = Guard()
        atexit.register(_current.close)
    return _current


def watch() -> None:
    """The guard's own life: read until the owner is gone, then clear up."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    orphans: dict[int, int] = {}
    paths: list[str] = []
    tags: list[bytes] = []
    for line in sys.stdin:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "process":
            pid, signum = rest.split()
            orphans[int(pid)] = int(signum)
        elif verb == "ended":
            orphans.pop(int(rest), None)
        elif verb == "remove":
            paths.append(rest)
        elif verb == "tagged":
            tags.append(os.fsencode(rest))
    end(orphans)
    end_tagged(tags)
    for path in paths:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.lexists(path):
            os.unlink(path)


def end(orphans: dict[int, int]) -> None:
    """End process groups, each by its own signal, and by SIGKILL those that stay."""
    for pid, signum in orphans.items():
        signal_group(pid, signum)
        signal_group(pid, signal.SIGCONT)  # a stopped process takes note of nothing but SIGKILL
    deadline = time.monotonic() + GRACE_SECONDS
    while any(map(is_running, orphans)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in orphans:
        signal_group(pid, signal.SIGKILL)


def end_tagged(tags: list[bytes]) -> None:
    """SIGKILL whatever carries one of the tags, until two looks in a row find nothing: a process that is being started
    shows its environment a moment later."""
    deadline = time.monotonic() + GRACE_SECONDS
    clean = 0 if tags else 2
    while clean < 2 and time.monotonic() < deadline:
        found = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if carries(pid, tags)]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        clean = 0 if found else clean + 1
        time.sleep(0.05)


def carries(pid: int, tags: list[bytes]) -> bool:
    """Whether a process has one of the tags in its environment; a zombie's is empty, another user's is not ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    return any(variable.startswith(tuple(tags)) for variable in variables)


def signal_group(pid: int, signum: int) -> None:
    """Signal the group that a child leads; a group that is gone is no error."""
    with suppress(ProcessLookupError, PermissionError):  # macOS says EPERM of a group of zombies
        os.killpg(pid, signum)


def is_running(pid: int) -> bool:
    """Exists and is no zombie: in a container nobody may ever collect an orphan's exit status."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # exists, and is another user's
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")  # no /proc at all, or gone between the two looks
    except OSError:
        return True


if __name__ == "__main__":
    watch()
