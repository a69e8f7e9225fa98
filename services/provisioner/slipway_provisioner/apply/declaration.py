"""Applies what a request declares to the rows, in one transaction with its events, its history and its audit.

The changes are computed from rows that were read without locks. Then only the rows that change are locked, read again,
and written if nothing has changed meanwhile.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from slipway_common.database import audit
from slipway_common.database.postgres import Connection
from slipway_common.declaration.changes import Danger, check_confirmed
from slipway_common.declaration.models import WorkerPool
from slipway_common.messaging import outbox
from slipway_provisioner.apply import deadline_checks, limiting, provider_keys
from slipway_provisioner.apply.costs import Locations, estimate
from slipway_provisioner.apply.provider_keys import Providers
from slipway_provisioner.apply.reading import Declared, GivenPool
from slipway_provisioner.domain import freezing, guard, ownership
from slipway_provisioner.domain.comparison import AccountRow, Comparison, PoolRow, Snapshot, Writes, moves
from slipway_provisioner.domain.deadlines import NO_DEFAULTS, DefaultDeadlines
from slipway_provisioner.domain.declaration import Applied, DeclarationRefused, Index, Known, Request
from slipway_provisioner.domain.limits import Tariff
from slipway_provisioner.store import declarations, history, pools, roll_outs
from slipway_provisioner.store.declarations import ChangedMeanwhile, User

ATTEMPTS: Final = 3
POOLS_PER_TURN: Final = 2
"""Pools that are compared before other tasks of this process get their turn."""
ANALYZED_REVISIONS_MIN: Final = 500
"""New revisions of one request, after which the tables of declarations may have grown by a multiple."""


class PreconditionFailed(Exception):
    """The stored pool is not the one that the request expects. Nothing was changed."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Entries that a request may change, and what it depends on: to be the same when the changes are written.

    `gone`: removed ids by section. `restated`: pools in accounts that `moved` to another region. `users`: declared
    launch configs in these accounts, and in removed ones. `regions` and `providers` are those of all accounts, as they
    will be.
    """

    gone: dict[str, list[str]]
    moved: frozenset[str]
    restated: list[str]
    users: list[User]
    regions: dict[str, str]
    providers: dict[str, str]
    known: dict[tuple[str, str], Known | None]

    @property
    def removed_or_moved(self) -> frozenset[str]:
        return self.moved.union(self.gone["accounts"])


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Writes of a request, and the rows that they were computed from."""

    writes: Writes
    scope: Scope
    seen: Snapshot

    async def unchanged(self, db: Connection) -> bool:
        """True if the rows are still as they were read."""
        scope, seen = self.scope, self.seen
        index = await declarations.index(db, [id_ for section, id_ in scope.known if section == "worker_pools"])
        return (
            scope.known == _known(index, scope.known)
            and scope.users == await declarations.users(db, scope.removed_or_moved)
            and seen
            == await declarations.snapshot(db, accounts=seen.accounts, pools=seen.pools, config_names=seen.names)
        )


async def apply(
    db: Connection,
    declared: Declared,
    request: Request,
    providers: Providers,
    tariff: Tariff = Tariff(),
    deadlines: DefaultDeadlines = NO_DEFAULTS,
) -> Applied:
    """Make the rows match what is declared, or only list the changes for a dry run, which takes no locks.

    Raises DeclarationRefused, OwnedByAnother, Invalid, ConfirmationRequired or PreconditionFailed, and ChangedMeanwhile
    if others keep changing the same rows; then nothing was changed.
    """
    for _ in range(ATTEMPTS):
        prepared = await _prepared(db, declared, request, providers)
        writes = prepared.writes
        await deadline_checks.check(db, declared, writes, deadlines)
        locations = Locations(prepared.scope.providers, prepared.scope.regions)
        digest = writes.digest  # once: there may be thousands of changes
        if not request.dry_run:
            check_confirmed(digest, writes.dangers, request.confirm, writes.changes)
        if not request.dry_run and not writes.empty and not await _written(db, prepared, request):
            continue
        if not request.dry_run and len(writes.new_revisions) >= ANALYZED_REVISIONS_MIN:
            await declarations.analyze(db)
        return Applied(
            changes=writes.changes,
            unchanged=_unchanged(declared, writes),
            digest=digest,
            dangers=writes.dangers,
            estimates=await estimate(db, declared, writes, locations, providers, tariff),
            applied=not request.dry_run,
            launches=await provider_keys.launches(db, writes, declared.accounts) if request.dry_run else [],
        )
    raise ChangedMeanwhile


