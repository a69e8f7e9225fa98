"""Routes of the declaration: the whole of it, and single worker pools with their history."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Depends, Query, Request
from msgspec import UNSET
from pydantic import BaseModel, ConfigDict, Field

from slipway_api.http.pages import Page
from slipway_api.http.provisioner.declaration import (
    DeclarationResult,
    ExportedDeclaration,
    PoolRevision,
    RevisionInForce,
    RollbackPreview,
    RollbackRequest,
)
from slipway_api.http.provisioner.pools import PoolDetails
from slipway_common.database.places import NEWEST, Newest
from slipway_common.database.postgres import Database
from slipway_common.declaration.changes import CHANGES_MAX, ForeignOwner, listed_dangers
from slipway_common.declaration.models import Declaration, WorkerPool
from slipway_common.declaration.parsing import parse_owner
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid
from slipway_common.web import openapi, pages
from slipway_common.web.access import READ, READ_SETTINGS, Caller, NeedsCaller, Reader
from slipway_common.web.answers import Answer, Tagged
from slipway_common.web.bodies import Body
from slipway_common.web.declaring import changed_meanwhile, refusing
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name, NameOrEmpty, ReasonOrEmpty
from slipway_provisioner.apply import declaration, rollback
from slipway_provisioner.apply.declaration import PreconditionFailed
from slipway_provisioner.apply.previews import preview
from slipway_provisioner.apply.reading import SECTIONS, Declared, DeclaredReader
from slipway_provisioner.apply.rollback import NothingToRollBack, TargetTripped
from slipway_provisioner.domain import declaration as domain
from slipway_provisioner.domain.deadlines import DefaultDeadlines
from slipway_provisioner.domain.declaration import Applied, DeclarationRefused
from slipway_provisioner.domain.limits import Tariff
from slipway_provisioner.domain.roll_out import Strategy
from slipway_provisioner.domain.rollback import Rollback
from slipway_provisioner.http.pools import check_pool, no_pool
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import declarations, history, summaries
from slipway_provisioner.store.declarations import ChangedMeanwhile

router = Router(tags=["declaration"])
DatabaseDep = Annotated[Database, Depends(database)]
SCOPE: Final = "declaration:write"
Declarer = Annotated[Caller, Depends(NeedsCaller(SCOPE, f"{SCOPE}:{{owner}}"))]
BODY_BYTES_MAX: Final = 128_000_000
"""Size of a declaration. In lines, only what changes is kept in memory."""
LINE_BYTES_MAX: Final = 20_000_000
ONLY_POOL: Final = "worker_pools[0]"
LINES: Final = "application/x-ndjson"
LINES_PER_TURN: Final = 5
"""Lines that are read before other tasks of this process get their turn."""


class RollOut(BaseModel):
    """Query parameters of a change: how it is confirmed, and how revisions are replaced."""

    model_config = ConfigDict(frozen=True)

    confirm: NameOrEmpty = ""
    replace: Strategy = "natural"
    drain_seconds: float | None = Field(None, gt=0, le=31_536_000)
    terminate: bool = False
    dry_run: bool = False
    adopt: bool = False

    def request(self, caller: Caller, **more: Any) -> domain.Request:
        return domain.Request(
            by=caller.name,
            owners=caller.owners(SCOPE),
            dry_run=self.dry_run,
            adopt=self.adopt,
            confirm=self.confirm,
            strategy=self.replace,
            drain_seconds=self.drain_seconds,
            terminate=self.terminate or self.replace == "now",
            **more,
        )


class Edit(BaseModel):
    """Query parameters of a change of one pool: the command that makes it, and its reason, for history and audit."""

    model_config = ConfigDict(frozen=True)

    action: Literal["put", "set", "set-image"] = "put"
    reason: ReasonOrEmpty = ""


NOTHING: Final = msgspec.Raw()
DECLARATION_BODY: Final = openapi.body(
    "A declaration, or lines of it.", json=openapi.model_schema(Declaration), lines={"type": "string"}
)
POOL_BODY: Final = openapi.body("A worker pool as in slipway.yaml.", json=openapi.model_schema(WorkerPool)) | {
    "parameters": [
        openapi.header("If-Match", "ETag that the pool must have."),
        openapi.header("If-None-Match", "* for a new pool."),
    ]
}


class _Whole(msgspec.Struct, forbid_unknown_fields=True):
    """A declaration as one JSON value; its entries are decoded one by one."""

    version: int
    metadata: dict[str, Any] = {}
    lease_pools: list[msgspec.Raw] | None = None
    accounts: list[msgspec.Raw] | None = None
    worker_pools: list[msgspec.Raw] | None = None


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """First line of a document, which has a version, or one entry of it."""

    version: int | None = None
    metadata: dict[str, Any] = {}
    sections: list[Literal["lease_pools", "accounts", "worker_pools"]] = []
    account: msgspec.Raw = NOTHING
    worker_pool: msgspec.Raw = NOTHING
    lease_pool: msgspec.Raw = NOTHING


_WHOLE: Final = msgspec.json.Decoder(_Whole)
_LINE: Final = msgspec.json.Decoder(_Line)


@router.put("/declaration", openapi_extra=DECLARATION_BODY)
async def put_declaration(
    request: Request, caller: Declarer, db: DatabaseDep, how: Annotated[RollOut, Depends()], prune: bool = False
) -> Answer[DeclarationResult]:
    """Apply a declaration, or list its changes for `dry_run`. Atomic and idempotent.

    The body is one declaration as JSON, or application/x-ndjson: a line `{"version": 1, "metadata": {"owner": …},
    "sections": ["accounts", "worker_pools"]}` begins the document of an owner; lines with `{"account": …}` and
    `{"worker_pool": …}` follow. What an owner declared before in one of its sections and leaves out is removed, with
    `prune` also what nobody in this request declares. `adopt` takes over what belongs to another owner.

    Answers `items` (the changes: kind, id, result, detail; result is created, updated, reactivated or archived), of
    which up to 10,000 are listed and `more` counted, `unchanged` (the number of entries stored alike), `digest` (of all
    changes), `dangers`, `costs` (what an hour of each changed pool may cost: pool, mode, cost, unknown, text; of pools
    whose machines cost money), `unpriced` (pool, kinds, text: launches that would be refused, since spend is limited
    and no price is known) and `applied`, for `dry_run` also `previews` (config, problem) of new launch configs whose
    providers plan them, within 20 s. Dangerous changes are refused with 409 `confirmation-required` unless `confirm` is
    their digest.
    """
    with _refusing():
        asked = how.request(caller, prune=prune)
        declared = await _read(request, db, asked)
        _check_owners(declared, asked)
        async with db.acquire() as connection:
            applied = await declaration.apply(
                connection, declared, asked, request.app.state.providers, *_terms(request)
            )
    # Without a connection: a preview takes seconds.
    found = await preview(applied.launches, request.app.state.providers)
    return Answer(_result(request, applied, previews=found))


@router.get("/declaration", dependencies=[READ_SETTINGS])
async def get_declaration(
    db: DatabaseDep,
    owner: NameOrEmpty | None = None,
    section: Annotated[str | None, Query(pattern="^(accounts|worker_pools)$")] = None,
) -> Answer[ExportedDeclaration]:
    """Export what is declared, as of one moment, or that of one owner or section: `accounts` and `worker_pools`, each a
    list of `{"owner": …, "spec": …}`."""
    found: dict[str, list[str]] = {name: [] for name in ("accounts", "worker_pools") if section in (None, name)}
    # Read as a whole before it is sent, since a slow reader would keep the transaction open.
    async with db.acquire() as connection, contextlib.aclosing(declarations.specs(connection, found, owner)) as pages:
        async for name, entries in pages:
            found[name].append(",".join(entries))
    stored: dict[str, Any] = {name: msgspec.Raw(f"[{','.join(texts)}]") for name, texts in found.items()}
    return Answer(ExportedDeclaration(**stored))


@router.get("/pools/{pool_id:id}")
async def get_pool(pool_id: Name, reader: Reader, db: DatabaseDep) -> Tagged[PoolDetails]:
    """Show a pool with what was declared (`declared`, which is null unless the token has the scope read:settings, and
    `owner`). The ETag is the digest of it."""
    found = await summaries.pools(db, pool_id)
    stored = await declarations.declared_pool(db, pool_id)
    if not found or stored is None:
        raise no_pool(pool_id)
    spec = stored["spec"] if reader.may("read:settings") else None
    details = PoolDetails(**msgspec.structs.asdict(found[0]), declared=spec, owner=stored["owner"])
    return Tagged(details, stored["spec_digest"])


@router.put("/pools/{pool_id:id}", openapi_extra=POOL_BODY)
async def put_pool(
    pool_id: Name,
    request: Request,
    caller: Declarer,
    db: DatabaseDep,
    how: Annotated[RollOut, Depends()],
    edit: Annotated[Edit, Depends()],
    owner: Annotated[str | None, Query(pattern="^[!-~]{0,200}$")] = None,
) -> Tagged[DeclarationResult]:
    """Declare one worker pool, and nothing else. Keeps its owner unless `owner` is given; a new pool has none.

    `If-Match: "DIGEST"` refuses with 412 unless the stored pool has this ETag, `If-None-Match: *` if there is one.
    Answers like PUT /declaration, with the new ETag.
    """
    with _refusing():
        body = await request.body()
        index = await declarations.index(db, [pool_id])
        stored = index.pools.get(pool_id)
        reader = _reader(request, index, how.request(caller))
        reader.document(owner if owner is not None else stored.owner if stored is not None else "", ())
        with _without_places():
            reader.entry("worker_pools", body)
            declared = reader.finished()
        if pool_id not in declared.owners("worker_pools").entries:
            raise Invalid([DocumentProblem("id", f"must be {pool_id!r}, as in the path")])
        _check_owners(declared, how.request(caller))
        if_match = _expected(request.headers, stored)
        asked = how.request(caller, if_match=if_match, **edit.model_dump())
        async with db.acquire() as connection:
            applied = await declaration.apply(
                connection, declared, asked, request.app.state.providers, *_terms(request)
            )
    given = declared.pools.get(pool_id)
    digest = given.digest if given is not None else index.pools[pool_id].digest
    return Tagged(_result(request, applied), digest)


@router.get("/pools/{pool_id:id}/history")
async def get_history(
    pool_id: Name,
    reader: Reader,
    db: DatabaseDep,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
    full: bool = False,
) -> Answer[Page[PoolRevision]]:
    """List the changes of a pool, newest first: revision, at, by, action (apply, put, set, set-image or rollback),
    reason, to_revision (of a rollback), owner, changes, `revisions` in force (name → revision and image), and
    spec_digest, with `full` also the spec (null unless the token has the scope read:settings)."""
    (after,) = pages.after(cursor, NEWEST)
    found = await history.listed(db, pool_id, limit + 1, after=after)
    if not found:
        await check_pool(db, pool_id)
    spec = None if reader.may("read:settings") else {"spec": None}
    shown = (spec or {}) if full else {"spec": UNSET}
    return pages.page(
        found, limit, lambda entry: Newest(entry["revision"]), lambda entry: PoolRevision(**entry | shown)
    )


@router.get("/pools/{pool_id:id}/rollback", dependencies=[READ])
async def preview_rollback(pool_id: Name, request: Request, db: DatabaseDep) -> Answer[RollbackPreview]:
    """Show what a rollback of a pool would change now: `to_revision`, `items`, `dangers`, and in `refused` why it would
    be refused (empty if it would not)."""
    await check_pool(db, pool_id)
    change = domain.Request(by="", action="rollback", dry_run=True, adopt=True, strategy="rollback")
    try:
        async with db.acquire() as connection:
            done = await rollback.roll_back(connection, pool_id, Rollback(), change, request.app.state.providers)
    except (DeclarationRefused, NothingToRollBack, TargetTripped) as error:
        shown = RollbackPreview(to_revision=None, items=[], dangers=[], refused=str(error))
    except ChangedMeanwhile as error:
        raise changed_meanwhile() from error
    else:
        dangers = listed_dangers(done.applied.dangers)
        shown = RollbackPreview(to_revision=done.to_revision, items=done.applied.changes, dangers=dangers, refused="")
    return Answer(shown)


@router.post("/pools/{pool_id:id}/rollback")
async def roll_back(
    pool_id: Name, body: Body[RollbackRequest], request: Request, caller: Declarer, db: DatabaseDep
) -> Tagged[DeclarationResult]:
    """Declare the launch configs of a pool as in an entry of its history. Answers like PUT /pools, with `to_revision`
    and the `revisions` that are current then (name → revision and image).

    Refused with 409 `rollback-tripped` while a revision that would be launched is tripped, unless `force`.
    """
    change = domain.Request(
        by=caller.name,
        owners=caller.owners(SCOPE),
        action="rollback",
        reason=body.reason,
        dry_run=body.dry_run,
        adopt=True,
        confirm=body.confirm,
        strategy=body.replace or "rollback",
        drain_seconds=body.drain_seconds,
        terminate=body.terminate or body.replace == "now",
    )
    wanted = Rollback(to_revision=body.to_revision, whole=body.whole, force=body.force)
    with _refusing():
        async with db.acquire() as connection:
            done = await rollback.roll_back(connection, pool_id, wanted, change, request.app.state.providers)
    revisions = {name: RevisionInForce(**revision) for name, revision in done.revisions.items()}
    result = _result(request, done.applied, to_revision=done.to_revision, revisions=revisions)
    return Tagged(result, done.digest)


def _check_owners(declared: Declared, asked: domain.Request) -> None:
    """Raise ForeignOwner unless the caller may declare for the owner of each document."""
    for document in declared.documents:
        if not asked.may_change(document.owner):
            raise ForeignOwner(document.owner)


@contextlib.contextmanager
def _without_places() -> Iterator[None]:
    """Raise the problems of a single pool with their paths in it: nobody gave a file that has it in a list."""
    try:
        yield
    except Invalid as error:
        raise Invalid(
            [
                msgspec.structs.replace(problem, path=problem.path.removeprefix(ONLY_POOL).lstrip("."), document="")
                for problem in error.problems
            ],
            error.more,
        ) from error


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raise Problem for a declaration or a rollback that is refused."""
    try:
        with refusing():
            yield
    except DeclarationRefused as error:
        raise Problem(409, "declaration-refused", "The declaration cannot be applied", str(error)) from error
    except ForeignOwner as error:
        detail = f"{error}; use a token with the scope {SCOPE}, or {SCOPE}:{error.owner or 'OWNER'}"
        raise Problem(403, "foreign-owner", "The token is for the things of other owners", detail) from error
    except PreconditionFailed as error:
        raise Problem(412, "precondition-failed", "The pool is not the expected one", str(error)) from error
    except ChangedMeanwhile as error:
        raise changed_meanwhile() from error
    except NothingToRollBack as error:
        raise Problem(409, "nothing-to-roll-back", "There is nothing to roll back to", str(error)) from error
    except TargetTripped as error:
        raise Problem(409, "rollback-tripped", "A target of the rollback is tripped", str(error)) from error


