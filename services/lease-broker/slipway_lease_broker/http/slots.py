"""HTTP routes of slots: listing, and declaration of slots with their lease pools."""

from collections import Counter
from typing import Annotated

import msgspec
from fastapi import Depends, Request

from slipway_api.http.lease_pools import DeclaredSlots, DeclareSlots, NamedSlot, SlotsChange
from slipway_api.http.pages import Items
from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.postgres import Connection, Database
from slipway_common.declaration.changes import ForeignOwner, is_among
from slipway_common.declaration.models import LeasePool
from slipway_common.web.access import READ, Caller
from slipway_common.web.answers import Answer
from slipway_common.web.bodies import Body
from slipway_common.web.declaring import changed_meanwhile
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name
from slipway_lease_broker.apply import Act, Action, ChangedMeanwhile, record, repeated
from slipway_lease_broker.domain import declaration
from slipway_lease_broker.domain import slots as rules
from slipway_lease_broker.domain.declaration import Declared
from slipway_lease_broker.domain.refusals import unknown_lease_pool
from slipway_lease_broker.domain.slots import Listed, SlotChange
from slipway_lease_broker.http.callers import OPERATE, Declarer, foreign_owner
from slipway_lease_broker.http.declared import terms
from slipway_lease_broker.http.refusals import problem
from slipway_lease_broker.store import answers, pools, slots

router = Router()
DatabaseDep = Annotated[Database, Depends(database)]


@router.get("/slots", dependencies=[READ])
async def get_slots(database: DatabaseDep, pool: Name) -> Answer[Items[NamedSlot]]:
    """List the named slots of a lease pool. A slot whose lease has just ended may be shown as before."""
    if await answers.pool(database, pool) is None:
        raise problem(unknown_lease_pool(pool))
    found = await slots.listed(database, pool)
    return Answer(Items(items=[NamedSlot(**msgspec.structs.asdict(slot)) for slot in found]))


@router.put("/slots")
async def put_slots(
    request: Request,
    body: Body[DeclareSlots],
    caller: Declarer,
    database: DatabaseDep,
    dry_run: bool = False,
) -> Answer[DeclaredSlots]:
    """Replace the slots of the listed lease pools, all or nothing; other pools stay as they are. An owned slot that is
    not listed is `kept`, and removed when its owner releases it, unless a later list names it. Declaring the same list
    again changes nothing."""
    wanted = [Listed(lease_pool_id=pool.lease_pool, state=pool.state, names=tuple(pool.names)) for pool in body.slots]
    _check_duplicates(wanted)

    async def attempt() -> list[SlotChange]:
        async with database.acquire() as db:
            transaction = db.transaction()
            await transaction.start()
            try:
                await _check_places(db, wanted)
                known = {pool.id: pool for pool in await pools.declared(db, [pool.lease_pool_id for pool in wanted])}
                for listed in wanted:
                    _check_owner(known.get(listed.lease_pool_id), listed.lease_pool_id, caller)
                changes = [
                    await _apply(db, body, listed, known.get(listed.lease_pool_id), caller.name)
                    for listed in sorted(wanted, key=lambda listed: listed.lease_pool_id)
                ]
            except BaseException:
                await transaction.rollback()
                raise
            await (transaction.rollback() if dry_run else transaction.commit())
        return changes

    try:
        changes = await repeated(attempt)
    except ForeignOwner as error:
        raise foreign_owner(error) from error
    except ChangedMeanwhile as error:
        raise changed_meanwhile() from error
    if not dry_run:
        wake(request)
    return Answer(DeclaredSlots(dry_run=dry_run, items=[shown(change) for change in changes]))


def _check_owner(pool: Declared | None, lease_pool_id: str, caller: Caller) -> None:
    """Raise ForeignOwner unless the caller may change what the owner of this pool has declared. A list declares no
    owner, so that a new pool has none."""
    owner = "" if pool is None else pool.owner
    if not is_among(owner, caller.owners(OPERATE)):
        raise ForeignOwner(owner, f"lease pool {lease_pool_id}")


async def _check_places(tx: Connection, wanted: list[Listed]) -> None:
    """Lock the pools. Raises a Problem 409 for a slot of another pool."""
    await pools.lock(tx, [listed.lease_pool_id for listed in wanted])
    known = await slots.named(tx, {name for listed in wanted for name in listed.names})
    if moved := rules.elsewhere(wanted, known):
        name, old, new = moved[0]
        raise Problem(
            409,
            "slot-elsewhere",
            "Slot belongs to another lease pool",
            f"slot {name} belongs to lease pool {old} but is listed in {new}; remove it from {old} first",
            names=[name for name, _, _ in moved[:100]],
        )


async def _apply(
    tx: Connection, body: DeclareSlots, listed: Listed, before: Declared | None, caller: str
) -> SlotChange:
    current = await slots.listed(tx, listed.lease_pool_id)
    change = rules.compare(listed, current, await pools.clock(tx))
    in_use = before is not None and not before.archived
    limit = rules.limit_after(before.limit_units if before and in_use else None, len(current), change)
    if limit is not None:
        wanted = _declared(body, listed.lease_pool_id, before, limit)
        made = declaration.change(before, wanted)
        await record(tx, [made], Act(action=Action.IMPORT, by=caller, reason=f"slots listed by {caller}"))
        change = msgspec.structs.replace(change, result=made.result, limit_units=limit)
    await slots.add(tx, change.added)
    await slots.remove(tx, change.removed)
    await slots.save(tx, [*change.kept, *change.restored])
    if change.added or change.removed:
        names = {"added": [slot.name for slot in change.added], "removed": list(change.removed)}
        await audit.record_command(
            tx, AuditedKind.LEASE_POOL, listed.lease_pool_id, Action.IMPORT, by=caller, slots=names
        )
    return change


def _declared(body: DeclareSlots, pool_id: str, before: Declared | None, limit: int) -> Declared:
    """The terms of an existing pool, or those of the list, with this limit."""
    if before is not None:
        return msgspec.structs.replace(before, limit_units=limit, archived=False)
    hold_seconds = body.hold_seconds
    return terms(
        LeasePool.model_validate(
            {
                "id": pool_id,
                "limit": limit,
                "pacing": "off",
                "hold_seconds": hold_seconds,
                "ttl_seconds": min(body.ttl_seconds, hold_seconds),
                "reserve_seconds": min(180.0, hold_seconds),
            }
        )
    )


def _check_duplicates(wanted: list[Listed]) -> None:
    for noun, ids in (
        ("Lease pool", [pool.lease_pool_id for pool in wanted]),
        ("Slot", [name for pool in wanted for name in pool.names]),
    ):
        if twice := sorted(name for name, number in Counter(ids).items() if number > 1):
            raise Problem(422, "duplicate-id", f"{noun} listed twice", ", ".join(twice[:100]), ids=twice[:100])


def shown(change: SlotChange) -> SlotsChange:
    return SlotsChange(
        id=change.lease_pool_id,
        result=change.result,
        limit=change.limit_units,
        added=[slot.name for slot in change.added],
        removed=list(change.removed),
        kept=[slot.name for slot in change.kept],
        restored=[slot.name for slot in change.restored],
    )
