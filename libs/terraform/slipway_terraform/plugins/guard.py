"""Guard of plugins: a process that kills their process groups and removes their sockets after ours was killed.

It reads a pipe to which we write each start and end of a plugin, and cleans up once the kernel closes the pipe. The
parent-death signal of `launch` is no replacement: it reaches no descendants of a plugin and removes no folder. Uses
only the standard library, so that it starts quickly.
"""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

LOG: Final = logging.getLogger(__name__)
RESTART_SECONDS: Final = 0.1  # between two starts of a guard that ends at once, again and again


class Guard:
    """Guard of one folder and of the plugins that have sockets in it. One that ends by itself, as by the kernel's
    out-of-memory killer, is started anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._groups: set[int] = set()
        self._lock = threading.Lock()  # plugins start and end in threads of their own
        self._is_closed = False
        self._write_end = -1
        self._start()
        self._keeper = threading.Thread(target=self._keep, name="terraform-guard", daemon=True)
        self._keeper.start()

    def add(self, group: int) -> None:
        """Register a process group."""
        with self._lock:
            self._groups.add(group)
            self._write(b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """Forget a process group: its number may be used again."""
        with self._lock:
            self._groups.discard(group)
            self._write(b"-%d\n" % group)

    def close(self) -> None:
        """Let the guard clean up, and wait for its end."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._write_end)
                self._write_end = -1
        self._keeper.join()
        shutil.rmtree(self._folder, ignore_errors=True)  # in case the guard was killed before it did so

    def _keep(self) -> None:
        """Start another process for each that ends, until the guard is closed."""
        while True:
            self._process.wait()
            with self._lock:
                if self._is_closed:
                    return
                LOG.warning("the guard of plugins in %s was killed; a successor is started", self._folder)
                former = self._write_end
                try:
                    self._start()
                    os.close(former)
                except OSError as error:
                    LOG.error(
                        "the guard of plugins in %s cannot be started: %s; retrying", self._folder, error.strerror
                    )
            time.sleep(RESTART_SECONDS)

    def _start(self) -> None:
        """Start a process that knows all groups from its start, with a pipe of its own. Raises OSError."""
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(self._folder), *map(str, self._groups)],
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

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the guard was killed: its successor knows all groups
            os.write(self._write_end, line)


def watch(folder: str, groups: set[int]) -> None:
    """Main function of the guard: read until the owner has ended, then clean up."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch(sys.argv[1], set(map(int, sys.argv[2:])))
