"""Time of processes on a machine with other work."""

import time
from pathlib import Path


def own_seconds(*pids: int | str) -> float:
    """Monotonic time without that in which this process, or one of these that it waits for, waited for a processor."""
    return time.monotonic() - sum(map(waited_seconds, ("self", *pids)))


def waited_seconds(pid: int | str) -> float:
    """Seconds in which a process could run, and others had the processors; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0
