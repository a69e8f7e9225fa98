"""HTTP routes of lease pools: declaration, overview, changes at run time, history and report."""

import asyncio
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
from fastapi import Depends, Query, Request
from msgspec.structs import asdict
from pydantic import BaseModel, ValidationError

from slipway_api.http import lease_pools as api
from slipway_api.http.declaration import OwnedSpec
from slipway_api.http.lease_broker import ChargedStarts, LeaseDecision, UnleasedStarts
from slipway_api.http.lease_pools import (
    ChangedLeasePool,
    ChangeLeasePool,
    DeclaredLeasePools,
    DrainedLeasePool,
    ExportedLeasePools,
    LeasePoolReason,
    LeasePoolReport,
    ReportedUnits,
    ReportUnits,
)
from slipway_api.http.pages import Items, Page
from slipway_common.database.places import NEWEST, Newest
from slipway_common.database.postgres import Connection, Database
from slipway_common.declaration.changes import ForeignOwner
from slipway_common.declaration.models import LeasePool
from slipway_common.declaration.parsing import problems
from slipway_common.declaration.strict_yaml import path_text
from slipway_common.web import pages
from slipway_common.web.access import READ
from slipway_common.web.answers import Answer
from slipway_common.web.bodies import Body
from slipway_common.web.bodies import Report as ReportBody
from slipway_common.web.declaring import changed_meanwhile, refusing
from slipway_common.web.moment import Moment
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name, NameOrEmpty, ReasonOrEmpty
from slipway_lease_broker import apply
from slipway_lease_broker.apply import Act, Action, ChangedMeanwhile
from slipway_lease_broker.domain import declaration, ledger, unleased
from slipway_lease_broker.domain.declaration import Declared
from slipway_lease_broker.domain.paces import pacing_in_force, pacing_of
from slipway_lease_broker.domain.refusals import Refusal, unknown_lease_pool
from slipway_lease_broker.domain.report import report
from slipway_lease_broker.http import declared, shown
from slipway_lease_broker.http.callers import OPERATE, READ_OR_HOLD, Caller, Declarer, Operator, foreign_owner
from slipway_lease_broker.http.refusals import problem
from slipway_lease_broker.store import answers, history, past_leases, pools
from slipway_lease_broker.store import terms as live

router = Router()
DatabaseDep = Annotated[Database, Depends(database)]
PAST_LEASES_MAX = 100_000
NO_TERMS: Final = ("reason", "revision", "pinned", "operation", "confirm")
"""Fields of a change that are no terms."""


class Options(BaseModel):
    """Query of a declaration."""

    dry_run: bool = False
    prune: bool = False
    adopt: bool = False
    confirm: NameOrEmpty = ""
    reason: ReasonOrEmpty = ""


@router.put("/lease-pools", openapi_extra=declared.DOCUMENTED)
async def put_lease_pools(
    request: Request,
    caller: Declarer,
    database: DatabaseDep,
    options: Annotated[Options, Query()],
) -> Answer[DeclaredLeasePools]:
    """Declare lease pools: `{"documents": [{"owner": "a.yaml", "lease_pools": […]}]}`, all or nothing.

    Each document is complete for its owner: what the owner declared before and leaves out now is archived. With `prune`
    this holds for the lease pools of all owners; a request without documents archives nothing. A lease pool of another
    owner is refused unless `adopt` is set or that owner's document is given too. Dangerous changes need their digest in
    `confirm`, which a `dry_run` answers. Declaring the same again changes nothing.
    """
    try:
        with refusing():
            wanted = await declared.read(
                await request.body(),
                prune=options.prune,
                adopt=options.adopt,
                permitted=caller.owners(OPERATE),
            )
            if options.dry_run:
                changes = await apply.preview(database, wanted)
            else:
                reason = options.reason or f"declared by {caller.name}"
                act = Act(action=Action.APPLY, by=caller.name, reason=reason)
                changes = await apply.declare(database, wanted, act, confirm=options.confirm)
                wake(request)
    except ForeignOwner as error:
        raise foreign_owner(error) from error
    except ChangedMeanwhile as error:
        raise changed_meanwhile() from error
    return Answer(await asyncio.to_thread(shown.changes, changes, applied=not options.dry_run))


@router.get("/declaration", dependencies=[READ])
async def get_declaration(database: DatabaseDep, owner: NameOrEmpty | None = None) -> Answer[ExportedLeasePools]:
    """Export what is declared, or that of one owner: `lease_pools`, a list of `{"owner": …, "spec": …}`."""
    async with database.acquire() as db:
        rows = [row for row in await pools.declared(db) if not row.archived and owner in (None, row.owner)]
    specs = [OwnedSpec(owner=row.owner, spec=declaration.shown_terms(row)) for row in rows]
    return Answer(ExportedLeasePools(lease_pools=specs))


