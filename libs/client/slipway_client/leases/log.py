"""What the lease commands say: lines on standard error. Standard output is for values, and for the command's own."""

import contextlib
import sys

from slipway_client.foreign import printable


def say(text: str) -> None:
    """For people. Who does not listen any more stops nothing."""
    with contextlib.suppress(OSError, ValueError):
        for line in text.split("\n"):
            print(f"slipway lease: {printable(line)}", file=sys.stderr, flush=True)
