"""Log lines on standard error. Standard output is for values and for the output of commands."""

import contextlib
import sys

from slipway_common.base.sanitize import printable


def log(text: str) -> None:
    """Write lines for people. A closed standard error stops nothing."""
    with contextlib.suppress(OSError, ValueError):
        for line in text.split("\n"):
            print(f"slipway lease: {printable(line)}", file=sys.stderr, flush=True)
