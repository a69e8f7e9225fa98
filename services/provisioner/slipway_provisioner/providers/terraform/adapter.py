"""Provider of workers that Terraform modules make: one workspace per worker, applied and destroyed by the replicas.

A create call queues rows and is accepted; polls, listings and look-ups by id read rows. Only runs reach the cloud. What
they need is an extra (`slipway-provisioner[terraform]`): a service without it starts, and refuses accounts of this
provider.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import msgspec

from slipway_api.events.worker import Outcome, Scope
from slipway_common.base.ids import new_id
from slipway_provisioner.domain.account_check import CheckState, Finding
from slipway_provisioner.domain.cloud import WITHOUT_ID, Account, Instance, InstanceState, Protected
from slipway_provisioner.domain.encryption import KeyMissing
from slipway_provisioner.domain.orphan_workspaces import OrphanWorkspace
from slipway_provisioner.domain.workspace_runs import STUCK_RUNS
from slipway_provisioner.domain.workspaces import Phase, Workspace
from slipway_provisioner.providers.port import (
    Accepted,
    CreateRequest,
    OutcomeUnknown,
    Provider,
    ProviderSettings,
    PutBack,
    Refused,
    TerminationRefused,
)
from slipway_provisioner.providers.terraform.settings import (
    account_problem,
    account_settings,
    credential_problem,
    launch_problem,
    launch_settings,
)
from slipway_provisioner.providers.workspaces import ListingPending, NoRoom, QueueFull, Room, Workspaces

if TYPE_CHECKING:
    from slipway_provisioner.providers.terraform.engine import Engine

MISSING: Final = "provider terraform needs an extra; install slipway-provisioner[terraform]"
NOT_OPENED: Final = "the provider is not open"
GRACE_SECONDS: Final = 60.0
"""Time after an apply's deadline in which its processes certainly end."""
QUEUED_PER_RUN: Final = 50
"""Workspaces that may wait for each run at a time: at a minute a run less than an hour."""
FULL_SECONDS: Final = 30.0
BY_HAND: Final = "delete its resources by hand: they have its id in the tag slipway-workspace"
ENDING: Final = frozenset({Phase.DESTROYING, Phase.ORPHAN})
PENDING: Final = frozenset({Phase.QUEUED, Phase.UNKNOWN})


