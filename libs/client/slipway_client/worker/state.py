"""Token of a machine's worker, stored so that a restarted agent is known again.

An identity document can be copied by every process of the machine, and enrols it once: the token tells its agent from
whatever has copied the document. It is in a file that its owner alone can read, usually root, and is drawn before the
first registration, so that one whose answer was lost can be repeated.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from slipway_client.worker.log import log
from slipway_common.base.ids import new_worker_token

DIRECTORY: Final = "SLIPWAY_STATE_DIRECTORY"
SYSTEMD: Final = "STATE_DIRECTORY"
"""Set by systemd for a unit with StateDirectory=, to one or more directories."""
OF_ROOT: Final = Path("/var/lib/slipway-worker")
FILE: Final = "worker.json"
BYTES_MAX: Final = 4096
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class Stored(msgspec.Struct, frozen=True):
    """Content of the file: the token of one instance, in one launch batch."""

    instance_id: str
    batch_id: str
    token: str

    def __repr__(self) -> str:
        return f"Stored(instance_id={self.instance_id!r})"


class Unusable(Exception):
    """The stored token cannot be used; the text says why, and nothing of it."""


def directory(environment: Mapping[str, str]) -> Path | None:
    """Directory of the file; None if none was given and the agent does not run as root."""
    given = environment.get(DIRECTORY) or environment.get(SYSTEMD, "").partition(":")[0]
    if given:
        return Path(given)
    return OF_ROOT if os.geteuid() == 0 else None


def stored_token(where: Path | None, instance_id: str, batch_id: str) -> str:
    """Token of this instance: the stored one, or a new one that is stored from now on."""
    if where is None:
        log(f"the token is not stored, so a restarted worker cannot register: not root, and {DIRECTORY} is not set")
        return new_worker_token()
    try:
        if (stored := _read(where)) is not None:
            if (stored.instance_id, stored.batch_id) == (instance_id, batch_id):
                return stored.token
            log(f"{where / FILE} belongs to {stored.instance_id}, an earlier instance or batch; replacing it")
    except Unusable as error:
        log(f"ignoring the stored token: {error}")
    made = Stored(instance_id, batch_id, new_worker_token())
    try:
        _write(where, made)
    except OSError as error:
        log(f"the token is not stored, so a restarted worker cannot register: {where}: {error.strerror}")
    return made.token


def _read(where: Path) -> Stored | None:
    """Stored token; None if there is none. Raises Unusable."""
    path = where / FILE
    try:
        _check(where, os.stat(where), OTHERS_WRITE, "writable by others than its owner")
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from error
    with os.fdopen(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise Unusable(f"{path} is not a regular file")
        _check(path, found, OTHERS, "accessible to others than its owner")
        try:
            return msgspec.json.decode(opened.read(BYTES_MAX), type=Stored)
        except (OSError, msgspec.MsgspecError) as error:
            raise Unusable(f"{path} cannot be read ({type(error).__name__})") from error


def _check(path: Path, found: os.stat_result, forbidden: int, problem: str) -> None:
    if found.st_uid != os.geteuid():
        raise Unusable(f"{path} belongs to another user")
    if found.st_mode & forbidden:
        raise Unusable(f"{path} is {problem}")


def _write(where: Path, made: Stored) -> None:
    """Replace the file as a whole. Raises OSError."""
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = where / f".{FILE}.new"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(msgspec.json.encode(made))
        file.flush()
        os.fsync(file.fileno())
    path.replace(where / FILE)
