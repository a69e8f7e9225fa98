"""Engine of the provider: plugin processes, a driver for each tool, and the queue of this replica.

Imported when the provider is opened, since what it needs is an extra.
"""

import asyncio
import fcntl
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_common.base.ids import new_id
from slipway_common.base.process.users import ChildUser
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.orphan_workspaces import Resource
from slipway_provisioner.domain.recovery import UUID
from slipway_provisioner.domain.workspace_runs import Result
from slipway_provisioner.providers.port import OutcomeUnknown, Provider, TerraformSettings
from slipway_provisioner.providers.terraform.credentials import NoCredential
from slipway_provisioner.providers.terraform.identities import Identities
from slipway_provisioner.providers.terraform.outcomes import CODES
from slipway_provisioner.providers.terraform.queue import INTERRUPT_SECONDS, RunQueue
from slipway_provisioner.providers.terraform.runs import Ended, LookUpFailed, Runs, resources_of
from slipway_provisioner.providers.terraform.settings import account_settings
from slipway_provisioner.providers.workspaces import RunClaim, Workspaces
from slipway_terraform.domain.errors import OperationInProgress, TerraformError, ToolMissing, ToolUnsupported
from slipway_terraform.domain.policy import Policy
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.runs.driver import Driver, DriverSettings
from slipway_terraform.scheduler.shared import SharedScheduler, WorkspaceScheduler

LOG = logger(__name__)
DRAIN_SECONDS: Final = 5.0
TOOLS: Final = "tools.json"
TOOL: Final = ("setting", "tool")
"""Kind and subject of the finding on an account's tool."""


