"""State files on this host that outlive a process: the last safe pace, unleased starts to be reported and those that
are charged to no pool, and the lease of the previous attempt. A directory that cannot be written loses these, but
prevents no start.

Each lease-broker address has a directory of its own.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from slipway_api.http.lease_broker import AcquireReplaces, UnleasedStart
from slipway_client.leases.pace import Pace, slot, unknown
from slipway_common.base.clock import monotonic_seconds, utc_now

FOLDER_VARIABLE: Final = "SLIPWAY_STATE_DIR"
METRICS: Final = "uncharged.prom"
"""File in the format of Prometheus, which a node exporter's textfile collector reads."""
ATTEMPT_KEPT_SECONDS: Final = 2 * 86_400.0
START_KEPT_SECONDS: Final = 30 * 86_400.0
LOCK_SECONDS: Final = 1.0
"""Longest wait for the lock of a file: its holder may be stopped, and the file is not worth a start."""

Kept = TypeVar("Kept", bound=msgspec.Struct)


class Spooled(msgspec.Struct, frozen=True, kw_only=True):
    """An unleased start that was not reported yet. `result`: its result; empty while it may still run. `refused`: why
    no lease pool may be charged for it; empty if one may."""

    lease_pool_id: str
    start: UnleasedStart
    result: str = ""
    refused: str = ""

    @property
    def key(self) -> str:
        """Identity; members of a gang have one request id."""
        return f"{self.lease_pool_id} {self.start.request_id}"


def folder(environment: Mapping[str, str]) -> Path:
    """State directory: SLIPWAY_STATE_DIR, or `slipway` in the XDG state directory."""
    if given := environment.get(FOLDER_VARIABLE):
        return Path(given)
    home = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME") or "/nonexistent", ".local/state")
    return Path(home, "slipway")


class State:
    """State files of one lease-broker. Never raises: a write error is logged once."""

    def __init__(self, folder: Path, broker_url: str, log: Callable[[str], None]) -> None:
        self.folder = folder / "leases" / _name(broker_url)
        self._log = log
        self._complained = False
        self._unwritten: dict[str, Spooled] = {}

    # The pace

    def pace(self, lease_pool_id: str) -> Pace | None:
        """Last known pace of a lease pool."""
        return _read(self.folder / "pace" / _name(lease_pool_id), Pace)

    def learn(self, lease_pool_id: str, known: Pace) -> None:
        """Record the pace that the broker reported."""
        with self._locked("pace", lease_pool_id) as path:
            if path is not None:
                self._write(path, known)

    def slot(self, lease_pool_id: str, units: int, hold_seconds: float, chance: float) -> float:
        """Take the next place in this host's pace: seconds from now, infinite for never. `hold_seconds` is the hold
        assumed for a pool that was never seen."""
        now = utc_now().timestamp()
        with self._locked("pace", lease_pool_id) as path:
            known = (_read(path, Pace) if path is not None else None) or unknown(hold_seconds)
            start_at, after = slot(known, units, now, chance)
            if path is not None:
                self._write(path, after)
        return inf if start_at == inf else max(0.0, start_at - now)

    # Starts without a lease

    def spool(self, entry: Spooled) -> None:
        """Keep an unleased start until this process or a later one has reported it, at most for START_KEPT_SECONDS."""
        _prune(self._unleased, START_KEPT_SECONDS)
        if not self._write(self._unleased / _name(entry.key), entry):
            self._unwritten[entry.key] = entry

    def spooled(self) -> list[Spooled]:
        """Unleased starts to report, the oldest first."""
        entries = [*self._unwritten.values(), *_kept(self._unleased, Spooled)]
        return sorted(entries, key=lambda entry: entry.start.started_at)

    def reported(self, entry: Spooled) -> None:
        """Remove an entry that was reported, unless it has changed since."""
        if self._unwritten.get(entry.key) == entry:
            del self._unwritten[entry.key]
        path = self._unleased / _name(entry.key)
        if _read(path, Spooled) == entry:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def record_uncharged(self, entry: Spooled) -> int:
        """Record a start that is never reported, since no lease pool may be charged for it: the broker refused its
        request, or another service answered. Returns the number of those of START_KEPT_SECONDS."""
        folder = self.folder / "uncharged"
        self._write(folder / _name(entry.key), entry)
        _prune(folder, START_KEPT_SECONDS)
        if counts := Counter((one.lease_pool_id, one.refused) for one in _kept(folder, Spooled)):
            self._write(self.folder / METRICS, _metrics(counts))
        return max(1, counts.total())

    # Attempts

    def attempted(self, key: str) -> AcquireReplaces | None:
        """Lease of the job's last attempt."""
        return _read(self.folder / "attempts" / _name(key), AcquireReplaces)

    def attempt(self, key: str, lease: AcquireReplaces) -> None:
        """Record the lease of an attempt, and drop records older than ATTEMPT_KEPT_SECONDS."""
        kept = self.folder / "attempts"
        self._write(kept / _name(key), lease)
        _prune(kept, ATTEMPT_KEPT_SECONDS)

    def forget_attempts(self, key: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / "attempts" / _name(key)).unlink(missing_ok=True)

    @property
    def _unleased(self) -> Path:
        return self.folder / "unleased"

    @contextlib.contextmanager
    def _locked(self, kind: str, key: str) -> Iterator[Path | None]:
        """File of `key` under an exclusive lock of this host; None if it cannot be written."""
        path = self.folder / kind / _name(key)
        with contextlib.ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, lock)
                _lock(lock)
            except OSError as error:
                self._complain(error)
                yield None
                return
            yield path

    def _write(self, path: Path, value: msgspec.Struct | bytes) -> bool:
        """Write a file atomically; False if it could not be written."""
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            unfinished.touch(0o600)
            unfinished.write_bytes(value if isinstance(value, bytes) else msgspec.json.encode(value))
            unfinished.rename(path)
        except OSError as error:
            self._complain(error)
            return False
        return True

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            self._log(f"cannot write to {self.folder} ({error.strerror}); set {FOLDER_VARIABLE} to another directory")


def _read(path: Path, kind: type[Kept]) -> Kept | None:
    """Read a file; None if it is missing or was written by an incompatible version."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    return None


def _metrics(uncharged: Mapping[tuple[str, str], int]) -> bytes:
    name = "slipway_lease_uncharged_starts"
    help_ = "Starts of this host in the last 30 days that are charged to no lease pool"
    lines = [f"# HELP {name} {help_}", f"# TYPE {name} gauge"]
    lines += [
        f"{name}{{lease_pool={_quoted(pool)},cause={_quoted(cause)}}} {count}"
        for (pool, cause), count in sorted(uncharged.items())
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _quoted(label: str) -> str:
    return msgspec.json.encode(label).decode()


def _kept(folder: Path, kind: type[Kept]) -> list[Kept]:
    """What the files of a folder hold, but for those that a killed process has not finished."""
    with contextlib.suppress(OSError):
        paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
        return [one for path in paths if (one := _read(path, kind)) is not None]
    return []


def _prune(folder: Path, kept_seconds: float) -> None:
    """Remove files that are older."""
    oldest = utc_now().timestamp() - kept_seconds
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def _lock(file: int) -> None:
    """Lock a file exclusively. Raises OSError if somebody else keeps it locked for LOCK_SECONDS."""
    until = monotonic_seconds() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic_seconds() > until:
                raise
            time.sleep(0.01)


def _name(key: str) -> str:
    """File name for a key with any characters."""
    return hashlib.sha256(os.fsencode(key)).hexdigest()[:32]