async def _prepared(db: Connection, declared: Declared, request: Request, providers: Providers) -> Prepared:
    """Compute the writes from the rows as they are now."""
    index = await declarations.index(db, _pool_ids(declared))
    _check_precondition(declared, index, request)
    scope = await _scope(db, declared, index, request)
    seen = await declarations.snapshot(
        db,
        accounts=[*declared.accounts, *scope.gone["accounts"]],
        pools=[*declared.pools, *scope.gone["worker_pools"], *scope.restated],
        config_names=[name for given in declared.pools.values() for name in given.names()],
    )
    serving = await declarations.serving(db, seen.pools)
    moving = [id_ for id_, row in declared.accounts.items() if moves(seen.accounts.get(id_), row)]
    machines = await declarations.machines(db, moving)
    compared = Comparison(request, seen, await pools.now(db), serving, machines)
    writes = await _compared(declared, scope, compared, providers)
    await provider_keys.fill_in(db, writes, declared.accounts, providers)
    await provider_keys.check_users(db, writes, providers)
    if request.action != "rollback":  # which refuses what is tripped, unless it is forced
        writes.dangers += await _tripped(db, writes.replacements)
    return Prepared(writes=writes, scope=scope, seen=seen)


def _pool_ids(declared: Declared) -> Collection[str] | None:
    """Ids of the pools that a request may change; None if it may change any, since it removes what a document leaves
    out or changes accounts, which pools use."""
    pools = declared.owners("worker_pools")
    if declared.accounts or declared.owners("accounts").documents or pools.documents:
        return None
    return pools.entries


async def _tripped(db: Connection, replacements: Sequence[guard.Replacement]) -> list[Danger]:
    """Dangers of revisions that become current and are tripped."""
    keys = sorted({key for made in replacements for key in made.tripping()})
    reasons = await declarations.tripped(db, keys, keys) if keys else {}
    return [danger for made in replacements for danger in guard.of_replacement(made, reasons)]


async def _scope(db: Connection, declared: Declared, index: Index, request: Request) -> Scope:
    gone = {
        section: sorted(ownership.removed(declared.owners(section), index.of(section), request))
        for section in ("accounts", "worker_pools")
    }
    given = {account.id: account.region for account in declared.accounts.values()}
    moved = frozenset(id_ for id_, region in given.items() if index.regions.get(id_, region) != region)
    users = await declarations.users(db, moved.union(gone["accounts"]))
    changed = {*declared.pools, *gone["worker_pools"]}
    for user in users:
        if user.account_id in gone["accounts"] and user.pool_id not in changed:
            raise DeclarationRefused(
                f"account {user.account_id} cannot be removed: launch config {user.name} of worker pool {user.pool_id} "
                "launches in it"
            )
    restated = sorted({user.pool_id for user in users if user.account_id in moved} - changed)
    regions = {id_: region for id_, region in index.regions.items() if id_ not in gone["accounts"]} | given
    named = {account.id: account.provider for account in declared.accounts.values()}
    providers = {id_: name for id_, name in index.providers.items() if id_ in regions} | named
    ids = [*declared.unchanged, *(("accounts", id_) for id_ in index.accounts.keys() | given.keys())]
    ids += [("worker_pools", id_) for id_ in (*changed, *restated)]
    return Scope(
        gone=gone,
        moved=moved,
        restated=restated,
        users=users,
        regions=regions,
        providers=providers,
        known=_known(index, ids),
    )


