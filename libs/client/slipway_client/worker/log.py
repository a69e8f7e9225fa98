"""What the agent says of itself: lines on standard error. Standard output is the tasks'."""

import contextlib
import sys


def say(line: str) -> None:
    """For people. Who does not listen any more does not stop a worker."""
    with contextlib.suppress(OSError, ValueError):
        print(f"slipway-worker: {line}", file=sys.stderr, flush=True)
