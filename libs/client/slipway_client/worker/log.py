"""Log lines on standard error. Standard output belongs to the tasks."""

import contextlib
import sys


def log(line: str) -> None:
    """Write a line for people. A closed standard error does not stop the worker."""
    with contextlib.suppress(OSError, ValueError):
        print(f"slipway-worker: {line}", file=sys.stderr, flush=True)
