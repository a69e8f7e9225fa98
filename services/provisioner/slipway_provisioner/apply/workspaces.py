"""States of Terraform workspaces: saved by runs, exported and unlocked by people, encrypted with another key."""

from typing import Final

from slipway_api.http.provisioner.workers import WorkerWorkspace
from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply.reports import UnknownWorker
from slipway_provisioner.domain.encryption import KeyMissing, KeyRing, NotAuthentic
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.domain.workspaces import (
    ABANDONED,
    NEXT,
    Kind,
    NotAState,
    Phase,
    Version,
    Workspace,
    addresses_of,
    rejection,
    version_of,
)
from slipway_provisioner.store import accounts, workers, workspaces

VISIBILITY_SECONDS: Final = 30.0
"""Longest time until a new resource is found by its tags, for accounts that say nothing else."""
REENCRYPTED_AT_ONCE: Final = 100
"""Documents of one transaction: some 10 ms of encryption, and row locks that a run may wait for."""
REENCRYPTED_BYTES_MAX: Final = 8 * 2**20
"""Total size of these documents, since all of them are in memory: a state may have several megabytes."""
REJECTED_MAX: Final = 50
"""Rejected states of a workspace, since a run whose state is rejected each time is repeated without end."""


class NoWorkspace(LookupError):
    """The worker was not made by a module, or has not been called for; the text is its id."""


class NoState(LookupError):
    """The workspace has no state of the kind; the text is the id of the worker."""


async def of_worker(db: Connection, worker_id: str) -> Workspace:
    """Workspace of a worker. Raises UnknownWorker, NoWorkspace."""
    worker = await workers.get(db, worker_id)
    if worker is None:
        raise UnknownWorker(worker_id)
    if worker.batch_id is None:
        raise NoWorkspace(worker_id)
    found = await workspaces.of_worker(
        db, account_id=worker.account_id, batch_id=worker.batch_id, instance_id=worker.instance_id
    )
    if found is None:
        raise NoWorkspace(worker_id)
    return found


async def shown(db: Connection, worker: Worker, keys: KeyRing | None) -> WorkerWorkspace | None:
    """Workspace of a worker as shown with it, without the secrets of its state; None if it has none. Without `keys`,
    for callers who may not read states, nothing is decrypted and `resources` is None."""
    found = await workspaces.of_worker(
        db, account_id=worker.account_id, batch_id=worker.batch_id, instance_id=worker.instance_id
    )
    if found is None:
        return None
    state_problem, resources = "", None if keys is None else list[str]()
    try:
        if keys is not None:
            document = await workspaces.document(db, found.id, Kind.STATE, keys)
            resources = [] if document is None else addresses_of(document.content)
    except (KeyMissing, NotAuthentic, NotAState) as error:
        state_problem = str(error)
    return WorkerWorkspace(
        id=found.id,
        phase=found.phase,
        run=NEXT[found.phase] if found.holder else None,
        locked_until=found.locked_until,
        next_run_at=found.due_at,
        failed_runs=found.failed_runs,
        problem=found.problem,
        saved_at=await workspaces.saved_at(db, found.id),
        refreshed_at=found.refreshed_at,
        resources=resources,
        rejected_states=await workspaces.count(db, found.id, Kind.REJECTED),
        state_problem=state_problem,
    )


async def exported(
    tx: Connection, worker_id: str, keys: KeyRing, *, rejected: bool, by: str, reason: str
) -> tuple[bytes, int]:
    """State of a worker's workspace as Terraform reads it, or the newest rejected one, and how many rejected ones there
    are. The export is audited. Raises UnknownWorker, NoWorkspace, NoState, KeyMissing, NotAuthentic."""
    workspace = await of_worker(tx, worker_id)
    kind = Kind.REJECTED if rejected else Kind.STATE
    found = await workspaces.document(tx, workspace.id, kind, keys)
    if found is None:
        raise NoState(worker_id)
    serial = found.version.serial
    await audit.record_command(
        tx, AuditedKind.WORKER, worker_id, "state-exported", by=by, reason=reason, state=kind.value, serial=serial
    )
    return found.content, await workspaces.count(tx, workspace.id, Kind.REJECTED)


async def unlock(tx: Connection, worker_id: str, *, by: str, reason: str) -> tuple[Workspace, bool]:
    """Take the lock of a worker's workspace from its run, as a person asserts that the run has ended. What an apply may
    have created is looked up at once. Returns the workspace, and True if it was locked. Raises UnknownWorker,
    NoWorkspace."""
    workspace = await workspaces.lock(tx, (await of_worker(tx, worker_id)).id)
    if workspace is None:
        raise NoWorkspace(worker_id)
    if workspace.phase is not Phase.GONE:
        await unlock_row(tx, workspace)
    await audit.record_command(
        tx, AuditedKind.WORKER, worker_id, "unlocked", by=by, reason=reason, holder=workspace.holder
    )
    return await workspaces.lock(tx, workspace.id) or workspace, bool(workspace.holder)


async def unlock_row(tx: Connection, workspace: Workspace) -> None:
    """Take the lock of a workspace that is not gone from its run, which has ended. What that run created last may not
    be found at once. The row is locked."""
    phase = ABANDONED[workspace.phase] if workspace.holder else workspace.phase
    account = await accounts.find(tx, workspace.account_id)
    visibility = None if account is None else account.settings.get("visibility_seconds")
    await workspaces.unlock(
        tx, workspace.id, phase, effects_seconds=VISIBILITY_SECONDS if visibility is None else visibility
    )


async def save(
    tx: Connection, workspace: Workspace, state: bytes, base: Version, keys: KeyRing, *, reason: str = ""
) -> str:
    """Save the state of a run over the one that it began with. The row of the workspace is locked; the run is fenced
    by its caller, who gives the `reason` if it has lost the lock. Returns the reason for which the state was stored as
    a rejected one instead; empty if it was saved. Of many rejected ones the first and the newest are stored. Raises
    KeyMissing."""
    try:
        new = version_of(state)
    except NotAState as error:
        new, reason = Version("", 0), reason or f"it is no state that can be saved: {error}"
    stored = await workspaces.version(tx, workspace.id)
    reason = reason or rejection(stored, base, new)
    if reason:
        number = min(await workspaces.count(tx, workspace.id, Kind.REJECTED) + 1, REJECTED_MAX)
        await workspaces.put(tx, workspace.id, Kind.REJECTED, state, keys, version=new, number=number, reason=reason)
    else:
        await workspaces.put(tx, workspace.id, Kind.STATE, state, keys, version=new)
    return reason


async def reencrypt(
    tx: Connection, keys: KeyRing, after: workspaces.Place = workspaces.FIRST, *, by: str
) -> workspaces.Reencrypted:
    """Encrypt the chunk of documents after a place with the current key. Audited. Raises KeyMissing."""
    done = await workspaces.reencrypt(tx, keys, after, most=REENCRYPTED_AT_ONCE, bytes_max=REENCRYPTED_BYTES_MAX)
    if done.encrypted:
        await audit.record_command(
            tx,
            AuditedKind.DATABASE,
            "state-keys",
            "rotated",
            by=by,
            reason="",
            key=keys.current_id,
            encrypted=done.encrypted,
        )
    return done
