"""Workspaces of replicas that run Terraform: queued, claimed under a fenced lock, and saved after every run.

Lock order: config, pool and guard (shared, of a start), workspace, document.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection, Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner.apply import workspaces as states
from slipway_provisioner.apply.workspace_listings import AccountListings
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.encryption import KeyMissing, KeyRing, NotAuthentic
from slipway_provisioner.domain.workspace_locks import LapsedLocks
from slipway_provisioner.domain.workspace_runs import Next, after_rejection, operation_of
from slipway_provisioner.domain.workspaces import (
    Kind,
    Operation,
    Phase,
    Workspace,
    empty_state,
    version_of,
)
from slipway_provisioner.providers.workspaces import NoRoom, QueueFull, Room, RunClaim
from slipway_provisioner.store import account_checks, accounts, configs, pools, workspace_runs, workspaces

LOG = logger(__name__)
LOCK_SECONDS: Final = 60.0
"""Time for which a lock is held after its last renewal, three times the interval of renewals."""
TAKEN: Final = "another worker has the instance id that the module outputs; output an id that is unique to each worker"
NOT_STARTABLE: Final = "launching was stopped or paused before the apply began"


class WorkspaceRuns:
    """Workspaces in the database."""

    def __init__(
        self,
        database: Callable[[], Database],
        keys: KeyRing,
        *,
        clock: Callable[[], float] = monotonic_seconds,
        resolve: Callable[[Account], Account] = lambda account: account,
    ) -> None:
        """`resolve` gives an account its operator's settings, and raises ValueError if there are none."""
        self._database = database
        self._keys = keys
        self._clock = clock
        self._lapsed = LapsedLocks()
        self._resolve = resolve
        self.listings = AccountListings(database, keys, resolve)

    @property
    def problem(self) -> str:
        return "" if self._keys.ids else str(KeyMissing(""))

    async def add(self, account: Account, batch_id: str, inputs: Sequence[Mapping[str, Any]], room: Room) -> None:
        async with self._database().acquire() as db, db.transaction():
            await workspace_runs.lock_room(db, account.id)
            if await self._of_batch(db, account, batch_id):
                return
            number = await workspace_runs.live_number(db, account.id)
            free = len(inputs) if room.workspaces_max is None else room.workspaces_max - number
            if free <= 0:
                raise NoRoom(f"{number} of {room.workspaces_max} workspaces (workspaces_max) exist")
            waiting = await workspace_runs.waiting_number(db)
            if waiting >= room.queue_max:
                raise QueueFull(f"{waiting} workspaces wait for a run")
            now = await pools.now(db)
            for ordinal, given in enumerate(inputs[:free], 1):
                row = Workspace(
                    id=new_id(),
                    deployment=account.deployment,
                    incarnation=given["incarnation"],
                    account_id=account.id,
                    batch_id=batch_id,
                    ordinal=ordinal,
                    launch_config_id=given["config"]["id"],
                    phase=Phase.QUEUED,
                    effects_seconds=given["effects_seconds"],
                    due_at=now,
                )
                await workspaces.insert(db, [row])
                first = empty_state(row.id)
                await workspaces.put(db, row.id, Kind.STATE, first, self._keys, version=version_of(first))
                await workspaces.put(db, row.id, Kind.INPUTS, msgspec.json.encode(given), self._keys)

    async def of_batch(self, account: Account, batch_id: str) -> Sequence[Workspace]:
        async with self._database().acquire() as db:
            return await self._of_batch(db, account, batch_id)

    async def live(self, account: Account, batch_id: str | None) -> Sequence[Workspace]:
        async with self._database().acquire() as db:
            return await workspace_runs.live(
                db, account_id=account.id, deployment=account.deployment, batch_id=batch_id
            )

    async def of_instances(self, account: Account, instance_ids: Sequence[str]) -> Sequence[Workspace]:
        async with self._database().acquire() as db:
            return await workspace_runs.named(
                db, account_id=account.id, deployment=account.deployment, instance_ids=instance_ids
            )

    async def destroy(self, account: Account, instance_ids: Sequence[str]) -> Sequence[Workspace]:
        async with self._database().acquire() as db, db.transaction():
            return await workspace_runs.destroy(
                db, account_id=account.id, deployment=account.deployment, instance_ids=instance_ids
            )

    async def refresh_unresponsive(self, after_seconds: float) -> int:
        async with self._database().acquire() as db:
            return await workspace_runs.refresh_unresponsive(db, after_seconds)

    async def refresh_oldest(self, age_seconds: float) -> bool:
        async with self._database().acquire() as db:
            return await workspace_runs.refresh_oldest(db, age_seconds)

    async def claim(self, holder: str, most: int) -> Sequence[RunClaim]:
        async with self._database().acquire() as db:
            observed = self._lapsed.observe(
                await workspace_runs.lapsed(db, lock_seconds=LOCK_SECONDS), at=self._clock()
            )
            if most <= 0:
                return []
            async with db.transaction():
                found = await workspace_runs.claim(db, holder, lock_seconds=LOCK_SECONDS, most=most, take_over=observed)
            claims, problems = [], []
            for row, unsettled in found:
                try:
                    claim = await self._begun(db, row, unsettled)
                except Exception as error:  # such as a lock timeout; the others have begun and are run
                    LOG.error(
                        "beginning a claimed workspace failed; its lock lapses", workspace=row.id, error=repr(error)
                    )
                    problems.append(error)
                else:
                    claims += [claim] if claim is not None else []
            if problems and not claims:
                raise problems[0]
            return claims

    async def renew(self, claims: Sequence[RunClaim]) -> Sequence[str]:
        fences = [(claim.workspace.id, claim.workspace.fence) for claim in claims]
        async with self._database().acquire() as db:
            held = await workspace_runs.renew(db, fences, lock_seconds=LOCK_SECONDS)
        return [id_ for id_, _ in fences if id_ not in held]

    async def finish(self, claim: RunClaim, state: bytes | None, next_: Next) -> str:
        workspace = claim.workspace
        async with self._database().acquire() as db, db.transaction():
            row = await workspaces.lock(db, workspace.id)
            if row is None:
                return "its workspace no longer exists"
            lost = "" if row.fence == workspace.fence and row.holder else "its run had lost the lock"
            rejected = lost
            if state is not None:
                rejected = await states.save(db, row, state, claim.version, self._keys, reason=lost)
            if lost:
                return lost
            if rejected:
                next_ = after_rejection(row, claim.operation, rejected)
            elif row.phase is not workspace.phase and next_.phase is not Phase.GONE:  # asked for during a refresh
                next_ = msgspec.structs.replace(next_, phase=row.phase, due_seconds=0.0, failed_runs=row.failed_runs)
            if next_.phase is Phase.READY and await self._is_taken(db, workspace, next_.instance_id):
                next_ = Next(phase=Phase.DESTROYING, due_seconds=0.0, problem=TAKEN, outcome=_taken(workspace))
            now = await pools.now(db)
            refreshed = claim.operation is Operation.REFRESH and not next_.problem
            await workspace_runs.finish(db, workspace.id, next_, refreshed_at=now if refreshed else None)
            if next_.phase is Phase.GONE:
                await workspaces.drop(db, workspace.id, Kind.INPUTS)
        return rejected

    async def request_check(self, account: Account, kind: str, subject: str = "") -> None:
        async with self._database().acquire() as db:
            await account_checks.make_due(db, account.id, kind, subject)

    async def exist(self) -> bool:
        async with self._database().acquire() as db:
            return await workspace_runs.exist(db)

    async def release(self, holder: str) -> int:
        async with self._database().acquire() as db, db.transaction():
            ids = await workspace_runs.held(db, holder)
            for workspace_id in ids:
                row = await workspaces.lock(db, workspace_id)
                assert row is not None
                await states.unlock_row(db, row)
        return len(ids)

    async def _begun(self, db: Connection, row: Workspace, unsettled: float) -> RunClaim | None:
        """Claim of a locked workspace with its documents; None if its launch may not start now, and was put back."""
        account = await accounts.get(db, row.account_id)
        operation = operation_of(row)
        claim = RunClaim(workspace=row, operation=operation, account=account, unsettled_seconds=unsettled)
        try:
            claim = msgspec.structs.replace(claim, account=self._resolve(account))
        except ValueError as error:
            return msgspec.structs.replace(claim, problem=str(error))
        try:
            state = await workspaces.document(db, row.id, Kind.STATE, self._keys)
            given = await workspaces.document(db, row.id, Kind.INPUTS, self._keys)
        except (KeyMissing, NotAuthentic) as error:
            return msgspec.structs.replace(claim, problem=str(error))
        if state is None:
            return msgspec.structs.replace(claim, problem="its state is missing; restore it from a backup")
        inputs = None if given is None else msgspec.json.decode(given.content)
        if inputs is None:
            return msgspec.structs.replace(claim, problem="the inputs of its launch are missing; restore them")
        began_at = monotonic_seconds()
        if operation is Operation.APPLY:
            async with db.transaction():
                may_start = await configs.startable(db, row.launch_config_id) is not None
                held = await workspaces.lock(db, row.id)
                if held is None or held.fence != row.fence:
                    return None  # another replica has claimed it since, as while this process was suspended
                if not may_start:
                    put_back = Next(phase=Phase.GONE, problem=NOT_STARTABLE, put_back=True)
                    if _has_resources(state.content):
                        put_back = msgspec.structs.replace(put_back, phase=Phase.DESTROYING, due_seconds=0.0)
                    await workspace_runs.finish(db, row.id, put_back, refreshed_at=None)
                    if put_back.phase is Phase.GONE:
                        await workspaces.drop(db, row.id, Kind.INPUTS)
                    return None
                await workspace_runs.begin(db, row.id)
        return msgspec.structs.replace(
            claim, inputs=inputs, state=state.content, version=state.version, began_at=began_at
        )

    async def _is_taken(self, tx: Connection, workspace: Workspace, instance_id: str | None) -> bool:
        """True if another workspace of the account has this instance, as by a module whose output is a constant."""
        ids = [instance_id] if instance_id is not None else []
        named = await workspace_runs.named(
            tx, account_id=workspace.account_id, deployment=workspace.deployment, instance_ids=ids
        )
        return any(row.id != workspace.id for row in named)

    async def _of_batch(self, db: Connection, account: Account, batch_id: str) -> list[Workspace]:
        return await workspace_runs.of_batch(
            db, account_id=account.id, deployment=account.deployment, batch_id=batch_id
        )


def _taken(workspace: Workspace) -> Outcome:
    return Outcome(Stage.LAUNCH, Result.FAILED, Scope.CONFIG, workspace.launch_config_id, "InstanceIdInUse")


def _has_resources(state: bytes) -> bool:
    return bool(msgspec.json.decode(state).get("resources"))
