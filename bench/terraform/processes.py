"""Program that watches the process table: the largest number of processes of a tool among the children of a process.

`python -m bench.terraform.processes PID TOOL` reads /proc every few milliseconds, until its standard input is closed;
then it prints the largest number and how often it looked.
"""

import os
import sys
import time
from pathlib import Path
from typing import Final

INTERVAL_SECONDS: Final = 0.004


def children(pid: int) -> list[int]:
    """Process ids of the children of all threads of a process. Needs Linux with CONFIG_PROC_CHILDREN."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (thread / "children").read_text().split())
        except OSError:  # the thread has ended
            continue
    return found


def is_tool(pid: int, tool: bytes) -> bool:
    """True for a process that runs the tool, or is about to execute it."""
    try:
        return tool in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def main(pid: int, tool: str) -> None:
    os.set_blocking(sys.stdin.fileno(), False)
    most = looks = 0
    while sys.stdin.buffer.read(1) is None:
        others = (child for child in children(pid) if child != os.getpid())
        most = max(most, sum(is_tool(child, os.fsencode(tool)) for child in others))
        looks += 1
        time.sleep(INTERVAL_SECONDS)
    print(most, looks)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
