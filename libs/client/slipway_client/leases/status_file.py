"""Status file of `slipway lease run`: what became of its command, for scripts."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the command. `cause`: code of the reason why it has no lease, or was not started; None if it has one.
    `exit_code`: that of `run`; None while the command runs."""

    started: bool
    leased: bool
    cause: str | None
    exit_code: int | None = None


def write(path: Path | None, status: Status, log: Callable[[str], None]) -> None:
    """Replace the file atomically, so that no reader finds half of it. A file that cannot be written is logged, and
    changes nothing else."""
    if path is None:
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(msgspec.json.encode(status) + b"\n")
        unfinished.rename(path)
    except OSError as error:
        log(f"cannot write the status file {path}: {error.strerror}")
