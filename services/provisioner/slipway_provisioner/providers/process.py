"""Provider of processes on this host. An instance leads its own session and outlives the provisioner.

An agent's user data is in its standard input before it starts, so that it never waits for the provisioner, and the
secret is in no environment, argument or file. A tag in the environment, which children inherit, identifies the
instance. Processes that still carry the tag once its leader is gone are listed as an orphan instance.
"""

import asyncio
import contextlib
import errno
import glob
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from slipway_api.events.worker import Outcome, Scope
from slipway_api.percent import decoded, encoded
from slipway_common.base.process import identities
from slipway_common.base.process.groups import ended, filled_pipe, handed_on
from slipway_common.base.process.identities import INSTANCE_TAG, TAG_PARTS, Process
from slipway_common.base.process.programs import launching
from slipway_common.base.process.users import open_written
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain import account_check
from slipway_provisioner.domain.account_check import CheckState, Finding
from slipway_provisioner.domain.cloud import Account, Instance, InstanceState
from slipway_provisioner.providers.port import (
    CONSOLE_BYTES_MAX,
    CreateRequest,
    OutcomeUnknown,
    Provider,
    ProviderSettings,
    Refused,
    each,
)

LOG = logger(__name__)
DEFAULT_COMMAND: Final = ("slipway-worker", "run")
# errno → code and scope. There is no scope for any other errno.
CAPACITY: Final = "InsufficientCapacity"
COMMAND: Final = "InvalidCommand"
TOO_LARGE: Final = "TooLarge"
HOST: Final = "WrongHost"
ERRORS: Final = {
    **dict.fromkeys((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC), (CAPACITY, Scope.CAPACITY)),
    **dict.fromkeys(
        (
            errno.ENOENT,
            errno.EACCES,
            errno.EPERM,
            errno.ENOEXEC,
            errno.ENOTDIR,
            errno.EISDIR,
            errno.ELOOP,
            errno.EEXIST,
            errno.EROFS,
            errno.ENAMETOOLONG,
        ),
        (COMMAND, Scope.CONFIG),
    ),
    errno.E2BIG: (TOO_LARGE, Scope.CONFIG),
}
# Remedy per unusable setting of an account. There is no scope for account settings, so the config is charged as for any
# invalid request, and the message names the setting.
REMEDIES: Final = {
    "command": "install it on this host, or set one that can be run",
    "work_folder": "create it for the provisioner's user, or set another",
    "log_folder": "let the provisioner's user write there, or set another",
}
USER_DATA_BYTES_MAX: Final = 65536  # capacity of a pipe
POLL_SECONDS: Final = 0.01
TERMINATE_SECONDS: Final = 2.0  # a killed process that exists for longer waits for its disk


class AccountSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of an account. `processes_max` limits its processes. Folders are absolute paths: agents start in
    `work_folder` and have one log each in `log_folder`, or none if it is empty."""

    command: tuple[str, ...] = DEFAULT_COMMAND
    queue_url: str = ""
    processes_max: int | None = None
    environment: dict[str, str] = {}
    log_folder: str = ""
    work_folder: str = "/"


class Processes(Provider):
    """Provider of processes. The deployment is part of every tag, since deployments may share a host."""

    real = False
    operator_settings = frozenset({"command", "environment", "log_folder", "work_folder"})

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = settings
        # A single thread makes counting and starting processes atomic.
        self._starting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="start-process")
        self._collecting: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Stop starting processes. Running ones continue, and the next provisioner finds them by their tags."""
        await asyncio.to_thread(self._starting.shutdown, wait=True, cancel_futures=True)
        for task in self._collecting:
            task.cancel()

    def problem(self, account_settings: Mapping[str, Any], region: str) -> str:
        if not identities.supported():
            return "provider process needs Linux with /proc; launch on another provider from this system"
        try:
            settings = msgspec.convert(dict(account_settings), AccountSettings)
        except msgspec.ValidationError as error:
            return f"{error}; the settings are {', '.join(AccountSettings.__struct_fields__)}"
        if not settings.command or not settings.command[0]:
            return "command is empty; write the agent's command, for example command: [slipway-worker, run]"
        if settings.queue_url and not settings.queue_url.startswith(("http://", "https://")):
            return f"queue_url is {settings.queue_url!r}; write where agents claim tasks, such as http://127.0.0.1:7304/queue"
        if settings.processes_max is not None and settings.processes_max < 1:
            return f"processes_max is {settings.processes_max}; write how many processes fit here, 1 or more"
        for name, folder in (("log_folder", settings.log_folder or "/"), ("work_folder", settings.work_folder)):
            if not os.path.isabs(folder):
                return f"{name} is {folder!r}; write an absolute path, such as /var/lib/slipway"
        if bad := _bad_variables(settings.environment):
            return f"environment contains {bad!r}, which cannot be passed to a process; write NAME: value"
        return ""

    def config_problem(self, account_settings: Mapping[str, Any], config_settings: Mapping[str, Any]) -> str:
        if "environment" in config_settings:  # PATH or LD_PRELOAD would be as good as a command
            return (
                "environment is a setting of the operator; write it into the entry of the account in SLIPWAY_PROVIDERS"
            )
        return ""

    def honours_tokens(self, account: Account) -> bool:
        return False

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        folder = account.settings.get("log_folder")
        return f"{folder}/{batch_id}-*.log" if folder else ""

    async def console_output(self, account: Account, batch_id: str, instance_id: str) -> str:
        """Output of a process of the batch: which one had the instance's id is unknown once it has ended."""
        folder = account.settings.get("log_folder")
        return await asyncio.to_thread(_tail, Path(folder), batch_id) if folder else ""

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str]:
        abandoned = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._starting, self._create, account, request, abandoned, loop)
        except RuntimeError as error:
            raise OutcomeUnknown(f"the provisioner is shutting down: {error}") from error
        finally:
            abandoned.set()  # no process may start once the call's outcome is looked up

    async def pages(self, account: Account, *, batch_id: str | None = None) -> AsyncIterator[Sequence[Instance]]:
        prefix = tag_prefix(account, batch_id) if batch_id else tag_prefix(account)
        found = await asyncio.to_thread(_tagged, prefix)
        yield [_instance(process) for process in instances(found)]

    async def exists(self, account: Account, instance_id: str, *, launched_at: datetime | None) -> bool:
        return identities.alive(instance_id)

    async def terminate(self, account: Account, instance_ids: Sequence[str]) -> None:
        await each(instance_ids, lambda instance_id: self._terminate(account, instance_id))

    async def _terminate(self, account: Account, instance_id: str) -> None:
        found = await asyncio.to_thread(_tagged, tag_prefix(account))
        leader = next((process for process in found if process.identity == instance_id), None)
        if leader is None:
            return
        # A stopped leader starts no new children, and while it is alive its session id is not reused.
        identities.send(instance_id, signal.SIGSTOP)
        rest: Sequence[Process] = ()
        try:
            async with asyncio.timeout(TERMINATE_SECONDS):
                while rest := await asyncio.to_thread(_followers, leader):
                    for process in rest:
                        identities.send(process.identity, signal.SIGKILL)
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            count = "1 process does" if len(rest) == 1 else f"{len(rest)} processes do"
            raise OutcomeUnknown(f"{instance_id}: {count} not end after SIGKILL") from None
        finally:
            identities.send(instance_id, signal.SIGKILL)

    async def identity(self, account: Account) -> str:
        return socket.gethostname()

    async def check(self, account: Account, configs: Sequence[Mapping[str, Any]]) -> Sequence[Finding]:
        """Host, command and folders of the account, and room for another process."""
        host = account_check.identity(account.identity, socket.gethostname(), about="the host of the provisioner")
        found = await asyncio.to_thread(_usable, msgspec.convert(dict(account.settings), AccountSettings))
        return [host, *found, *await self._room(account)]

    async def _room(self, account: Account) -> Sequence[Finding]:
        settings = msgspec.convert(dict(account.settings), AccountSettings)
        if settings.processes_max is None:
            return []
        live = len(instances(await asyncio.to_thread(_tagged, tag_prefix(account))))
        is_full = live >= settings.processes_max
        return [
            Finding(
                kind="quota",
                subject="processes_max",
                state=CheckState.WARNING if is_full else CheckState.OK,
                message=f"{live} of {settings.processes_max} processes are running",
                remedy="raise processes_max, or wait for processes to end" if is_full else "",
            )
        ]

    def _create(
        self, account: Account, request: CreateRequest, abandoned: threading.Event, loop: asyncio.AbstractEventLoop
    ) -> Sequence[str]:
        if (host := socket.gethostname()) != account.identity:
            outcome = self.failure(account, request.config, HOST, Scope.CREDENTIAL)
            raise Refused(outcome, f"account {account.id} belongs to host {account.identity}, but this host is {host}")
        settings = msgspec.convert(dict(account.settings), AccountSettings)
        count = request.count
        if settings.processes_max is not None:
            live = len(instances(_tagged(tag_prefix(account))))
            count = min(count, settings.processes_max - live)
            if count <= 0:
                outcome = self.failure(account, request.config, CAPACITY, Scope.CAPACITY)
                raise Refused(outcome, f"{live} of {settings.processes_max} processes (processes_max) are running")
        started: list[str] = []
        for number in range(1, count + 1):
            if abandoned.is_set():
                break
            try:
                child = self._start(account, settings, request, number)
            except (OSError, ValueError) as error:
                if started:
                    break  # fewer than requested
                outcome = self.failure(account, request.config, *_code_and_scope(error), str(error))
                raise Refused(outcome, _failure_text(account, settings, outcome, error)) from error
            started.append(identities.child_identity(child.pid))
            loop.call_soon_threadsafe(self._collect_at_end, child)
        return started

    def _start(
        self, account: Account, settings: AccountSettings, request: CreateRequest, number: int
    ) -> "subprocess.Popen[bytes]":
        config = request.config
        environment = handed_on()
        if (user := self.settings.child_user) is not None:
            environment["HOME"] = user.home
        environment |= settings.environment
        own = encoded(config["id"], request.incarnation)
        environment[INSTANCE_TAG] = tag_prefix(account, request.batch_id, str(number)) + own
        with ExitStack() as stack:
            standard_input = stack.enter_context(_standard_input(request.user_data.encode()))
            log: BinaryIO | int = subprocess.DEVNULL
            if settings.log_folder:
                log = stack.enter_context(_log(Path(settings.log_folder), f"{request.batch_id}-{number}.log"))
            launched = stack.enter_context(launching(settings.command, environment, user=user))
            child = subprocess.Popen(
                launched.argv,
                stdin=standard_input,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=settings.work_folder,
                pass_fds=launched.pass_fds,
                start_new_session=True,
            )
            try:
                launched.check()
            except OSError:
                child.wait()
                raise
            return child

    def _collect_at_end(self, child: "subprocess.Popen[bytes]") -> None:
        task = asyncio.create_task(_collect(child))
        self._collecting.add(task)
        task.add_done_callback(self._collecting.discard)


