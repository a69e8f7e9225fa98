"""Processes of this host as instances: each leads a session of its own, and outlives us.

What an agent needs stands on its standard input before it starts, so that none ever waits for us, and the secret in it
in no environment, no argument and no file. A tag in its environment, which its children inherit, says whose it is;
what still carries the tag once its leader is gone is listed as an instance that nobody asked for.
"""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from slipway_common import processes
from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_common.processes import INSTANCE_TAG, Process
from slipway_common.redaction import redacted
from slipway_common.telemetry import logger
from slipway_provisioner.domain.cloud import Account, Instance
from slipway_provisioner.providers.port import CreateRequest, OutcomeUnknown, Refused

LOG = logger(__name__)
DEFAULT_COMMAND: Final = ("slipway-worker", "run")
# The rest of our own environment is ours: it names our database and our keys.
HANDED_ON: Final = ("PATH", "HOME", "LANG", "TMPDIR")
# What the system says when it cannot start a process → code and what it says something about. What is not here is a
# definite failure of unknown meaning: it is charged to the config.
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
# What to do about an account's setting that no process can be started with. No scope is of an account's settings: the
# config is charged, as for any request that is invalid, and the message says whose fault it is.
REMEDIES: Final = {
    "command": "install it on this host, or set one that can be run",
    "work_folder": "create it for the provisioner's user, or set another",
    "log_folder": "let the provisioner's user write there, or set another",
}
USER_DATA_BYTES_MAX: Final = 65536  # what a pipe holds
POLL_SECONDS: Final = 0.01
END_SECONDS: Final = 2.0  # a killed process that is still there after this waits for its disk


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account's settings. `processes_max` is how many fit. Folders are absolute: `work_folder` is where agents
    start, `log_folder` where each has a log of its own; without one it has none."""

    command: tuple[str, ...] = DEFAULT_COMMAND
    queue_url: str = ""
    processes_max: int | None = None
    environment: dict[str, str] = {}
    log_folder: str = ""
    work_folder: str = "/"


class Processes:
    """The adapter. `deployment` stands in every tag: other deployments may share the host."""

    def __init__(self, *, deployment: str, register_url: str) -> None:
        self.deployment = deployment
        self.register_url = register_url
        # One at a time, so that counting and starting is one step.
        self._starting = ThreadPoolExecutor(max_workers=1, thread_name_prefix="start-process")
        self._children: dict[int, subprocess.Popen[bytes]] = {}  # by the handle that tells their end

    async def close(self) -> None:
        """Processes go on; whoever is next finds them by their tags."""
        await asyncio.to_thread(self._starting.shutdown, wait=True, cancel_futures=True)
        for handle in self._children:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)
        self._children.clear()

    def problem(self, account_settings: Mapping[str, Any]) -> str:
        if not processes.supported():
            return "provider process needs Linux with /proc; launch on another provider from this system"
        try:
            settings = msgspec.convert(dict(account_settings), Settings)
        except msgspec.ValidationError as error:
            return f"{error}; there is {', '.join(Settings.__struct_fields__)}"
        if not settings.command or not settings.command[0]:
            return "command is empty; write the agent's, for example command: [slipway-worker, run]"
        if settings.queue_url and not settings.queue_url.startswith(("http://", "https://")):
            return f"queue_url is {settings.queue_url!r}; write where agents claim tasks, such as http://127.0.0.1:7304/queue"
        if settings.processes_max is not None and settings.processes_max < 1:
            return f"processes_max is {settings.processes_max}; write how many processes fit here, 1 or more"
        for name, folder in (("log_folder", settings.log_folder or "/"), ("work_folder", settings.work_folder)):
            if not os.path.isabs(folder):
                return f"{name} is {folder!r}; write an absolute path, such as /var/lib/slipway"
        if bad := _bad_variables(settings.environment):
            return f"environment holds {bad!r}, which no process can be given; write NAME: value"
        return ""

    def honours_tokens(self, account: Account) -> bool:
        return False

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        folder = account.settings.get("log_folder")
        return f"{folder}/{batch_id}-*.log" if folder else ""

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str]:
        given_up = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._starting, self._create, account, request, given_up, loop)
        except RuntimeError as error:
            raise OutcomeUnknown(f"closing: {error}") from error
        finally:
            given_up.set()  # what has not started by now may not turn up after the look-up

    async def instances(self, account: Account, *, batch_id: str | None = None) -> Sequence[Instance]:
        prefix = self._prefix(account) + (f"{batch_id}/" if batch_id else "")
        found = await asyncio.to_thread(processes.tagged, INSTANCE_TAG, prefix)
        return [
            Instance(id=process.identity, batch_id=_batch_of(process.tag), created_at=process.started_at, running=True)
            for process in instances(found)
        ]

    async def exists(self, account: Account, instance_id: str) -> bool:
        return processes.alive(instance_id)

    async def terminate(self, account: Account, instance_id: str) -> None:
        ours = await asyncio.to_thread(processes.tagged, INSTANCE_TAG, self._prefix(account))
        condemned = next((process for process in ours if process.identity == instance_id), None)
        if condemned is None:
            return
        # Stopped, it starts nobody new; alive, its session's number is nobody else's.
        processes.send(instance_id, signal.SIGSTOP)
        rest: Sequence[Process] = ()
        try:
            async with asyncio.timeout(END_SECONDS):
                while rest := await asyncio.to_thread(_followers, condemned):
                    for process in rest:
                        processes.send(process.identity, signal.SIGKILL)
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise OutcomeUnknown(f"{instance_id}: {len(rest)} of its processes do not end") from None
        finally:
            processes.send(instance_id, signal.SIGKILL)

    async def identity(self, account: Account) -> str:
        return socket.gethostname()

    def _prefix(self, account: Account) -> str:
        return f"{self.deployment}/{account.id}/"

    def _create(
        self, account: Account, request: CreateRequest, given_up: threading.Event, loop: asyncio.AbstractEventLoop
    ) -> Sequence[str]:
        if (host := socket.gethostname()) != account.identity:
            outcome = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CREDENTIAL, account.id, HOST)
            raise _refused(outcome, f"account {account.id} is of host {account.identity}, and this is {host}")
        settings = msgspec.convert(dict(account.settings), Settings)
        count = request.count
        if settings.processes_max is not None:
            live = len(instances(processes.tagged(INSTANCE_TAG, self._prefix(account))))
            count = min(count, settings.processes_max - live)
            if count <= 0:
                outcome = classify(request.config, CAPACITY, Scope.CAPACITY)
                raise _refused(outcome, f"{live} processes run, processes_max is {settings.processes_max}")
        started: list[str] = []
        for number in range(1, count + 1):
            if given_up.is_set():
                break
            try:
                child = self._start(account, settings, request, number)
            except (OSError, ValueError) as error:
                if started:
                    break  # fewer than asked for
                outcome = _outcome(request.config, error)
                raise _refused(outcome, _words(account, settings, outcome, error)) from error
            started.append(processes.child_identity(child.pid))
            loop.call_soon_threadsafe(self._collect_at_end, child)
        return started

    def _start(
        self, account: Account, settings: Settings, request: CreateRequest, number: int
    ) -> "subprocess.Popen[bytes]":
        config = request.config
        environment = {name: os.environ[name] for name in HANDED_ON if name in os.environ} | settings.environment
        environment |= _mapping(config["settings"].get("environment"))
        environment[INSTANCE_TAG] = f"{self._prefix(account)}{request.batch_id}/{number}/{config['id']}"
        user_data = {
            "register_url": self.register_url,
            "batch_id": request.batch_id,
            "secret": request.secret,
            "queue_url": settings.queue_url,
            "settings": config["settings"],
        }
        with ExitStack() as stack:
            standard_input = stack.enter_context(_filled_pipe(msgspec.json.encode(user_data)))
            log: BinaryIO | int = subprocess.DEVNULL
            if settings.log_folder:
                log = stack.enter_context(_log(Path(settings.log_folder), f"{request.batch_id}-{number}.log"))
            return subprocess.Popen(
                settings.command,
                stdin=standard_input,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=settings.work_folder,
                start_new_session=True,
            )

    def _collect_at_end(self, child: "subprocess.Popen[bytes]") -> None:
        """Leave no zombie: a handle of the process becomes readable when it has ended."""
        handle = os.pidfd_open(child.pid)
        self._children[handle] = child
        asyncio.get_running_loop().add_reader(handle, self._collect, handle)

    def _collect(self, handle: int) -> None:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
        child = self._children.pop(handle)
        LOG.info("process has ended", pid=child.pid, exit_code=child.wait())


def _followers(leader: Process) -> list[Process]:
    """Whoever carries its tag, and while it lives its whole session: a child may have cleared its environment."""
    session = leader.session if leader.leads and processes.alive(leader.identity) else None
    everybody = processes.running(INSTANCE_TAG)
    return [p for p in everybody if p.identity != leader.identity and (p.tag == leader.tag or p.session == session)]


def instances(found: Sequence[Process]) -> list[Process]:
    """One process for each tag among those found, the earliest started first: its session's leader, and once that is
    gone whoever is left of it."""
    chosen: dict[str, Process] = {}
    for process in found:
        known = chosen.get(process.tag)
        if known is None or (process.leads and not known.leads):
            chosen[process.tag] = process
    return list(chosen.values())


def classify(config: Mapping[str, Any], code: str, scope: Scope | None, message: str = "") -> Outcome:
    """What a refusal says something about; unknown when `scope` is None."""
    if scope is Scope.CAPACITY:
        key = f"{config['instance_type']}/{config['zone']}/on-demand"
        return Outcome(Stage.LAUNCH, Result.FAILED, scope, key, code)
    known = scope is not None
    sample = "" if known else redacted(message)
    return Outcome(Stage.LAUNCH, Result.FAILED, Scope.CONFIG, config["id"], code, classified=known, sample=sample)


def _outcome(config: Mapping[str, Any], error: OSError | ValueError) -> Outcome:
    """Of what was not even tried, a variable's name or a zero byte is to blame."""
    if isinstance(error, ValueError):
        return classify(config, COMMAND, Scope.CONFIG)
    number = error.errno or 0
    code, scope = ERRORS.get(number, (errno.errorcode.get(number, "OSError"), None))
    return classify(config, code, scope, str(error))


