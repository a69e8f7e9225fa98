"""Memory and CPU time of a process, from Linux's /proc."""

import os
from pathlib import Path

from slipway_terraform.domain.port import Sample


def sample(pid: int) -> Sample:
    """Resident memory and CPU time of a process so far; zeros if it is gone, or where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return Sample(memory_bytes=0, cpu_seconds=0.0)
    return Sample(
        memory_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    )
