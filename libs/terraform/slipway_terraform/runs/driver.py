"""Driver of the CLI: exclusive operations of workspaces, at most `max_runs` processes at a time, state in and out."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from slipway_common.base.process.users import ChildUser
from slipway_terraform import metrics
from slipway_terraform.domain.diagnostics import DISK_FULL, Codes, failure_of
from slipway_terraform.domain.errors import (
    OperationInProgress,
    OutcomeUnknown,
    ProviderCrashed,
    QueueTimeout,
    SchedulerClosed,
    SharingUnsafe,
    SpecInvalid,
    ToolMissing,
)
from slipway_terraform.domain.output import Output
from slipway_terraform.domain.port import ProviderLease, ProviderScheduler
from slipway_terraform.domain.reattach import VARIABLE
from slipway_terraform.domain.results import SHARED_UNSAFELY, STATE_LOST, Command, Failure, Plugins, Run, Scope
from slipway_terraform.domain.root import FILE, MODULE, root_module
from slipway_terraform.domain.sensitive import secrets_of
from slipway_terraform.domain.specs import ProviderSpec
from slipway_terraform.domain.state import foreign_providers, is_state, outputs
from slipway_terraform.domain.tools import Tool, tool_of
from slipway_terraform.runs.files import ERRORED_STATE, STATE, RunFolder, read_written
from slipway_terraform.runs.operations import Operation, checked_name
from slipway_terraform.runs.preparing import Prepared, Preparing, undeclared
from slipway_terraform.runs.process import Ended, Interruption, run_process
from slipway_terraform.scheduler.noop import NoOpLease

LOG = logging.getLogger(__name__)
VERSION_SECONDS: Final = 20.0
INSTALL_SECONDS: Final = 300.0
"""Longest time for the installation of a module, which may come from a server that does not answer."""
LEASES_MAX: Final = 3
"""Leases to try if processes exit before they are used; the last error is raised."""

_COMMON: Final = ("-input=false", "-lock=false")  # the caller fences its states
ARGUMENTS: Final[Mapping[Command, tuple[str, ...]]] = {
    Command.PLAN: ("plan", "-refresh=false", "-json", *_COMMON),
    Command.APPLY: ("apply", "-auto-approve", "-json", *_COMMON),
    Command.REFRESH: ("apply", "-refresh-only", "-auto-approve", "-json", *_COMMON),
    Command.DESTROY: ("destroy", "-auto-approve", "-json", *_COMMON),
    Command.IMPORT: ("import", "-no-color", *_COMMON),
}
CHANGES_CLOUD: Final = frozenset({Command.APPLY, Command.DESTROY})


class WhenUnsafe(StrEnum):
    """Treatment of a module for which no process may be shared."""

    REFUSE = "refuse"
    OWN_PLUGINS = "own-plugins"
    """Let the CLI start its own plugins, which are installed from the mirror."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A module, its variables and its providers. `outputs` are those that it must have: without one no run begins.
    `secrets` are texts that must appear in no message, beside the sensitive settings of the providers."""

    module: Path
    module_digest: str
    variables: Mapping[str, Any] = {}
    providers: tuple[ProviderSpec, ...] = ()
    outputs: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    when_unsafe: WhenUnsafe = WhenUnsafe.REFUSE

    def __repr__(self) -> str:
        """Without variables, which hold secrets."""
        return f"Job({self.module}, {self.providers})"


class Imported(msgspec.Struct, frozen=True):
    """An existing resource to import: its address in the user's module, and its id at the provider."""

    address: str
    id: str


class _Request(msgspec.Struct, frozen=True):
    """One operation as it was asked for, with the text of its root module."""

    job: Job
    root: bytes
    state: bytes | None
    deadline: float
    imported: Imported | None


