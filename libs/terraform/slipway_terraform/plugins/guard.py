"""Guard of plugins: a process that kills their process groups and removes their sockets after ours was killed.

It reads a pipe to which we write each start and end of a plugin, and cleans up once the kernel closes the pipe. The
parent-death signal of `launch` is no replacement: it reaches no descendants of a plugin and removes no folder. Uses
only the standard library, so that it starts quickly.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


class Guard:
    """Guard of one folder and of the plugins that have sockets in it."""

    def __init__(self, folder: Path) -> None:
        read_end, self._write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(folder)],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        except OSError:
            os.close(self._write_end)
            raise
        finally:
            os.close(read_end)

    def add(self, group: int) -> None:
        """Register a process group."""
        self._write(b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """Forget a process group: its number may be used again."""
        self._write(b"-%d\n" % group)

    def close(self) -> None:
        """Let the guard clean up, and wait for its end."""
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1
            self._process.wait()

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # closed, or the guard was killed: the parent-death signal is left
            os.write(self._write_end, line)


def watch(folder: str) -> None:
    """Main function of the guard: read until the owner has ended, then clean up."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: set[int] = set()
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
    watch(sys.argv[1])