async def _collect(child: "subprocess.Popen[bytes]") -> None:
    """Collect the exit status of a child once it has ended."""
    await ended(child)
    LOG.info("process ended", pid=child.pid, exit_code=child.wait())


def tag_prefix(account: Account, *more: str) -> str:
    """First parts of the tags of an account's instances, with the slash that ends the last one."""
    return encoded(account.deployment, account.id, *more) + "/"


def _usable(settings: AccountSettings) -> list[Finding]:
    """Findings on what processes are started with."""
    unusable = {
        "command": not shutil.which(settings.command[0], path=os.environ.get("PATH")),
        "work_folder": not os.access(settings.work_folder, os.R_OK | os.X_OK),
        "log_folder": bool(settings.log_folder) and not _can_have_logs(Path(settings.log_folder)),
    }
    given = {"command": settings.command[0], "work_folder": settings.work_folder, "log_folder": settings.log_folder}
    return [
        Finding(
            kind="setting",
            subject=name,
            state=CheckState.PROBLEM if unusable[name] else CheckState.OK,
            message=f"{value} {'cannot be used by the provisioner' if unusable[name] else 'can be used'}",
            remedy=REMEDIES[name] if unusable[name] else "",
        )
        for name, value in given.items()
        if value
    ]


def _can_have_logs(folder: Path) -> bool:
    """True if logs can be written into a folder, which is made when the first process starts."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _tagged(prefix: str) -> list[Process]:
    """Processes whose tag begins with `prefix`. Raises OutcomeUnknown if a process stays in the middle of an exec."""
    try:
        return identities.tagged(INSTANCE_TAG, prefix)
    except identities.Unsettled as error:
        raise OutcomeUnknown(str(error)) from error


def _followers(leader: Process) -> list[Process]:
    """Processes with the leader's tag and, while it is alive, its session: a child may have cleared its environment."""
    session = leader.session if leader.leads and identities.alive(leader.identity) else None
    try:
        running = identities.running(INSTANCE_TAG)
    except identities.Unsettled as error:
        raise OutcomeUnknown(str(error)) from error
    return [p for p in running if p.identity != leader.identity and (p.tag == leader.tag or p.session == session)]


