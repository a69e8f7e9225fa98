"""Folders of runs: one per driver, and a short-lived one per run. They hold secrets: modes 0700 and 0600."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from slipway_common.base.process.guard import Guard
from slipway_common.base.process.users import ChildUser, open_written
from slipway_terraform.domain.errors import DiskFull, OperationInProgress, SpecInvalid
from slipway_terraform.domain.sockets import SOCKET_BYTES_MAX

LOG = logging.getLogger(__name__)
STATE: Final = "terraform.tfstate"
ERRORED_STATE: Final = "errored.tfstate"
CLI_CONFIG: Final = "cli.tfrc"
DATA: Final = ".terraform"
LOCK_FILE: Final = ".terraform.lock.hcl"
PREPARED: Final = "prepared"
WORKSPACES: Final = "workspaces"
HOME: Final = "home"
TEMPORARY: Final = "tmp"
TEMPORARY_BYTES: Final = 19
"""Length of /files/tmp/12345678, below the folder."""
SOCKET_NAME_BYTES: Final = 34
"""Room for the names that plugins give their sockets in TMPDIR: /plugin1234567890, /tmp12345678/py-tf-plugin.sock."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def disk_full(what: str) -> Iterator[None]:
    """Turn errors of a full disk into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(f"no space on the disk for {what}: {error.strerror}; free some. Nothing was run") from error


def read_written(path: Path, user: ChildUser | None) -> bytes:
    """Content of a file that a process has written. Raises OSError, also unless it is a file of the process's user."""
    with open_written(path, None if user is None else user.uid) as file:
        return file.read()


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(content)


class RunFolder:
    """Folder of a driver. Only one driver uses it at a time. After a kill its guard ends the CLI processes and removes
    what is secret. Processes of another `user` get folders of their own in it, and pass through ours."""

    def __init__(self, path: Path, user: ChildUser | None = None) -> None:
        self.path = path.absolute()
        self.user = user
        self._mode = 0o700 if user is None else 0o711
        self._lock: int | None = None
        self._guard: Guard | None = None

    def open(self, mirror: Path | None) -> None:
        """Lock and empty the folder. Raises OperationInProgress if another driver uses it, SpecInvalid if it is not
        usable, DiskFull."""
        with disk_full("the folder of runs"), contextlib.ExitStack() as undo:
            try:
                self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
                self.path.chmod(self._mode)
                self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                if error.errno in _FULL:
                    raise
                reason = f"{self.path} cannot be used as the folder of runs: {error.strerror}"
                raise SpecInvalid(f"{reason}; set a folder that belongs to this user") from error
            undo.callback(os.close, self._lock)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OperationInProgress(
                    f"another process runs Terraform in {self.path}; use another folder"
                ) from error
            self._files = self.path / "files"
            remove(self._files)  # of a driver that was killed together with its guard
            for name in (PREPARED, WORKSPACES, HOME, TEMPORARY):
                (self._files / name).mkdir(parents=True, mode=0o700)
            for folder in (self._files, *(self._files / name for name in (PREPARED, WORKSPACES, TEMPORARY))):
                folder.chmod(self._mode)
            write_private(self._files / CLI_CONFIG, _cli_config(mirror).encode())
            self.give(self._files / CLI_CONFIG, self._files / HOME)
            self._guard = Guard()
            self._guard.remove(self._files)
            undo.pop_all()

    @property
    def guard(self) -> Guard:
        assert self._guard is not None, "open() comes first"
        return self._guard

    @property
    def prepared(self) -> Path:
        """Folder of what runs share."""
        return self._files / PREPARED

    def give(self, *paths: Path) -> None:
        """Make files and folders, with all that is in them, those of the user of the processes."""
        if self.user is not None:
            self.user.own(*paths)

    def close(self) -> None:
        """Remove everything and release the lock."""
        self.guard.close()
        assert self._lock is not None
        os.close(self._lock)

    def environment(self, temporary: Path) -> dict[str, str]:
        """Environment of the CLI: nothing of this process, as TF_VAR_*, and no settings or plugins of a home folder."""
        return {
            "PATH": os.defpath,
            "HOME": str(self._files / HOME),
            "LANG": "C.UTF-8",
            "TMPDIR": str(temporary),
            "CHECKPOINT_DISABLE": "1",
            "TF_IN_AUTOMATION": "1",
            "TF_INPUT": "0",
            # Terraform before 1.2 would run in a child of itself, to which it passes no signal.
            "TF_FORK": "0",
            "TF_CLI_CONFIG_FILE": str(self._files / CLI_CONFIG),
            "TF_DATA_DIR": DATA,
        }

    def check_sockets(self) -> None:
        """Raise SpecInvalid if sockets of the CLI's own plugins would have too long a path here."""
        room = SOCKET_BYTES_MAX - SOCKET_NAME_BYTES - TEMPORARY_BYTES
        if len(os.fsencode(self.path)) > room:
            raise SpecInvalid(
                f"paths of sockets in {self.path} would be too long; choose a folder of at most {room} bytes"
            )

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """TMPDIR of one process."""
        path = self._files / TEMPORARY / secrets.token_hex(4)
        with disk_full("a temporary folder"):
            path.mkdir(mode=0o700)
            self.give(path)
        try:
            yield path
        finally:
            remove(path)

    @contextlib.contextmanager
    def workspace(
        self, workspace: str, prepared: Path, root: Mapping[str, bytes], state: bytes | None
    ) -> Iterator[Path]:
        """Folder of one run, removed after it: what was prepared, the files of `root`, and the state."""
        path = self._files / WORKSPACES / workspace
        try:
            with disk_full(f"the workspace {workspace}"):
                (path / DATA).mkdir(parents=True, mode=0o700)
                path.chmod(0o700)
                (path / "module").symlink_to(prepared / "module")
                for part in (prepared / DATA).iterdir():
                    (path / DATA / part.name).symlink_to(part)
                with contextlib.suppress(FileNotFoundError):
                    write_private(path / LOCK_FILE, read_written(prepared / LOCK_FILE, self.user))
                for name, content in root.items():
                    write_private(path / name, content)
                if state is not None:
                    write_private(path / STATE, state)
                self.give(path)
            yield path
        finally:
            remove(path)


def remove(path: Path) -> None:
    """Remove a folder; one that cannot be removed is reported, since it holds secrets."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        LOG.error("cannot remove %s, which holds secrets: %s; remove it", path, error)


def _cli_config(mirror: Path | None) -> str:
    """Configuration of the CLI: providers are installed from the mirror only, never from a registry."""
    method = f"filesystem_mirror {{\n    path = {json.dumps(str(mirror))}\n  }}\n  " if mirror else ""
    return (
        f'provider_installation {{\n  {method}direct {{\n    exclude = ["*/*/*"]\n  }}\n}}\ndisable_checkpoint = true\n'
    )
