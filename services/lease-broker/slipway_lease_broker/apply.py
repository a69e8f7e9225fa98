"""Apply changes of lease pools by people: compare, confirm and write them with their events, history and audit, in one
transaction. Declarations, changes by operators and imports use it."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.postgres import Connection, Database
from slipway_common.declaration.changes import check_confirmed
from slipway_common.messaging import outbox
from slipway_lease_broker.domain.declaration import (
    Declaration,
    Declared,
    PoolChange,
    audited,
    change,
    compare,
    dangers,
    digest,
    limit_events,
)
from slipway_lease_broker.domain.ledger import Entry, LeasePool
from slipway_lease_broker.metrics import LIMIT_CHANGES
from slipway_lease_broker.store import history, pools, slots, tenants
from slipway_lease_broker.store import terms as live

ATTEMPTS: Final = 3
Made = TypeVar("Made")


class Action(StrEnum):
    APPLY = "apply"
    SET = "set"
    IMPORT = "import"
    PIN = "pin"
    UNPIN = "unpin"
    DRAIN = "drain"
    UNDRAIN = "undrain"


# Kinds of history entries; those of other actions are the results of their changes.
KINDS: Final = {
    Action.SET: "set",
    Action.PIN: "pinned",
    Action.UNPIN: "unpinned",
    Action.DRAIN: "drained",
    Action.UNDRAIN: "undrained",
}


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """An action on lease pools: who took it, and why."""

    action: Action
    by: str
    reason: str


class ChangedMeanwhile(Exception):
    """Another caller changed a lease pool between its comparison and the write. Nothing was changed."""


async def preview(database: Database, wanted: Declaration) -> list[PoolChange]:
    """Changes that a declaration would make. Locks nothing. Raises OwnedByAnother."""
    return await asyncio.to_thread(compare, await pools.declared(database), wanted)


async def declare(database: Database, wanted: Declaration, act: Act, *, confirm: str = "") -> list[PoolChange]:
    """Commit a declaration, and return its changes. Locks only the lease pools that change.

    Raises OwnedByAnother, ConfirmationRequired and ChangedMeanwhile.
    """

    async def attempt() -> list[PoolChange]:
        async with database.acquire() as db, db.transaction():
            await pools.take_turns(db, wanted.owners, prune=wanted.prune)
            changes = await asyncio.to_thread(compare, await pools.declared(db), wanted)
            await asyncio.to_thread(_check, changes, confirm)
            await record(db, changes, act)
        return changes

    changes = await repeated(attempt)
    count_limits(changes)
    return changes


def _check(changes: Sequence[PoolChange], confirm: str) -> None:
    """Raise ConfirmationRequired for dangerous changes that were not confirmed."""
    shown = [made.shown() for made in changes if made.result != "unchanged"]
    check_confirmed(digest(changes), dangers(changes), confirm, shown)


async def repeated(attempt: Callable[[], Awaitable[Made]]) -> Made:
    """Make a transaction, and make it again if it fails by ChangedMeanwhile; raises that after the last attempt."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await attempt()
        except ChangedMeanwhile:
            continue
    return await attempt()


async def set_terms(tx: Connection, before: Declared, wanted: Declared, act: Act, *, confirm: str = "") -> PoolChange:
    """Change terms of a locked pool. Raises ConfirmationRequired."""
    made = change(before, wanted)
    _check([made], confirm)
    await record(tx, [made], act)
    return made


async def remove_left(tx: Connection, lease_pool_ids: Collection[str], *, by: str) -> list[PoolChange]:
    """Remove slots of locked pools that left their list while they were owned, and have no owner now. Returns the
    changes of the limits that follow the number of slots."""
    changes = []
    for pool_id, removed in sorted((await slots.remove_left(tx, lease_pool_ids)).items()):
        (before,) = await pools.declared(tx, [pool_id])
        left = await slots.count(tx, pool_id)
        if not before.archived and before.limit_units == left + removed:
            changes.append(change(before, msgspec.structs.replace(before, limit_units=left)))
    act = Act(action=Action.IMPORT, by=by, reason="slots that left the list have been released")
    await record(tx, changes, act)
    return changes


async def pin(tx: Connection, pool: LeasePool, act: Act) -> None:
    """Pin or unpin the limit of a locked pool; a pinned one stays pinned for its first reason."""
    reason = act.reason if act.action is Action.PIN else None
    if (pool.pinned_reason is None) is not (reason is None):
        await live.pin(tx, pool.id, reason)
        await _record_reason(tx, pool.id, "pinned_reason", pool.pinned_reason, reason, act)


async def drain(tx: Connection, pool: LeasePool, act: Act) -> None:
    """Drain or undrain a locked pool."""
    reason = act.reason if act.action is Action.DRAIN else None
    if pool.drained_reason != reason:
        await live.drain(tx, pool.id, reason)
        await _record_reason(tx, pool.id, "drained_reason", pool.drained_reason, reason, act)


async def _record_reason(
    tx: Connection, pool_id: str, field: str, before: str | None, after: str | None, act: Act
) -> None:
    now = await pools.clock(tx)
    kind = KINDS[act.action]
    await history.add(tx, [Entry(lease_pool_id=pool_id, at=now, kind=kind, reason=act.reason, actor=act.by)])
    await audit.record_command(
        tx,
        AuditedKind.LEASE_POOL,
        pool_id,
        act.action,
        by=act.by,
        reason=act.reason,
        before={field: before},
        **{field: after},
    )


async def record(tx: Connection, changes: Sequence[PoolChange], act: Act) -> None:
    """Write changes with their events, history and audit. Raises ChangedMeanwhile if a pool has changed since it was
    compared."""
    made = [change for change in changes if change.result != "unchanged"]
    if not made:
        return
    if await pools.declare(tx, [change.after for change in made]) < len(made):
        raise ChangedMeanwhile
    await tenants.end_backoffs(tx, [change.after.id for change in made if change.after.policy.backoff is None])
    now = await pools.clock(tx)
    await outbox.enqueue(tx, limit_events(made, act.reason), at=now)
    await history.add(
        tx,
        [
            Entry(
                lease_pool_id=change.after.id,
                at=now,
                kind=KINDS.get(act.action, change.result),
                reason=": ".join(filter(None, (change.shown().detail, act.reason))),
                actor=act.by,
            )
            for change in made
        ],
    )
    await audit.record(tx, [audited(change) for change in made], by=act.by, action=act.action, reason=act.reason)


def count_limits(changes: Sequence[PoolChange]) -> None:
    """Update the metrics of committed changes."""
    for event in limit_events(changes, ""):
        LIMIT_CHANGES.labels(event.lease_pool_id, "declared").inc()