def _result(request: Request, applied: Applied, **more: Any) -> DeclarationResult:
    """Result of a change, after which what waits for it is woken."""
    if applied.applied:
        wake(request)
    return DeclarationResult(
        items=applied.changes[:CHANGES_MAX],
        more=len(applied.changes[CHANGES_MAX:]),
        unchanged=applied.unchanged,
        digest=applied.digest,
        dangers=listed_dangers(applied.dangers),
        costs=applied.estimates.costs[:CHANGES_MAX],
        unpriced=applied.estimates.unpriced[:CHANGES_MAX],
        applied=applied.applied,
        **more,
    )


def _expected(headers: Mapping[str, str], stored: domain.Known | None) -> str | None:
    """Digest that the stored pool must have, empty if there must be none, None if any will do."""
    if headers.get("if-none-match", "").strip() == "*":
        return ""
    match headers.get("if-match", "").strip():
        case "":
            return None
        case "*":
            return stored.digest if stored is not None else "*"
        case tag:
            return tag.removeprefix("W/").strip('"')


def _terms(request: Request) -> tuple[Tariff, DefaultDeadlines]:
    """Prices and deadlines of this service."""
    settings: Settings = request.app.state.settings
    return settings.tariff(), settings.deadlines()


def _reader(request: Request, index: domain.Index, asked: domain.Request) -> DeclaredReader:
    state = request.app.state
    return DeclaredReader(index, providers=state.providers, times=state.times, skips=not asked.ends_others)


