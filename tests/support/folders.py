"""Temporary folders of tests, in memory where there is room.

ext4 gives the place of a deleted file to no new one for some minutes, and passes over all such places again whenever a
file is created. Where databases are created and dropped all the time, one takes ten times as long there as in memory.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

MEMORY: Final = Path("/dev/shm")
CONTAINER: Final = Path("/sys/fs/cgroup")
ROOM_BYTES: Final = 4 * 2**30


@contextlib.contextmanager
def temporary_folder(prefix: str = "slipway-") -> Iterator[Path]:
    """A folder that is removed afterwards, even if this process is killed."""
    with disk_folder(prefix, MEMORY if room_bytes() >= ROOM_BYTES else None) as folder:
        yield folder


@contextlib.contextmanager
def disk_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """The same on the disk, for what measures commits: in memory they would cost nothing."""
    from slipway_common.base.process.guard import guard

    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        guard().remove(Path(name))
        yield Path(name)


def room_bytes() -> int:
    """Memory that files may take; 0 where there is no folder in memory that programs can be run in."""
    try:
        is_usable = os.access(MEMORY, os.W_OK) and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
        return min(shutil.disk_usage(MEMORY).free, _left_bytes()) if is_usable else 0
    except (OSError, AttributeError):  # neither the folder nor the flag is known everywhere
        return 0


def _left_bytes() -> int:
    """Memory left on this machine, or in this container if it has a limit."""
    available: int = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        limit = int((CONTAINER / "memory.max").read_text())
        return min(available, limit - int((CONTAINER / "memory.current").read_text()))
    return available