def _words(account: Account, settings: Settings, outcome: Outcome, error: OSError | ValueError) -> str:
    """Of a file that cannot be used: which setting names it, and what to do."""
    if outcome.code != COMMAND or not isinstance(error, OSError) or error.filename is None:
        return str(error)
    named = {settings.work_folder: "work_folder", settings.command[0]: "command"}
    setting = named.get(os.fspath(error.filename), "log_folder")
    return f"{error}: {setting} of account {account.id} cannot be used; {REMEDIES[setting]}"


def _refused(outcome: Outcome, message: str) -> Refused:
    return Refused(outcome, message, throttled=False, retry_after_seconds=None)


def _batch_of(tag: str) -> str:
    """deployment/account/batch/n/config; only a deployment may hold a slash."""
    return tag.rsplit("/", 3)[1] if tag.count("/") >= 4 else ""


def _filled_pipe(content: bytes) -> BinaryIO:
    """The reading end of a pipe that holds everything already, and whose writing end is closed. Raises OSError."""
    if len(content) > USER_DATA_BYTES_MAX:
        told = f"user data of {len(content)} bytes, at most {USER_DATA_BYTES_MAX}; shorten the launch config's settings"
        raise OSError(errno.E2BIG, told)
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        if os.write(writing, content) < len(content):
            raise BlockingIOError(errno.EAGAIN, "pipes are too short now")
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return os.fdopen(reading, "rb")


def _log(folder: Path, name: str) -> BinaryIO:
    folder.mkdir(parents=True, exist_ok=True)
    return os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")


def _mapping(given: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in given.items()} if isinstance(given, Mapping) else {}


def _bad_variables(environment: Mapping[str, str]) -> str:
    """The first name that cannot stand in an environment, or whose value cannot; empty when all can."""
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value or name == INSTANCE_TAG:
            return name or "a variable without a name"
    return ""