def instances(found: Sequence[Process]) -> list[Process]:
    """One process per tag among those found, the earliest started first: the session leader, or once that is gone the
    oldest process that is left."""
    chosen: dict[str, Process] = {}
    for process in found:
        known = chosen.get(process.tag)
        if known is None or (process.leads and not known.leads):
            chosen[process.tag] = process
    return list(chosen.values())


def _code_and_scope(error: OSError | ValueError) -> tuple[str, Scope | None]:
    """Code and scope of a failed start. A ValueError means a bad variable name or a zero byte: nothing was started."""
    if isinstance(error, ValueError):
        return COMMAND, Scope.CONFIG
    number = error.errno or 0
    return ERRORS.get(number, (errno.errorcode.get(number, "OSError"), None))


def _failure_text(account: Account, settings: AccountSettings, outcome: Outcome, error: OSError | ValueError) -> str:
    """Message of a failed start. For an unusable file it begins with the setting and the remedy, since the end of a
    long message is cut off."""
    if outcome.code != COMMAND or not isinstance(error, OSError) or error.filename is None:
        return str(error)
    named = {settings.work_folder: "work_folder", settings.command[0]: "command"}
    setting = named.get(os.fspath(error.filename), "log_folder")
    return f"{setting} of account {account.id} cannot be used; {REMEDIES[setting]}: {error}"


def _instance(process: Process) -> Instance:
    """Instance of a process, without a batch and a revision if its tag is no tag of an instance."""
    parts = decoded(process.tag)
    _, _, batch_id, _, config_id, _ = parts if len(parts) == TAG_PARTS else [""] * TAG_PARTS
    return Instance(
        id=process.identity,
        batch_id=batch_id,
        launch_config_id=config_id,
        created_at=process.started_at,
        state=InstanceState.RUNNING,
    )


def _standard_input(content: bytes) -> BinaryIO:
    """Pipe that holds the user data. Raises OSError if they do not fit."""
    if len(content) > USER_DATA_BYTES_MAX:
        problem = (
            f"user data has {len(content)} bytes, at most {USER_DATA_BYTES_MAX}; shorten the launch config's settings"
        )
        raise OSError(errno.E2BIG, problem)
    return filled_pipe(content)


def _log(folder: Path, name: str) -> BinaryIO:
    folder.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(folder / name, flags, 0o600), "ab")


def _tail(folder: Path, batch_id: str) -> str:
    """End of the first log of a batch that is a file of ours; empty if it has none."""
    for path in sorted(folder.glob(f"{glob.escape(batch_id)}-*.log")):
        with contextlib.suppress(OSError), open_written(path, os.geteuid()) as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - CONSOLE_BYTES_MAX))
            return log.read().decode(errors="replace")
    return ""


def _bad_variables(environment: Mapping[str, str]) -> str:
    """Name of the first invalid environment variable; empty if all are valid."""
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value or name == INSTANCE_TAG:
            return name or "a variable without a name"
    return ""
