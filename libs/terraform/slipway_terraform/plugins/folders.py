"""Folders for sockets of plugins: private, locked while their owner lives, removed by a guard or the next owner."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from slipway_common.base.process.guard import Guard
from slipway_common.base.process.users import ChildUser
from slipway_terraform import metrics

# Every folder with this prefix may be removed by `sweep`: give no other folder such a name.
NAME: Final = "slipway-tf-"


class SocketFolders:
    """One folder in `parent` with a folder for each plugin, which belongs to `user` [default: ours]. Nothing is made
    before the first plugin."""

    def __init__(self, parent: Path, user: ChildUser | None = None) -> None:
        self.parent = parent
        self._user = user
        self._folder: Path | None = None
        # More than one if somebody removes our folder, as cleaners of temporary files do.
        self._owned: list[tuple[Guard, int]] = []
        self._number = 0

    def new(self) -> tuple[Path, Guard]:
        """Folder for another plugin, and the guard for its process. Raises OSError."""
        if self._folder is None or not self._folder.is_dir():
            sweep(self.parent)
            self._folder = self._open()
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir(mode=0o700)
        if self._user is not None:
            self._user.own(folder)
        return folder, self._owned[-1][0]

    def close(self) -> None:
        """End the guard, which removes the folder. Waits for it."""
        while self._owned:
            guard, lock = self._owned.pop()
            guard.close()
            os.close(lock)

    def _open(self) -> Path:
        """New folder with a lock and a guard."""
        while True:
            folder = Path(tempfile.mkdtemp(prefix=NAME, dir=self.parent))
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():
                break
            os.close(lock)  # removed by the sweep of another owner before it was locked
        try:
            guard = Guard()
        except OSError:
            folder.rmdir()
            os.close(lock)
            raise
        guard.remove(folder)
        if self._user is not None:
            folder.chmod(0o711)  # its processes pass through to their own folders
        self._owned.append((guard, lock))
        return folder


def sweep(parent: Path) -> None:
    """Remove folders whose owner was killed together with its guard: nobody has their locks."""
    for folder in parent.glob(f"{NAME}*"):
        with contextlib.suppress(OSError):  # of another user, locked, or gone
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                metrics.ORPHANS.inc()
            finally:
                os.close(lock)