async def _read(request: Request, db: Database, asked: domain.Request) -> Declared:
    """Read the declaration in the body of a request, line by line or as a whole."""
    async with db.acquire() as connection:
        index = await declarations.index(connection)
    reader = _reader(request, index, asked)
    if request.headers.get("content-type", "").startswith(LINES):
        await _read_lines(request, reader, asked.by)
    else:
        await _read_whole(await request.body(), reader, asked.by)
    return reader.finished()


async def _read_whole(body: bytes, reader: DeclaredReader, by: str) -> None:
    whole = _decoded(body, _WHOLE)
    sections = {name: entries for name in SECTIONS.values() if (entries := getattr(whole, name)) is not None}
    reader.document(_owner(whole) or by, sections)
    for section, entries in sections.items():
        for number, entry in enumerate(entries):
            reader.entry(section, entry)
            if number % LINES_PER_TURN == 0:
                await asyncio.sleep(0)


async def _read_lines(request: Request, reader: DeclaredReader, by: str) -> None:
    number = 0
    async for line in _lines(request):
        number += 1
        read = _decoded(line, _LINE, f"line {number}")
        entries = [(kind, entry) for kind in SECTIONS if (entry := getattr(read, kind)) is not NOTHING]
        if len(entries) != (read.version is None):
            known = ", ".join(SECTIONS)
            raise Invalid([DocumentProblem(f"line {number}", f"must have either a version or one of {known}")])
        if read.version is not None:
            reader.document(_owner(read) or by, read.sections)
        for kind, entry in entries:
            reader.entry(SECTIONS[kind], entry)
        if number % LINES_PER_TURN == 0:
            await asyncio.sleep(0)


async def _lines(request: Request) -> AsyncIterator[bytes]:
    """Lines of a body that are not empty, without holding the body as a whole."""
    rest = b""
    async for chunk in request.stream():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > LINE_BYTES_MAX:
            raise Problem(413, "body-too-large", "A line is too long", f"at most {LINE_BYTES_MAX} bytes are accepted")
    if rest.strip():
        yield rest


def _owner(given: _Whole | _Line) -> str:
    """Owner that a document names. Raises Invalid for another version or an invalid owner."""
    if given.version != 1:
        raise Invalid([DocumentProblem("version", f"{given.version} is not known; must be 1")])
    return parse_owner(given.metadata)


def _decoded(text: bytes, decoder: msgspec.json.Decoder[Any], where: str = "") -> Any:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise Invalid([DocumentProblem(where, str(error))]) from error