class Terraform(Provider):
    """Provider of workers made by modules."""

    accepts_calls = True
    operator_settings = frozenset({"tool", "plugins", "modules_folder", "configuration"})

    def __init__(self, settings: ProviderSettings) -> None:
        self.settings = settings
        self._engine: Engine | None = None

    async def open(self) -> None:
        if is_installed() and self.settings.workspaces is not None:
            from slipway_provisioner.providers.terraform.engine import Engine

            self._engine = Engine(self, self.settings.workspaces, self.settings.terraform, self.settings.child_user)

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.aclose()
            self._engine = None

    async def work(self) -> bool:
        return self._engine is not None and await self._engine.step()

    async def stop(self) -> None:
        if self._engine is not None:
            await self._engine.stop()

    # Declarations

    def problem(self, account_settings: Mapping[str, Any], region: str) -> str:
        return account_problem(account_settings) if is_installed() else MISSING

    def credential_problem(self, credential: Mapping[str, Any]) -> str:
        return credential_problem(credential)

    def config_problem(self, account_settings: Mapping[str, Any], config_settings: Mapping[str, Any]) -> str:
        return launch_problem(account_settings, config_settings)

    async def preview(self, account: Account, config: Mapping[str, Any]) -> str:
        return await self._opened().plan(account, config, f"plan-{new_id()}")

    def honours_tokens(self, account: Account) -> bool:
        return True  # a batch has its workspaces once

    def image_key(self, account: Account, config: Mapping[str, Any]) -> str:
        return f"{account.provider}/{launch_settings(config['settings']).digest}/{config['image']}"

    def units_max(self, account: Account) -> int:
        return 1  # so that each worker has an outcome of its own

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        return ""

    # Launches

    async def create(self, account: Account, request: CreateRequest) -> Accepted:
        try:
            launch, own = launch_settings(request.config["settings"]), account_settings(account.settings)
        except msgspec.ValidationError as error:
            raise Refused(self.failure(account, request.config, "InvalidSettings", Scope.CONFIG), str(error)) from None
        inputs = {
            "config": {name: value for name, value in request.config.items() if name != "user_data"},
            "batch_id": request.batch_id,
            "incarnation": request.incarnation,
            "user_data": request.user_data,
            "effects_seconds": launch.apply_seconds + GRACE_SECONDS + own.visibility_seconds,
        }
        queue_max = QUEUED_PER_RUN * self.settings.terraform.runs_max
        room = Room(workspaces_max=own.workspaces_max, queue_max=queue_max)
        try:
            await self._workspaces().add(account, request.batch_id, [inputs] * request.count, room)
        except NoRoom as error:
            outcome = self.failure(account, request.config, "InsufficientCapacity", Scope.CAPACITY)
            raise Refused(outcome, str(error)) from None
        except QueueFull as error:
            outcome = self.failure(account, request.config, "QueueFull", Scope.LIMITER)
            raise Refused(outcome, str(error), retry_after_seconds=FULL_SECONDS) from None
        except KeyMissing as error:
            raise OutcomeUnknown(str(error)) from None
        return Accepted(request.batch_id)

    async def poll(self, account: Account, request: CreateRequest, handle: str) -> Sequence[str] | None:
        rows = [] if handle != request.batch_id else await self._workspaces().of_batch(account, handle)
        if not rows:
            raise OutcomeUnknown(f"no workspace belongs to the call {handle[:40]!r}")
        if any(row.phase in PENDING for row in rows):
            return None
        if made := [row.instance_id for row in rows if row.instance_id is not None]:
            return made
        first = next((row for row in rows if row.outcome), None)
        if first is None or first.outcome is None or "put_back" in first.outcome:
            raise PutBack(rows[0].problem or "nothing was applied")
        raise Refused(msgspec.convert(first.outcome, Outcome), first.problem, concludes=True)

    # Instances

    async def pages(self, account: Account, *, batch_id: str | None = None) -> AsyncIterator[Sequence[Instance]]:
        if batch_id is not None:
            rows = await self._workspaces().live(account, batch_id)
            if any(row.phase in PENDING for row in rows):
                raise OutcomeUnknown(f"workspaces of the call {batch_id} are not resolved yet", throttled=True)
            yield [_instance(row) for row in rows if row.instance_id is not None]
            return
        found = {(instance := _left(orphan)).id: instance for orphan in await self._orphans(account)}
        rows = await self._workspaces().live(account, None)
        listed = [row for row in rows if row.instance_id is not None or row.phase is Phase.ORPHAN or _is_stuck(row)]
        yield [*({_instance(row).id: _instance(row) for row in listed} | found).values()]

    async def exists(self, account: Account, instance_id: str, *, launched_at: datetime | None) -> bool:
        return bool(await self._workspaces().of_instances(account, [instance_id]))

    async def gone(self, account: Account, instances: Mapping[str, datetime | None]) -> list[str]:
        live = {row.instance_id for row in await self._workspaces().of_instances(account, [*instances])}
        return [id_ for id_ in instances if id_ not in live]

    async def terminate(self, account: Account, instance_ids: Sequence[str]) -> None:
        rows = list(await self._workspaces().destroy(account, instance_ids))
        refused: dict[str, Protected] = {}
        found: dict[str, OrphanWorkspace] = {}
        if any(id_.startswith(WITHOUT_ID) for id_ in instance_ids):
            found = {_left(orphan).id: orphan for orphan in await self._orphans(account)}
            rows += [row for row in await self._workspaces().live(account, None) if _instance(row).id in instance_ids]
            refused = await self._reclaim(account, [found[id_] for id_ in instance_ids if id_ in found])
        stuck = {_instance(row).id: row for row in rows if _is_stuck(row)}
        if refused := refused | {id_: _protected(row, found.get(id_)) for id_, row in stuck.items()}:
            raise TerminationRefused(refused)

    async def _orphans(self, account: Account) -> Sequence[OrphanWorkspace]:
        visibility = account_settings(account.settings).visibility_seconds
        try:
            return await self._workspaces().listings.orphans(account, visibility_seconds=visibility)
        except ListingPending as error:
            raise OutcomeUnknown(f"{account.id}: {error}", throttled=True) from None

    async def _reclaim(self, account: Account, found: Sequence[OrphanWorkspace]) -> dict[str, Protected]:
        """Have orphans destroyed; returns those that only a person can destroy."""
        try:
            reasons = await self._workspaces().listings.reclaim(account, found)
        except KeyMissing as error:
            raise OutcomeUnknown(str(error)) from None
        return {
            _left(orphan).id: Protected(f"{reasons[orphan.id]}; {orphan.note}", BY_HAND)
            for orphan in found
            if orphan.id in reasons
        }

    # Accounts

    async def identity(self, account: Account) -> str:
        try:
            async with asyncio.timeout(self.settings.timeout(account)):
                return await self._opened().identity(account)
        except TimeoutError:
            raise OutcomeUnknown(f"the identity of {account.id} is still looked up", throttled=True) from None

    async def check(self, account: Account, configs: Sequence[Mapping[str, Any]]) -> Sequence[Finding]:
        if not (problem := await self._opened().tool_problem(account)):
            return await super().check(account, configs)
        remedy = "install it on the host of each provisioner, or correct `tool` of the account in slipway.yaml"
        unknown = "the look-up needs the tool"
        return [
            Finding(kind="setting", subject="tool", state=CheckState.PROBLEM, message=problem, remedy=remedy),
            Finding(kind="identity", state=CheckState.UNKNOWN, message=unknown),
        ]

    def _workspaces(self) -> Workspaces:
        if self.settings.workspaces is None:
            raise OutcomeUnknown(NOT_OPENED)
        return self.settings.workspaces

    def _opened(self) -> "Engine":
        if self._engine is None:
            raise OutcomeUnknown(NOT_OPENED if is_installed() else MISSING)
        if problem := self._workspaces().problem:
            raise OutcomeUnknown(problem)
        return self._engine


