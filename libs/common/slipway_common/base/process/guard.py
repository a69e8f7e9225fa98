"""Cleanup after a process, even after SIGKILL: a guard process ends its children and removes its folders.

The guard reads a pipe to which its owner writes every start and end of a child. When the owner dies, for whatever
reason, the kernel closes the pipe, and the guard cleans up what is still on its list. Linux's PR_SET_PDEATHSIG is no
alternative: it is lost when a child changes its user, fires when the *thread* that started the child ends, and removes
no folder. Uses only the standard library, so that the guard starts quickly.
"""

import atexit
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, Self

LOG: Final = logging.getLogger(__name__)
GRACE_SECONDS: Final = 5.0  # between an orphan's own signal and SIGKILL
RESTART_SECONDS: Final = 0.1  # between two starts of a guard that ends at once, again and again

AFTERWARDS: Final = {0: "</dev/null", 2: "2>&1"}


class Held:
    """A command whose process becomes its program once the guard knows it, and ends if its owner does so before.

    A shell waits for a line: a function between fork and exec is unsafe in a parent with threads, such as those of
    gRPC, and Python may be out of reach for a child of another user.
    """

    def __init__(self, argv: Sequence[str], *, over: Literal[0, 2]) -> None:
        """The process gets `descriptor` as its standard input (0) or error (2). Its program has an empty input, or
        writes its errors to its output."""
        self.argv = ["/bin/sh", "-c", f'read -r go <&{over} && exec "$@" {AFTERWARDS[over]}', "sh", *argv]
        self.descriptor, self._go = os.pipe()

    def __enter__(self) -> Self:
        return self

    def go(self, pid: int, orphan_signal: int) -> None:
        """Register the process with the guard, and let it go on."""
        guard().add(pid, orphan_signal)
        with suppress(BrokenPipeError):  # it was killed
            os.write(self._go, b"go\n")

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
        os.close(self._go)


class Guard:
    """Guard of this process: the owner's end of the pipe. A guard that ends by itself, as by the kernel's out-of-memory
    killer, has a successor, which knows the same list. Raises OSError if it cannot be started."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lines: dict[str, str] = {}  # by what they name
        self._lock = threading.Lock()  # children may start and end in threads of their own
        self._is_closed = False
        self._write_end = -1
        self._start()
        self._keeper = threading.Thread(target=self._keep, name="guard", daemon=True)
        self._keeper.start()

    def add(self, pid: int, orphan_signal: int = signal.SIGKILL) -> None:
        """Register a child, which leads a process group."""
        self._register(str(pid), f"process {pid} {int(orphan_signal)}")

    def forget(self, pid: int) -> None:
        """Remove a child that has been waited for, because the kernel may reuse its process id."""
        with self._lock:
            self._lines.pop(str(pid), None)
            self._write(f"ended {pid}")

    def remove(self, path: Path) -> None:
        """Register a file or folder for removal; normally its owner removes it earlier."""
        self._register(f"path {path}", f"remove {path.absolute()}")

    def tagged(self, variable: str) -> None:
        """Register every process whose environment has a variable with this prefix, such as `NAME=value/`.

        For processes that services start in sessions of their own. Needs Linux's /proc."""
        self._register(f"tag {variable}", f"tagged {variable}")

    def close(self) -> None:
        """Let the guard clean up now, and wait until it has finished."""
        if os.getpid() != self.owner:
            return
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._write_end)
                self._write_end = -1
        self._keeper.join()
        for line in self._lines.values():  # in case the guard was killed before it did so
            if line.startswith("remove "):
                delete(line.removeprefix("remove "))

    def _register(self, key: str, line: str) -> None:
        if "\n" in line:
            raise ValueError(f"cannot guard {line!r}: it has a line break")
        with self._lock:
            self._lines[key] = line
            self._write(line)

    def _write(self, line: str) -> None:
        with suppress(OSError):  # it was killed: its successor knows all lines
            os.write(self._write_end, os.fsencode(line) + b"\n")  # one write below PIPE_BUF is atomic

    def _keep(self) -> None:
        """Start another process for each that ends, until the guard is closed."""
        while True:
            self._process.wait()
            with self._lock:
                if self._is_closed:
                    return
                LOG.warning("the guard of process %d was killed; a successor is started", self.owner)
                former = self._write_end
                try:
                    self._start()
                    os.close(former)
                except OSError as error:
                    LOG.error("the guard of process %d cannot be started: %s; retrying", self.owner, error.strerror)
            time.sleep(RESTART_SECONDS)

    def _start(self) -> None:
        """Start a process with a pipe of its own, in which is what is registered: as much as fits before it starts, so
        that it knows that however soon its owner ends. Raises OSError."""
        read_end, write_end = os.pipe()
        lines = b"".join(os.fsencode(line) + b"\n" for line in self._lines.values())
        os.set_blocking(write_end, False)
        written = os.write(write_end, lines)
        os.set_blocking(write_end, True)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        self._write_end = write_end
        with suppress(OSError):  # it was killed: its successor knows all lines
            while written < len(lines):
                written += os.write(write_end, lines[written:])


_current: Guard | None = None


def guard() -> Guard:
    """The guard of this process, started on first use."""
    global _current
    if _current is None or _current.owner != os.getpid():
        _current = Guard()
        atexit.register(_current.close)
    return _current


def watch() -> None:
    """Main function of the guard process: read until the owner has ended, then clean up."""
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
        delete(path)


def delete(path: str) -> None:
    """Remove a file or folder, if it exists."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def end(orphans: dict[int, int]) -> None:
    """Send each process group its signal, and SIGKILL to those that do not end in time."""
    for pid, signum in orphans.items():
        signal_group(pid, signum)
        signal_group(pid, signal.SIGCONT)  # a process stopped by SIGSTOP handles only SIGKILL
    deadline = time.monotonic() + GRACE_SECONDS
    while any(map(is_running, orphans)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in orphans:
        signal_group(pid, signal.SIGKILL)


def end_tagged(tags: list[bytes]) -> None:
    """Kill every process that carries one of the tags, until two scans in a row find none: the environment of a process
    in the middle of an exec reads as empty."""
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
    """True if a process has one of the tags in its environment. A zombie's is empty; another user's is unreadable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    return any(variable.startswith(tuple(tags)) for variable in variables)


def signal_group(pid: int, signum: int) -> None:
    """Signal the process group that a child leads; does nothing if the group is gone."""
    with suppress(ProcessLookupError, PermissionError):  # macOS reports EPERM for a group of zombies
        os.killpg(pid, signum)


def is_running(pid: int) -> bool:
    """True if a process exists and is no zombie: in a container an orphan's exit status may never be collected."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # exists, and belongs to another user
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")  # no /proc at all, or ended between the two checks
    except OSError:
        return True


if __name__ == "__main__":
    watch()