class _Leased(msgspec.Struct, frozen=True):
    """A lease for one run, what is installed for it, and the reason if the CLI starts its own plugins."""

    lease: ProviderLease
    prepared: Prepared
    unshared: str


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a driver. `tool` is the path of Terraform or OpenTofu, `folder` is used by this driver alone.

    `mirror` is a filesystem mirror of providers, from which the CLI's own plugins are installed. `codes` are the scopes
    of the cloud's error codes. `environment` is added to that of each CLI. Processes run as `user` [default: ours].
    """

    tool: Path
    folder: Path
    mirror: Path | None = None
    max_runs: int = 5
    grace_seconds: float = 10.0
    codes: Codes = {}
    environment: Mapping[str, str] = {}
    user: ChildUser | None = None


class Driver:
    """Runs of one tool. `async with` opens and closes it; the scheduler is the caller's."""

    def __init__(self, settings: DriverSettings, scheduler: ProviderScheduler) -> None:
        self.settings = settings
        self.scheduler = scheduler
        self.operations: dict[str, Operation] = {}
        """Last operation of each workspace, until it is forgotten."""
        self._folder = RunFolder(settings.folder, settings.user)
        self._slots = asyncio.Semaphore(settings.max_runs)
        self._closed = False

    async def __aenter__(self) -> Self:
        """Raises ToolMissing, ToolUnsupported, OperationInProgress, SpecInvalid, DiskFull."""
        self._folder.open(self.settings.mirror)
        try:
            self.tool = await self._identify()
        except BaseException:
            await asyncio.to_thread(self._folder.close)
            raise
        self._preparing = Preparing(self._folder, self.tool, self._install)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, reason: str = "the driver shuts down") -> None:
        """Interrupt every run and wait for its end."""
        self._closed = True
        for operation in self.operations.values():
            operation.interrupt(reason)
        await asyncio.gather(*(operation.settled() for operation in self.operations.values()))
        await self._preparing.aclose()
        await asyncio.to_thread(self._folder.close)

    def start(
        self,
        command: Command,
        workspace: str,
        job: Job,
        *,
        state: bytes | None,
        deadline: float,
        imported: Imported | None = None,
    ) -> Operation:
        """Begin an operation, which reserves its workspace at once; `deadline` is a time of `loop.time()`.

        Raises OperationInProgress, SpecInvalid, SchedulerClosed.
        """
        if self._closed:
            raise SchedulerClosed("the driver is shutting down; retry on another replica")
        if (command is Command.IMPORT) != (imported is not None):
            raise SpecInvalid("an import needs the address and id of a resource, and no other command takes them")
        checked_name(workspace)
        root = root_module(job.providers, job.variables, job.outputs)
        last = self.operations.get(workspace)
        if last is not None and last.is_running:
            raise OperationInProgress(f"{last.command} of workspace {workspace} is running already; wait for it")
        operation = self.operations[workspace] = Operation(command, workspace)
        operation.begin(self._run(operation, _Request(job, root, state, deadline, imported)))
        return operation

    async def run(
        self,
        command: Command,
        workspace: str,
        job: Job,
        *,
        state: bytes | None,
        deadline: float,
        imported: Imported | None = None,
    ) -> Run:
        """Begin an operation and wait for its end; a cancelled caller interrupts it, and it ends before the caller.

        Its result, with the state to save, stays in `operations`. Raises the errors of `start` and `Operation.wait`.
        """
        operation = self.start(command, workspace, job, state=state, deadline=deadline, imported=imported)
        try:
            return await operation.wait()
        except asyncio.CancelledError:
            operation.interrupt("the caller was cancelled")
            await operation.settled()
            raise

    def forget(self, workspace: str, *, keep_failure: bool = False) -> None:
        """Forget the last operation of a workspace, unless it runs, or failed and `keep_failure`."""
        last = self.operations.get(workspace)
        if last is not None and not last.is_running and not (keep_failure and last.has_failed):
            del self.operations[workspace]

    async def _run(self, operation: Operation, request: _Request) -> Run:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            async with asyncio.timeout_at(request.deadline) as waiting:
                run = await self._run_leased(operation, request, waiting)
        except TimeoutError as error:
            raise QueueTimeout(
                f"{operation.workspace}: no run could begin before the deadline; raise it or max_runs"
            ) from error
        return msgspec.structs.replace(run, seconds=loop.time() - begin)

    async def _run_leased(self, operation: Operation, request: _Request, waiting: asyncio.Timeout) -> Run:
        """Run with a lease; with another one if its process has ended before the run began."""
        crashes = 0
        while True:
            try:
                async with self._leased(operation.workspace, request) as leased, self._slots:
                    waiting.reschedule(None)
                    if asyncio.get_running_loop().time() >= request.deadline:  # a timeout ends only what waits
                        raise TimeoutError
                    return await self._run_in_slot(operation, request, leased)
            except ProviderCrashed as error:
                crashes += 1
                if crashes == LEASES_MAX:
                    raise ProviderCrashed(
                        f"{operation.workspace}: {crashes} plugins in a row exited before they were used; nothing was "
                        "run. The log has their last output; fix or replace the provider, or retry"
                    ) from error
            except OutcomeUnknown as error:
                if operation.is_in_cli or error.__cause__ is None:
                    raise
                raise error.__cause__ from None  # nothing was run, and its own error says why

    @contextlib.asynccontextmanager
    async def _leased(self, workspace: str, request: _Request) -> AsyncIterator[_Leased]:
        job = request.job
        async with contextlib.AsyncExitStack() as stack:
            prepared = await stack.enter_async_context(self._preparing.use(job.module, job.module_digest))
            unshared = self._unshared(prepared, job)
            if unshared or not job.providers:
                lease: ProviderLease = NoOpLease()
            else:
                undeclared(prepared.needs, job.providers, self.tool)
                lease = await self.scheduler.acquire(job.providers, owner=workspace, deadline=request.deadline)
            await stack.enter_async_context(lease)
            if job.providers and not lease.env.get(VARIABLE):
                unshared = unshared or "the scheduler shares nothing"
                if self.settings.mirror is None:
                    raise SharingUnsafe(f"{unshared}, and there is no mirror to install plugins from; set `mirror`")
                self._folder.check_sockets()
                installed = self._preparing.use(job.module, job.module_digest, job.providers)
                prepared = await stack.enter_async_context(installed)
            await stack.enter_async_context(lease.invocation())
            yield _Leased(lease, prepared, unshared)

    def _unshared(self, prepared: Prepared, job: Job) -> str:
        """Reason not to share a process for this job; empty if it is safe. Raises SharingUnsafe if that is refused."""
        if not prepared.needs.unsafe:
            return ""
        reasons = "; ".join(prepared.needs.unsafe[:3])
        if job.when_unsafe is WhenUnsafe.REFUSE:
            raise SharingUnsafe(
                f"{job.module}: {reasons}. One process would serve two configurations; remove it from the module. "
                f"Users of the library may set when_unsafe to {WhenUnsafe.OWN_PLUGINS}"
            )
        return reasons

    async def _run_in_slot(self, operation: Operation, request: _Request, leased: _Leased) -> Run:
        command, job, is_own = operation.command, request.job, bool(leased.unshared)
        output = Output(secrets_of(job.providers, job.secrets))
        arguments = list(ARGUMENTS[command])
        if request.imported is not None:
            arguments += (f"module.{MODULE}.{request.imported.address}", request.imported.id)
        environment = dict(self.settings.environment)
        for spec in job.providers if is_own else ():
            environment.update(spec.environment)
        environment.update(leased.lease.env)
        root = {FILE: request.root}
        with (
            self._folder.temporary() as temporary,
            self._folder.workspace(operation.workspace, leased.prepared.folder, root, request.state) as folder,
        ):
            interruption = operation.interruption
            loop = asyncio.get_running_loop()
            timer = loop.call_at(request.deadline, interruption.request, "the deadline passed")
            operation.is_in_cli, begin = True, loop.time()
            try:
                ended = await self._run_tool(arguments, folder, output, environment, temporary, interruption)
            finally:
                timer.cancel()
            errored = _state(folder / ERRORED_STATE, self.settings.user) or output.emergency_state
            after = _state(folder / STATE, self.settings.user)
        plugins = Plugins.OWN if is_own else Plugins.LEASED
        metrics.RUN_SECONDS.labels(command, plugins).observe(loop.time() - begin)
        is_lost = request.state is not None and after is None and errored is None
        failure = self._failure(command, ended, output, leased.unshared, errored or after, is_lost=is_lost)
        if failure is not None:
            metrics.FAILURES.labels(command, failure.scope).inc()
        # Before the lease ends: a process that is about to exit must not be given to the next caller.
        if ended.interrupted or (failure is not None and failure.distrusts_plugin):
            leased.lease.taint(ended.interrupted or "a run lost its plugin, or it served two configurations")
        return Run(
            command=command,
            plugins=plugins,
            unshared=leased.unshared,
            state=request.state if after is None else after,
            errored_state=errored,
            outputs=outputs(errored or after),
            changes=output.changes,
            failure=failure,
        )

    def _failure(
        self, command: Command, ended: Ended, output: Output, unshared: str, state: bytes | None, *, is_lost: bool
    ) -> Failure | None:
        """Failure of an ended run; None if it did what it should. `state` is its newest; `is_lost`: it wrote none."""
        if not unshared and (foreign := foreign_providers(state)):
            message = f"resources belong to {', '.join(foreign)}: the process served a second configuration"
            return Failure(scope=Scope.CONFIG, code=SHARED_UNSAFELY, message=message, diagnostics=output.errors)
        changes_cloud = command in CHANGES_CLOUD
        if ended.exit_code == 0 and is_lost and changes_cloud and output.begun:
            return Failure(
                scope=Scope.OUTCOME_UNKNOWN,
                code=STATE_LOST,
                message="the state of the run is unreadable; check the file descriptors and the disk of this host",
                unresolved=tuple(output.begun),
            )
        if ended.exit_code == 0:
            return None
        failure = failure_of(
            output,
            ended.exit_code,
            interrupted=ended.interrupted,
            codes=self.settings.codes,
            changes_cloud=changes_cloud,
        )
        if (
            changes_cloud
            and output.begun
            and (is_lost or (failure.code == DISK_FULL and output.emergency_state is None))
        ):
            return msgspec.structs.replace(failure, scope=Scope.OUTCOME_UNKNOWN, unresolved=tuple(output.begun))
        return failure

    async def _install(self, arguments: Sequence[str], folder: Path, output: Output) -> Ended:
        """Run the CLI for an installation, in one of the slots."""
        interruption = Interruption()
        reason = f"not finished within {INSTALL_SECONDS:g} s"
        with self._folder.temporary() as temporary:
            async with self._slots:
                timer = asyncio.get_running_loop().call_later(INSTALL_SECONDS, interruption.request, reason)
                try:
                    return await self._run_tool(
                        arguments, folder, output, self.settings.environment, temporary, interruption
                    )
                finally:
                    timer.cancel()

    async def _run_tool(
        self,
        arguments: Sequence[str],
        folder: Path,
        output: Output,
        environment: Mapping[str, str],
        temporary: Path,
        interruption: Interruption,
    ) -> Ended:
        with metrics.RUNNING.track_inprogress():
            return await run_process(
                [str(self.settings.tool), *arguments],
                folder=folder,
                environment=self._folder.environment(temporary) | dict(environment),
                feed=output.feed,
                interruption=interruption,
                grace_seconds=self.settings.grace_seconds,
                guard=self._folder.guard,
                user=self.settings.user,
            )

    async def _identify(self) -> Tool:
        """The configured tool. Raises ToolMissing, ToolUnsupported."""
        path, output, interruption = self.settings.tool, Output(), Interruption()
        timer = asyncio.get_running_loop().call_later(VERSION_SECONDS, interruption.request, "it took too long")
        try:
            with self._folder.temporary() as temporary:
                await self._run_tool(["version"], self._folder.path, output, {}, temporary, interruption)
        except OSError as error:
            raise ToolMissing(f"cannot run {path}: {error.strerror}; set the path of terraform or tofu") from error
        finally:
            timer.cancel()
        return tool_of(str(path), "\n".join(output.text))


def _state(path: Path, user: ChildUser | None) -> bytes | None:
    """Content of a state file; None if it is missing, truncated or unreadable, as without free file descriptors. No
    error is raised, since that would mean that nothing was run."""
    try:
        content = read_written(path, user)
    except FileNotFoundError:
        return None
    except OSError as error:
        LOG.error("the state of a run is lost: %s: %s", path.name, error.strerror)
        return None
    return content if is_state(content) else None