async def _compared(declared: Declared, scope: Scope, found: Comparison, providers: Providers) -> Writes:
    """Compare every declared and removed entry."""
    released = {section: declared.owners(section).documents for section in scope.gone}
    for account in declared.accounts.values():
        found.account(account, released["accounts"])
    for id_ in scope.gone["accounts"]:
        found.remove_account(id_)
    for number, given in enumerate(declared.pools.values()):
        mode = _mode(given, found.seen, scope, providers)
        found.pool(given.rows(scope.regions, mode=mode), released["worker_pools"])
        if number % POOLS_PER_TURN == 0:
            await asyncio.sleep(0)
    for id_ in scope.restated:
        stored = found.seen.pools[id_]
        given = GivenPool(stored.owner, stored.spec, stored.spec_digest, WorkerPool.model_validate(stored.spec))
        found.pool(given.rows(scope.regions, mode=stored.mode), ())
    for id_ in scope.gone["worker_pools"]:
        found.remove_pool(id_)
    return found.writes


def _mode(given: GivenPool, seen: Snapshot, scope: Scope, providers: Providers) -> str:
    """Mode of a pool that declares none: the one that it has, or that of a new one. Nobody should find that a first
    apply has launched machines that cost money."""
    stored = seen.pools.get(given.pool.id)
    if stored is not None and not stored.deleted:
        return stored.mode
    real = any(_is_real(config.account, scope, providers) for config in given.pool.launch_configs)
    return "observe" if real else "enforce"


def _is_real(account_id: str, scope: Scope, providers: Providers) -> bool:
    provider = providers.get(scope.providers.get(account_id, ""))
    return provider is not None and provider.real


async def _written(db: Connection, prepared: Prepared, request: Request) -> bool:
    """Write what was prepared; False if the rows have changed since they were read."""
    writes = prepared.writes
    try:
        async with db.transaction():
            await declarations.lock(db, writes)
            if not await prepared.unchanged(db):
                raise ChangedMeanwhile
            await declarations.put_accounts(db, writes)
            revisions, unfrozen = await declarations.put_pools(db, writes, request, frozen_by=freezing.BY)
            await declarations.put_configs(db, writes)
            await limiting.declare(
                db,
                accounts={*_ids(writes.new_accounts), *_ids(writes.accounts), *writes.removed_accounts},
                pools={*_ids(writes.new_pools), *_ids(writes.pools), *writes.removed_pools},
            )
            await roll_outs.drain(db, writes.drains)
            await outbox.enqueue(db, [freezing.resolved(id_, f"pool {id_} is deleted") for id_ in unfrozen])
            await history.record(db, writes.history, revisions, request)
            await audit.record(db, writes.audit, by=request.by, action=request.action, reason=request.reason)
    except ChangedMeanwhile:
        return False
    return True


def _check_precondition(declared: Declared, index: Index, request: Request) -> None:
    if request.if_match is None:
        return
    for id_ in declared.owners("worker_pools").entries:
        stored = index.pools.get(id_)
        if request.if_match != (stored.digest if stored is not None else ""):
            state = "has changed since it was read" if request.if_match else "exists already"
            state = state if stored is not None else "does not exist"
            raise PreconditionFailed(f"worker pool {id_} {state}; read it again, nothing was changed")


def _ids(rows: Iterable[AccountRow | PoolRow]) -> list[str]:
    return [row.id for row in rows]


def _known(index: Index, ids: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Known | None]:
    return {(section, id_): index.of(section).get(id_) for section, id_ in ids}


def _unchanged(declared: Declared, writes: Writes) -> int:
    """Number of declared accounts and pools that are stored alike."""
    changed = {change.id for change in writes.changes if change.kind in ("account", "worker pool")}
    given = [*declared.accounts, *declared.pools, *(id_ for _, id_ in declared.unchanged)]
    return sum(id_ not in changed for id_ in given)