@router.get("/lease-pools", dependencies=[READ])
async def get_lease_pools(database: DatabaseDep) -> Answer[Items[api.LeasePool]]:
    """List lease pools: limit, units held and waiting, waiting requests and the longest wait, units granted in the last
    minute, the expected wait of one unit requested now (null: forever), the reasons of the last decision, and the
    pacing in force: of each declared operation, and the default of all others, each paced by itself (null: not paced).

    Each has all its terms with the names of slipway.yaml, and the `owner` that declares it (empty: none). One that is
    `archived` is no longer declared, and listed until its leases and requests have ended.
    """
    return Answer(Items(items=[overview(pool) for pool in await pools.overview(database)]))


@router.get("/lease-pools/{lease_pool_id:id}", dependencies=[READ_OR_HOLD])
async def get_lease_pool(database: DatabaseDep, lease_pool_id: Name) -> Answer[api.LeasePool]:
    """Show one lease pool as in the list."""
    found = await pools.overview(database, [lease_pool_id])
    if not found:
        raise problem(unknown_lease_pool(lease_pool_id))
    return Answer(overview(found[0]))


def overview(pool: pools.Overview) -> api.LeasePool:
    """A lease pool as shown."""
    fields = declaration.shown(pool) | {
        "eta_seconds": pool.eta_seconds,
        "pacing_in_force": msgspec.to_builtins(pacing_in_force(pool, pool.limit)),
    }
    return msgspec.convert(fields, api.LeasePool)


@router.patch("/lease-pools/{lease_pool_id:id}")
async def change_lease_pool(
    lease_pool_id: Name, body: Body[ChangeLeasePool], call: Operator, confirm: NameOrEmpty = ""
) -> Answer[ChangedLeasePool]:
    """Change terms of a lease pool until its next declaration. Leases stay held: with a lower limit the pool stops
    granting until usage falls. A limit that is more than doubled needs the digest of the refusal in `confirm`."""
    async with call.database.acquire() as db, db.transaction():
        pool, _ = await lock(db, lease_pool_id)
        (before,) = await pools.declared(db, [lease_pool_id])
        if body.revision not in (None, before.revision):
            raise Problem(
                409,
                "revision-conflict",
                "Lease pool was changed",
                f"lease pool {lease_pool_id} has revision {before.revision}, not {body.revision}; "
                "read it and repeat the change",
                revision=before.revision,
            )
        act = Act(action=Action.SET, by=call.name, reason=body.reason)
        with refusing():
            wanted = changed(before, body)
            made = await apply.set_terms(db, before, wanted, act, confirm=body.confirm or confirm)
        if body.pinned is not None:
            action = Action.PIN if body.pinned else Action.UNPIN
            await apply.pin(db, pool, msgspec.structs.replace(act, action=action))
    apply.count_limits([made])
    call.runtime.wake()
    pinned = pool.pinned_reason is not None if body.pinned is None else body.pinned
    fields = declaration.shown(made.after) | {"pinned": pinned, "result": made.result}
    return Answer(msgspec.convert(fields, ChangedLeasePool))


@router.post("/lease-pools/{lease_pool_id:id}/drain")
async def drain(lease_pool_id: Name, body: Body[LeasePoolReason], call: Operator) -> Answer[DrainedLeasePool]:
    """Drain a lease pool: it grants nothing more, and leases stay held until they are released."""
    return await drained(call, lease_pool_id, Act(action=Action.DRAIN, by=call.name, reason=body.reason))


@router.post("/lease-pools/{lease_pool_id:id}/undrain")
async def undrain(lease_pool_id: Name, body: Body[LeasePoolReason], call: Operator) -> Answer[DrainedLeasePool]:
    """Undrain a lease pool: it grants again."""
    return await drained(call, lease_pool_id, Act(action=Action.UNDRAIN, by=call.name, reason=body.reason))


async def drained(call: Operator, lease_pool_id: str, act: Act) -> Answer[DrainedLeasePool]:
    async with call.database.acquire() as db, db.transaction():
        pool, _ = await lock(db, lease_pool_id)
        await apply.drain(db, pool, act)
    call.runtime.wake()
    is_drained = act.action is Action.DRAIN
    return Answer(DrainedLeasePool(id=lease_pool_id, drained=is_drained, held=pool.held_units))


@router.put("/lease-pools/{lease_pool_id:id}/units")
async def report_units(lease_pool_id: Name, body: Body[ReportUnits], call: Operator) -> Answer[ReportedUnits]:
    """Report the units that a derived limit follows. After `ttl_seconds` the last value holds, with an alert."""
    async with call.database.acquire() as db, db.transaction():
        pool, now = await lock(db, lease_pool_id)
        if pool.policy.derived is None:
            raise Problem(
                409,
                "not-derived",
                "Limit of the lease pool is not derived",
                f"lease pool {lease_pool_id} has no derived limit; declare `derived` first",
            )
        until = now + timedelta(seconds=body.ttl_seconds)
        await live.report_units(db, lease_pool_id, body.units, until)
    call.runtime.wake()
    return Answer(ReportedUnits(id=lease_pool_id, units=body.units, valid_until=until))