class Engine:
    """Plugins, drivers and queue of this replica, whose processes run as `user` [default: ours]."""

    def __init__(
        self, provider: Provider, workspaces: Workspaces, settings: TerraformSettings, user: ChildUser | None
    ) -> None:
        self._provider, self._workspaces, self._settings, self._user = provider, workspaces, settings, user
        self._folder = Path(settings.folder or Path(tempfile.gettempdir()) / f"slipway-terraform-{os.getuid()}")
        policy = Policy(
            max_processes=max(Policy().max_processes, settings.runs_max),
            max_concurrency=max(Policy().max_concurrency, settings.runs_max),
        )
        scheduler = SharedScheduler if settings.shares else WorkspaceScheduler
        self._runner = PluginRunner(user=user)
        self._scheduler = scheduler(self._runner, policy)
        self._drivers: dict[str, Driver] = {}
        self._opening = asyncio.Lock()
        self._lock: int | None = None
        self._queue: RunQueue | None = None
        self._identities = Identities(workspaces.request_check)

    async def step(self) -> bool:
        """Do a step of the queue. Makes no folder before there is a workspace, since most services have none."""
        if self._queue is None:
            if not await self._workspaces.exist():
                return False
            try:
                holder = self._identify()
            except OSError as error:
                raise OutcomeUnknown(f"no run of terraform can begin: {error}") from error
            await self._release(holder)
            self._queue = RunQueue(holder, self._workspaces, self._settings, self._run, _visibility, self._list)
        return await self._queue.step()

    async def stop(self) -> None:
        """Interrupt all runs of the queue, and save their states."""
        if self._queue is not None:
            await self._queue.stop()

    async def aclose(self) -> None:
        """Stop plugins and runs, whose queue has stopped."""
        self._identities.close()
        for driver in self._drivers.values():
            await driver.aclose()
        await self._scheduler.aclose(DRAIN_SECONDS)
        if self._lock is not None:
            os.close(self._lock)

    async def identity(self, account: Account) -> str:
        """Identity of an account's credential, as its look-up module outputs it; the declared one if it outputs none.
        Raises OutcomeUnknown."""
        try:
            return await (await self._runs(account)).identity(account)
        except (LookUpFailed, NoCredential, TerraformError, OSError) as error:
            await self._check_tool(account)
            raise OutcomeUnknown(f"identity of {account.id}: {error}") from None

    async def tool_problem(self, account: Account) -> str:
        """Reason why the tool of an account cannot run; empty if it can."""
        tool = account_settings(account.settings).tool
        try:
            await self._driver(tool)
        except (ToolMissing, ToolUnsupported) as error:
            return str(error)
        # Its driver may have been opened before the tool was removed.
        return "" if os.access(tool, os.X_OK) else f"{tool} is missing, or not executable"

    async def _check_tool(self, account: Account) -> None:
        """Request a check of the account if its tool cannot run. Called after failures."""
        if await self.tool_problem(account):
            await self._workspaces.request_check(account, *TOOL)

    async def plan(self, account: Account, config: Mapping[str, Any], name: str) -> str:
        """Problem with the plan of a launch config; empty if there is none. Raises OutcomeUnknown."""
        try:
            return await (await self._runs(account)).plan(account, config, name, self._runner)
        except (LookUpFailed, NoCredential, TerraformError, OSError) as error:
            return str(error)

    async def _list(self, account: Account) -> tuple[list[Resource], float]:
        """Resources of an account, and the longest time until one is listed. Raises LookUpFailed."""
        try:
            found = await (await self._runs(account)).listed(account, f"listing-{new_id()}")
            return found, account_settings(account.settings).visibility_seconds
        except (NoCredential, TerraformError, OSError, msgspec.ValidationError) as error:
            raise LookUpFailed(str(error)) from error

    async def _run(self, claim: RunClaim) -> Ended:
        try:
            runs = await self._runs(claim.account)
        except (ToolMissing, ToolUnsupported) as error:
            await self._check_tool(claim.account)
            return Ended(Result(failure=str(error), nothing=True, resources=resources_of(claim.state)))
        except (TerraformError, OSError, msgspec.ValidationError) as error:
            return Ended(Result(failure=str(error), nothing=True, resources=resources_of(claim.state)))
        ended = await runs.run(claim)
        if ended.result.nothing:
            await self._check_tool(claim.account)
        return ended

    async def _runs(self, account: Account) -> Runs:
        """Runs of the account's tool. Raises TerraformError, OSError."""
        driver = await self._driver(account_settings(account.settings).tool)
        return Runs(self._provider, driver, self._empty(), self._identities)

    async def _driver(self, tool: str) -> Driver:
        async with self._opening:
            if tool not in self._drivers:
                driver = self._new_driver(tool)
                await driver.__aenter__()
                self._drivers[tool] = driver
            return self._drivers[tool]

    def _new_driver(self, tool: str) -> Driver:
        """Driver of a tool, in a folder with a short name, since sockets are in it."""
        self._make_folder()
        if tool not in (tools := self._tools()):
            tools.append(tool)
            _write(self._folder / TOOLS, json.dumps(tools))
        folder = self._folder / str(tools.index(tool))
        return Driver(
            DriverSettings(
                tool=Path(tool),
                folder=folder,
                max_runs=self._settings.runs_max,
                grace_seconds=INTERRUPT_SECONDS,
                codes=CODES,
                user=self._user,
            ),
            self._scheduler,
        )

    def _tools(self) -> list[str]:
        """Tools that have run in this folder; none if a power failure has cut off the list."""
        try:
            return msgspec.json.decode((self._folder / TOOLS).read_bytes(), type=list[str])
        except (FileNotFoundError, msgspec.DecodeError):
            return []

    def _identify(self) -> str:
        """Random id of the folder, stored in it: unique also among hosts of one name. The folder is locked from now on.
        An empty id, as after a power failure, would lock no workspace. Raises OSError."""
        path = self._folder / "id"
        self._make_folder()
        if self._lock is None:
            self._lock = _locked(self._folder)
        if not path.exists() or not UUID.fullmatch(path.read_text()):
            _write(path, new_id())
        return path.read_text()

    def _make_folder(self) -> None:
        """Folder of this replica. Raises PermissionError for one of another user, who could have any tool run by us."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not {self._folder.lstat().st_uid, self._folder.stat().st_uid} <= {0, os.getuid()}:
            raise PermissionError(
                f"{self._folder} belongs to another user; set SLIPWAY_TERRAFORM_FOLDER to another one"
            )
        if self._user is not None:
            self._folder.chmod(0o711)  # its processes pass through to their own folders

    def _empty(self) -> Path:
        """Folder of a module without resources, with which what is in a state is destroyed."""
        folder = self._folder / "empty"
        if not (folder / "main.tf").exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (folder / "main.tf").write_text("# No resources: what is in the state is destroyed.\n")
        return folder

    async def _release(self, holder: str) -> None:
        """Release the locks that a predecessor held in this folder. Its runs have ended: the folder is locked, and the
        guard of a killed process ends its runs at once."""
        for tool in self._tools():
            try:
                await self._driver(tool)
            except OperationInProgress as error:
                raise OutcomeUnknown(str(error)) from error
            except (TerraformError, OSError) as error:
                LOG.error("terraform cannot run", tool=tool, error=str(error))
        number = await self._workspaces.release(holder)
        if number:
            LOG.warning("runs of an earlier process were interrupted", workspaces=number)


def _locked(folder: Path) -> int:
    """Lock a folder; returns its file descriptor. Raises OSError, BlockingIOError if another process has the lock."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            reason = f"another process runs Terraform in {folder}; set SLIPWAY_TERRAFORM_FOLDER to another one"
            raise BlockingIOError(reason) from None
        raise
    return lock


def _write(path: Path, text: str) -> None:
    """Write a file at once: a kill or a power failure leaves it as it was."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _visibility(claim: RunClaim) -> float:
    return account_settings(claim.account.settings).visibility_seconds
