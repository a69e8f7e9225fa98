"""What outlives a process on this host, as small files: the pace that was last safe, starts that were never leased and
have to be charged, and the lease of the attempt before. A folder that cannot be written costs these, never a start.

Files of one lease-broker are not another's: a folder belongs to an address.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from slipway_client.leases.pace import Pace, slot, unknown
from slipway_client.leases.terms import Start
from slipway_common.clock import utc_now
from slipway_common.events.lease import ReplacedLease

FOLDER_VARIABLE: Final = "SLIPWAY_STATE_DIR"
ATTEMPT_KEPT_SECONDS: Final = 2 * 86_400.0

Kept = TypeVar("Kept", bound=msgspec.Struct)


class Spooled(msgspec.Struct, frozen=True, kw_only=True):
    """A start that nobody has been told of yet. `result`: how it has ended; empty while it may still run."""

    lease_pool_id: str
    start: Start
    result: str = ""


def folder(environment: Mapping[str, str]) -> Path:
    """SLIPWAY_STATE_DIR, or where the desktop's rules put the state of programs."""
    if given := environment.get(FOLDER_VARIABLE):
        return Path(given)
    home = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME") or "/nonexistent", ".local/state")
    return Path(home, "slipway")


class State:
    """The files of one lease-broker. Nothing raises: what cannot be written is told through `say`, once."""

    def __init__(self, folder: Path, broker_url: str, say: Any) -> None:
        self.folder = folder / "leases" / _name(broker_url)
        self._say = say
        self._complained = False
        self._unwritten: dict[str, Spooled] = {}

    # The pace

    def pace(self, lease_pool_id: str) -> Pace | None:
        """What is known of a lease pool."""
        return _read(self.folder / "pace" / _name(lease_pool_id), Pace)

    def learn(self, lease_pool_id: str, known: Pace) -> None:
        """The broker has said how things are."""
        with self._locked("pace", lease_pool_id) as path:
            if path is not None:
                self._write(path, known)

    def slot(self, lease_pool_id: str, units: int, hold_seconds: float, chance: float) -> float:
        """Take the next place in this host's pace: seconds from now, infinite for never. `hold_seconds` counts where
        nothing is known of the pool."""
        now = utc_now().timestamp()
        with self._locked("pace", lease_pool_id) as path:
            known = (_read(path, Pace) if path is not None else None) or unknown(hold_seconds)
            start_at, after = slot(known, units, now, chance)
            if path is not None:
                self._write(path, after)
        return inf if start_at == inf else max(0.0, start_at - now)

    # Starts without a lease

    def spool(self, entry: Spooled) -> None:
        """Keep a start until somebody has been told of it, by this process or by the next."""
        if not self._write(self._unleased / _name(entry.start.request_id), entry):
            self._unwritten[entry.start.request_id] = entry

    def spooled(self) -> list[Spooled]:
        """Starts to tell of, the oldest first."""
        entries = list(self._unwritten.values())
        with contextlib.suppress(OSError):
            entries += filter(None, (_read(path, Spooled) for path in self._unleased.iterdir()))
        return sorted(entries, key=lambda entry: entry.start.started_at)

    def told(self, entry: Spooled) -> None:
        """The broker knows of this start. What was added to it since stays to be told."""
        request_id = entry.start.request_id
        if self._unwritten.get(request_id) == entry:
            del self._unwritten[request_id]
        path = self._unleased / _name(request_id)
        if _read(path, Spooled) == entry:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    # Attempts

    def attempted(self, key: str) -> ReplacedLease | None:
        """The lease of the last attempt of this job."""
        return _read(self.folder / "attempts" / _name(key), ReplacedLease)

    def attempt(self, key: str, lease: ReplacedLease) -> None:
        """Keep it; those of jobs that have not tried again for long are forgotten."""
        kept = self.folder / "attempts"
        self._write(kept / _name(key), lease)
        oldest = utc_now().timestamp() - ATTEMPT_KEPT_SECONDS
        with contextlib.suppress(OSError):
            for path in kept.iterdir():
                if path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)

    def forget_attempts(self, key: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / "attempts" / _name(key)).unlink(missing_ok=True)

    @property
    def _unleased(self) -> Path:
        return self.folder / "unleased"

    @contextlib.contextmanager
    def _locked(self, kind: str, key: str) -> Iterator[Path | None]:
        """The file of `key` while no other process of this host changes it; None where it cannot be written."""
        path = self.folder / kind / _name(key)
        with contextlib.ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                self._complain(error)
                yield None
                return
            yield path

    def _write(self, path: Path, value: msgspec.Struct) -> bool:
        """Whole or not at all: a process may be killed here as anywhere. Whether it is written."""
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            unfinished.touch(0o600)
            unfinished.write_bytes(msgspec.json.encode(value))
            unfinished.rename(path)
        except OSError as error:
            self._complain(error)
            return False
        return True

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            self._say(f"{self.folder} cannot be written ({error.strerror}); {FOLDER_VARIABLE} names another folder")


def _read(path: Path, kind: type[Kept]) -> Kept | None:
    """None for what is not there, and for what another version has written."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    return None


def _name(key: str) -> str:
    """A file's name; a key may hold anything."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]
