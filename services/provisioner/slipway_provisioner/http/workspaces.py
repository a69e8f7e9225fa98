"""Routes for people: states of Terraform workspaces, their locks, and the keys of the states."""

from typing import Annotated, Final

import msgspec
from fastapi import Depends, Request

from slipway_api.http.pages import Items
from slipway_api.http.provisioner.workspaces import (
    AfterDocument,
    DocumentPlace,
    ExportedState,
    KeyRotation,
    RotatedKeys,
    StateExport,
    StateKey,
    UnauthenticDocument,
    UnlockedWorkspace,
    WorkspaceUnlock,
)
from slipway_common.database.postgres import Database
from slipway_common.web.access import READ, Needs, NeedsOwner
from slipway_common.web.answers import Answer
from slipway_common.web.bodies import Body
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name
from slipway_provisioner.apply import workspaces as apply
from slipway_provisioner.apply.reports import UnknownWorker
from slipway_provisioner.domain.encryption import KeyMissing, KeyRing, NotAuthentic
from slipway_provisioner.domain.recovery import UUID
from slipway_provisioner.store import workspaces

router = Router(tags=["workspaces"])
DatabaseDep = Annotated[Database, Depends(database)]
Caller = Annotated[str, Depends(NeedsOwner("workers:state", "worker", "worker_id"))]
# Status, slug and title of each refusal, and its detail for the text of the exception.
REFUSALS: Final[dict[type[Exception], tuple[int, str, str, str]]] = {
    UnknownWorker: (
        404,
        "unknown-worker",
        "No such worker",
        "no worker {!r}; see `slipway worker ls`. Stopped workers are deleted after 14 days",
    ),
    apply.NoWorkspace: (
        409,
        "no-workspace",
        "The worker has no workspace",
        "worker {} was not made by a Terraform module, or its launch has not begun",
    ),
    apply.NoState: (
        409,
        "no-state",
        "There is no such state",
        "worker {} has no such state; `slipway worker show` has the number of rejected ones",
    ),
    KeyMissing: (409, "state-key-missing", "The key of the state is missing", "{}. Nothing was changed"),
    NotAuthentic: (
        500,
        "state-not-authentic",
        "The stored state was changed",
        "{}; restore its row of workspace_document from a backup",
    ),
}


@router.post("/workers/{worker_id:id}/state")
async def export_state(
    worker_id: Name, body: Body[StateExport], request: Request, by: Caller, db: DatabaseDep
) -> Answer[ExportedState]:
    """Export the Terraform state of a worker's workspace, as text. It contains secrets. The export is audited."""
    try:
        async with db.acquire() as connection, connection.transaction():
            state, rejected = await apply.exported(
                connection, _uuid(worker_id), _keys(request), rejected=body.rejected, by=by, reason=body.reason
            )
    except tuple(REFUSALS) as error:
        raise _refused(error) from error
    return Answer(ExportedState(state=state.decode(), rejected=rejected))


@router.post("/workers/{worker_id:id}/unlock")
async def unlock(
    worker_id: Name, body: Body[WorkspaceUnlock], request: Request, by: Caller, db: DatabaseDep
) -> Answer[UnlockedWorkspace]:
    """Unlock the workspace of a worker. The caller asserts that its run has ended; what it created is looked up.
    Without a run, the next one is due now."""
    try:
        async with db.acquire() as connection, connection.transaction():
            unlocked, was_locked = await apply.unlock(connection, _uuid(worker_id), by=by, reason=body.reason)
    except tuple(REFUSALS) as error:
        raise _refused(error) from error
    wake(request)
    return Answer(UnlockedWorkspace(**msgspec.structs.asdict(unlocked), was_locked=was_locked))


@router.get("/state-keys", dependencies=[READ])
async def list_keys(request: Request, db: DatabaseDep) -> Answer[Items[StateKey]]:
    """List the keys of states by id, with the number of documents encrypted with each. The first one encrypts new
    documents; an unavailable one is not among the keys of this service, but documents are encrypted with it."""
    ids = _keys(request).ids
    encrypts = next(iter(ids), "")
    async with db.acquire() as connection:
        documents = await workspaces.encrypted_with(connection)
    others = sorted(documents.keys() - {*ids})
    items = [
        StateKey(id=id_, documents=documents.get(id_, 0), available=id_ in ids, encrypts=id_ == encrypts)
        for id_ in (*ids, *others)
    ]
    return Answer(Items(items=items))


@router.post("/state-keys/rotate")
async def rotate(
    request: Request,
    by: Annotated[str, Depends(Needs("state-keys:write"))],
    db: DatabaseDep,
    body: Body[KeyRotation],
) -> Answer[RotatedKeys]:
    """Encrypt a chunk of documents with the current key. `after` is for the next request; it is null after the last
    chunk. `not_authentic` are documents of the chunk that no key decrypts any more, and which stay as they are. `left`
    counts those with another available key, `unavailable` those whose key is unavailable."""
    keys = _keys(request)
    try:
        async with db.acquire() as connection, connection.transaction():
            done = await apply.reencrypt(connection, keys, _place(body.after), by=by)
            documents = await workspaces.encrypted_with(connection)
            named = await workspaces.workers_of(connection, [place.workspace_id for place in done.not_authentic])
    except tuple(REFUSALS) as error:
        raise _refused(error) from error
    available = {id_: number for id_, number in documents.items() if id_ in keys.ids}
    return Answer(
        RotatedKeys(
            encrypted=done.encrypted,
            not_authentic=[
                UnauthenticDocument(**msgspec.structs.asdict(place), worker_id=named.get(place.workspace_id))
                for place in done.not_authentic
            ],
            after=None if done.after is None else DocumentPlace(**msgspec.structs.asdict(done.after)),
            left=sum(available.values()) - available.get(keys.current_id, 0),
            unavailable=sum(documents.values()) - sum(available.values()),
        )
    )


def _place(after: AfterDocument | None) -> workspaces.Place:
    """Place after which documents are encrypted."""
    return workspaces.FIRST if after is None else workspaces.Place(str(after.workspace_id), after.kind, after.number)


def _keys(request: Request) -> KeyRing:
    keys: KeyRing = request.app.state.settings.state_key_ring()
    return keys


def _uuid(worker_id: str) -> str:
    if not UUID.fullmatch(worker_id):
        raise UnknownWorker(worker_id)
    return worker_id


def _refused(error: Exception) -> Problem:
    status, slug, title, detail = REFUSALS[type(error)]
    return Problem(status, slug, title, detail.format(str(error)))
