"""Applies what a request declares to the rows, in one transaction with its events, its history and its audit.

The changes are computed from rows that were read without locks. Then only the rows that change are locked, read again,
and written if nothing has changed meanwhile.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.declaration.changes import changes_digest, check_confirmed
from slipway_common.declaration.identity import config_name
from slipway_common.declaration.models import WorkerPool
from slipway_common.messaging import outbox
from slipway_provisioner.domain import freezing, ownership
from slipway_provisioner.domain.comparison import Comparison, Snapshot, Steps
from slipway_provisioner.domain.declaration import (
    Applied,
    DeclarationRefused,
    Declared,
    Given,
    Index,
    Known,
    Request,
)
from slipway_provisioner.store import audit, declarations, history, roll_outs
from slipway_provisioner.store.declarations import ChangedMeanwhile

ATTEMPTS: Final = 3
POOLS_PER_TURN: Final = 2
"""Pools that are compared before other tasks of this process get their turn."""


class PreconditionFailed(Exception):
    """The stored pool is not the one that the request expects. Nothing was changed."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a declaration, and what they were computed from."""

    steps: Steps
    seen: Snapshot
    known: dict[tuple[str, str], Known | None]

    async def unchanged(self, db: Connection) -> bool:
        """True if the rows are still as they were read."""
        index, _ = await declarations.index(db)
        return self.known == _known(index, self.known) and self.seen == await _seen_again(db, self.seen)


async def apply(db: Connection, declared: Declared, request: Request) -> Applied:
    """Make the rows match what is declared, or only list the changes for a dry run, which takes no locks.

    Raises DeclarationRefused, Invalid, ConfirmationRequired or PreconditionFailed, and ChangedMeanwhile if others keep
    changing the same rows; then nothing was changed.
    """
    for _ in range(ATTEMPTS):
        plan = await _planned(db, declared, request)
        steps = plan.steps
        if not request.dry_run:
            check_confirmed(steps.changes, steps.dangers, request.confirm)
        if not request.dry_run and not steps.empty and not await _written(db, plan, request):
            continue
        return Applied(
            changes=steps.changes,
            unchanged=_unchanged(declared, steps),
            digest=changes_digest(steps.changes),
            dangers=steps.dangers,
            applied=not request.dry_run,
        )
    raise ChangedMeanwhile


async def _planned(db: Connection, declared: Declared, request: Request) -> Plan:
    """Compute the steps from the rows as they are now."""
    index, regions = await declarations.index(db)
    _check_precondition(declared, index, request)
    gone = {
        section: sorted(ownership.removed(declared, section, index.of(section), request))
        for section in ("accounts", "worker_pools")
    }
    moved = {
        given.entry.id
        for given in declared.accounts.values()
        if given.entry.id in regions and regions[given.entry.id] != given.entry.region
    }
    regions = {id_: region for id_, region in regions.items() if id_ not in gone["accounts"]}
    regions |= {given.entry.id: given.entry.region for given in declared.accounts.values()}
    users = await declarations.users(db, {*moved, *gone["accounts"]})
    changed = {*declared.pools, *gone["worker_pools"]}
    for user in users:
        if user["account_id"] in gone["accounts"] and user["pool_id"] not in changed:
            raise DeclarationRefused(
                f"account {user['account_id']} cannot be removed: launch config {user['name']} of worker pool "
                f"{user['pool_id']} launches in it"
            )
    restated = {user["pool_id"] for user in users if user["account_id"] in moved} - changed
    seen = await declarations.snapshot(
        db,
        accounts=[*declared.accounts, *gone["accounts"]],
        pools={*changed, *restated},
        config_names=_names(given.entry for given in declared.pools.values()),
    )
    steps = await _compared(declared, gone, sorted(restated), Comparison(request, index, seen, regions))
    ids = [*(("accounts", id_) for id_ in seen.accounts), *declared.unchanged]
    ids += [("worker_pools", id_) for id_ in {*changed, *restated}]
    return Plan(steps=steps, seen=seen, known=_known(index, ids))


async def _compared(declared: Declared, gone: dict[str, list[str]], restated: list[str], found: Comparison) -> Steps:
    """Compare every declared and removed entry."""
    released = {section: ownership.released(declared, section) for section in gone}
    for account in declared.accounts.values():
        found.account(account, released["accounts"])
    for id_ in gone["accounts"]:
        found.remove_account(id_)
    for number, given in enumerate(declared.pools.values()):
        found.pool(given, released["worker_pools"])
        if number % POOLS_PER_TURN == 0:
            await asyncio.sleep(0)
    for id_ in restated:
        stored = found.seen.pools[id_]
        pool = WorkerPool.model_validate(stored.spec)
        found.pool(Given(stored.owner, stored.spec, stored.spec_digest, pool), ())
    for id_ in gone["worker_pools"]:
        found.remove_pool(id_)
    return found.steps


async def _written(db: Connection, plan: Plan, request: Request) -> bool:
    """Write the steps; False if the rows have changed since they were read."""
    steps = plan.steps
    try:
        async with db.transaction():
            await declarations.lock(db, steps)
            if not await plan.unchanged(db):
                raise ChangedMeanwhile
            await declarations.put_accounts(db, steps)
            revisions, unfrozen = await declarations.put_pools(db, steps, request, frozen_by=freezing.BY)
            await declarations.put_configs(db, steps)
            await roll_outs.drain(db, steps.drains)
            await outbox.enqueue(db, [freezing.resolved(id_, f"pool {id_} is deleted") for id_ in unfrozen])
            await history.record(db, steps.history, revisions, request)
            await audit.record(db, steps.audit, by=request.by, action=request.action)
    except ChangedMeanwhile:
        return False
    return True


def _check_precondition(declared: Declared, index: Index, request: Request) -> None:
    if request.if_match is None:
        return
    for id_ in declared.owners("worker_pools"):
        stored = index.pools.get(id_)
        if request.if_match != (stored.digest if stored is not None else ""):
            raise PreconditionFailed


async def _seen_again(db: Connection, seen: Snapshot) -> Snapshot:
    return await declarations.snapshot(db, accounts=seen.accounts, pools=seen.pools, config_names=seen.names)


def _known(index: Index, ids: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Known | None]:
    return {(section, id_): index.of(section).get(id_) for section, id_ in ids}


def _names(pools: Iterable[WorkerPool]) -> list[str]:
    return [config_name(pool, config) for pool in pools for config in pool.launch_configs]


def _unchanged(declared: Declared, steps: Steps) -> int:
    """Number of declared accounts and pools that are stored alike."""
    changed = {change.id for change in steps.changes if change.kind in ("account", "worker pool")}
    given = [*declared.accounts, *declared.pools, *(id_ for _, id_ in declared.unchanged)]
    return sum(id_ not in changed for id_ in given)