def is_installed() -> bool:
    """True if the extra is installed."""
    return find_spec("slipway_terraform") is not None and find_spec("cryptography") is not None


def _is_stuck(row: Workspace) -> bool:
    """True if only a person can free what a workspace holds."""
    return row.phase in ENDING and row.failed_runs >= STUCK_RUNS


def _instance(row: Workspace) -> Instance:
    assert row.created_at is not None
    return Instance(
        id=row.instance_id or f"{WITHOUT_ID}{row.id}",
        batch_id=row.batch_id,
        launch_config_id=row.launch_config_id,
        created_at=row.created_at,
        state=InstanceState.RUNNING if row.phase is Phase.READY else InstanceState.STOPPING,
    )


def _left(orphan: OrphanWorkspace) -> Instance:
    return Instance(
        id=f"{WITHOUT_ID}{orphan.id}",
        batch_id=orphan.batch_id,
        launch_config_id=orphan.launch_config_id,
        created_at=orphan.listed_at,
        state=InstanceState.RUNNING,
        note=orphan.note,
    )


def _protected(row: Workspace, orphan: OrphanWorkspace | None) -> Protected:
    reason = f"terraform destroy has failed {row.failed_runs} times: {row.problem}"
    if row.phase is Phase.ORPHAN:
        return Protected(f"{reason}; {orphan.note}" if orphan else reason, BY_HAND)
    return Protected(
        reason, "slipway worker unlock WORKER  # once the cause is removed; else it is retried every 10 min"
    )