@router.post("/lease-pools/{lease_pool_id:id}/unleased")
async def charge_unleased(lease_pool_id: Name, body: ReportBody[UnleasedStarts], call: Caller) -> Answer[ChargedStarts]:
    """Count operations that were started without a lease until their hold ends, one lease for each in their order. A
    repeated call changes nothing; the leases in the answer may be released like any other. A request that waits does
    so no longer, and one that was granted meanwhile has that lease. A lost lease has the request id `lost-LEASE_ID`: it
    counts as before if it was renewed after all. A start time in the future counts as now, since the operation would
    otherwise never count. Units beyond `unleased_max` of the token do not count, and let its tenant wait."""
    starts = [unleased.Start(**(asdict(start) | {"cause": ledger.UnleasedBy(start.cause)})) for start in body.starts]
    async with call.admissions.alone(call.database, call.name) as admission:
        await admission.lock([lease_pool_id])
        pool = admission.pools.get(lease_pool_id)
        if pool is None or pool.archived:
            raise problem(unknown_lease_pool(lease_pool_id))
        charged = await admission.charge(
            lease_pool_id, starts, call.sender(), unleased_max=call.caller.token.unleased_max
        )
        if isinstance(charged, Refusal):
            raise problem(charged)
    found, number = charged
    items = [shown.lease(lease, admission.now, pool.ttl_seconds) for lease in found]
    return Answer(ChargedStarts(charged=number, items=items))


@router.get("/lease-pools/{lease_pool_id:id}/history", dependencies=[READ])
async def get_history(
    database: DatabaseDep,
    lease_pool_id: Name,
    since: Moment | None = None,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
) -> Answer[Page[LeaseDecision]]:
    """List the decisions about a lease pool with actor and reason, newest first."""
    if await answers.pool(database, lease_pool_id) is None:
        raise problem(unknown_lease_pool(lease_pool_id))
    (after,) = pages.after(cursor, NEWEST)
    rows = await history.of_pool(database, lease_pool_id, since=since, after=after, limit=limit + 1)
    return pages.page(rows, limit, lambda row: Newest(row[0]), lambda row: shown.decision(row[1]))


@router.get("/lease-pools/{lease_pool_id:id}/report", dependencies=[READ])
async def get_report(
    database: DatabaseDep,
    lease_pool_id: Name,
    since_seconds: Annotated[float, Query(gt=0, le=31_536_000)] = 86_400.0,
    limit: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    hold_seconds: Annotated[float | None, Query(gt=0, le=31_536_000)] = None,
) -> Answer[LeasePoolReport]:
    """Report on past concurrency, throttling and phases, compared with a limit and a hold [default: the pool's]."""
    found = await answers.pool(database, lease_pool_id)
    if found is None:
        raise problem(unknown_lease_pool(lease_pool_id))
    pool, now = found
    since = now - timedelta(seconds=since_seconds)
    replayed = msgspec.structs.replace(
        pool, limit_units=limit or pool.limit_units, hold_seconds=hold_seconds or pool.hold_seconds
    )
    past = await past_leases.since(database, lease_pool_id, since, limit=PAST_LEASES_MAX)
    found_report = report(
        past,
        since,
        now,
        limit_units=replayed.limit_units,
        hold_seconds=replayed.hold_seconds,
        pacing=lambda operation: pacing_of(replayed, operation, replayed.limit_units),
    )
    return Answer(shown.report(pool, found_report))


async def lock(db: Connection, lease_pool_id: str) -> tuple[ledger.LeasePool, datetime]:
    """The pool, locked until the transaction ends, and the time after the lock. Raises a Problem 404 for an unknown
    pool."""
    locked = await pools.lock(db, [lease_pool_id])
    if not locked or locked[0].archived:
        raise problem(unknown_lease_pool(lease_pool_id))
    return locked[0], await pools.clock(db)


def changed_terms(body: ChangeLeasePool) -> dict[str, Any]:
    """The given terms, named as in a declaration; those of `operation` as of the pool."""
    given: dict[str, Any] = msgspec.to_builtins(body)  # leaves out what was not given
    return {name: value for name, value in given.items() if name not in NO_TERMS}


def changed(pool: Declared, body: ChangeLeasePool) -> Declared:
    """The pool with some terms changed. Raises a Problem 422 for terms that could not be declared."""
    known, given = declaration.shown_terms(pool), changed_terms(body)
    if body.operation is not None:
        operation = known["operations"].get(body.operation, {}) | {"pacing": given.pop("pacing")}
        given["operations"] = known["operations"] | {body.operation: operation}
    try:
        return declared.terms(LeasePool.model_validate(known | given), pool.owner)
    except ValidationError as error:
        found = problems(error, ("lease_pools", 0))
        detail = "; ".join(": ".join(filter(None, (path_text(path), reason))) for path, reason in found)
        raise Problem(422, "invalid-terms", "Invalid terms of a lease pool", detail) from error
