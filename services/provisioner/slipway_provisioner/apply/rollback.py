"""Rolls a pool back to an entry of its history."""

from collections.abc import Sequence
from typing import Any

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.declaration.identity import BODY, config_name
from slipway_common.declaration.models import LaunchConfig, WorkerPool
from slipway_provisioner.apply import declaration
from slipway_provisioner.apply.declaration import ATTEMPTS, PreconditionFailed
from slipway_provisioner.apply.provider_keys import Providers
from slipway_provisioner.apply.reading import Declared, GivenPool, spec_digest
from slipway_provisioner.domain.comparison import DeclaredPool, Snapshot, revision_of
from slipway_provisioner.domain.declaration import Applied, Request
from slipway_provisioner.domain.revisions import RevisionRow, in_force, shared_keys
from slipway_provisioner.domain.rollback import Entry, Rollback, candidates
from slipway_provisioner.store import declarations, history
from slipway_provisioner.store.declarations import ChangedMeanwhile


class NothingToRollBack(Exception):
    """The history of the pool has no entry to return to. Nothing was changed."""


class TargetTripped(Exception):
    """A revision that the rollback would launch is tripped. Nothing was changed."""


class RolledBack(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a rollback: the entry of the history, the digest of what is declared now, the changes, and the current
    revisions by the names of their launch configs."""

    to_revision: int
    digest: str
    applied: Applied
    revisions: dict[str, dict[str, str]]


async def roll_back(
    db: Connection, pool_id: str, rollback: Rollback, request: Request, providers: Providers
) -> RolledBack:
    """Declare a pool with the revisions of an entry of its history, and otherwise as it is now.

    Raises NothingToRollBack, TargetTripped unless forced, and what `apply` raises.
    """
    for _ in range(ATTEMPTS):
        try:
            return await _rolled_back(db, pool_id, rollback, request, providers)
        except PreconditionFailed:
            continue  # others have changed the pool since it was read
    raise ChangedMeanwhile


async def _rolled_back(
    db: Connection, pool_id: str, rollback: Rollback, request: Request, providers: Providers
) -> RolledBack:
    stored = await declarations.declared_pool(db, pool_id)
    present = WorkerPool.model_validate(stored["spec"]) if stored is not None else None
    entry, pool = await _target(db, pool_id, present, rollback)
    spec = pool.model_dump(mode="json")
    owner = (stored["owner"] if stored is not None else "") or entry["owner"]
    given = GivenPool(owner, spec, spec_digest(spec), pool)
    rows = given.rows((await declarations.index(db, ())).regions, mode="")
    seen = await declarations.snapshot(db, accounts=(), pools=(), config_names=given.names())
    revisions = _revisions(rows, seen)
    if not rollback.force:
        await _check_healthy(db, pool_id, [revision for revision in revisions if not _is_current(revision, seen)])
    change = msgspec.structs.replace(
        request, to_revision=entry["revision"], if_match=stored["spec_digest"] if stored is not None else ""
    )
    applied = await declaration.apply(db, Declared(pools={pool_id: given}), change, providers)
    return RolledBack(
        to_revision=entry["revision"], digest=given.digest, applied=applied, revisions=in_force(revisions)
    )


async def _target(
    db: Connection, pool_id: str, present: WorkerPool | None, rollback: Rollback
) -> tuple[dict[str, Any], WorkerPool]:
    """Entry of the history to return to, and what is declared then."""
    if present is None and not rollback.whole:
        raise NothingToRollBack(
            f"worker pool {pool_id} is not declared; with --whole a rollback declares it as before its removal"
        )
    if rollback.to_revision is not None:
        entry = await history.get(db, pool_id, rollback.to_revision)
        if entry is None or not entry["spec"]:
            missing = "was removed in" if entry is not None else "has no"
            raise NothingToRollBack(
                f"worker pool {pool_id} {missing} entry {rollback.to_revision} of its history; "
                f"see `slipway pool history {pool_id}`"
            )
        return entry, returned(present, WorkerPool.model_validate(entry["spec"]), rollback)
    entries = await history.entries(db, pool_id)
    for revision in candidates(entries, whole=rollback.whole):
        entry = await history.get(db, pool_id, revision)
        if entry is None:
            continue  # deleted meanwhile, as the oldest ones are
        pool = returned(present, WorkerPool.model_validate(entry["spec"]), rollback)
        if not is_same(present, pool):
            return entry, pool
    raise NothingToRollBack(_nothing_left(pool_id, rollback, entries))


def _nothing_left(pool_id: str, rollback: Rollback, entries: Sequence[Entry]) -> str:
    """Reason why no entry can be returned to without being named, and what can be done instead."""
    what = "declaration" if rollback.whole else "revision of its launch configs"
    if any(entry.to_revision is not None for entry in entries):
        return (
            f"rollbacks of worker pool {pool_id} have left every earlier {what}; "
            f"choose an entry of `slipway pool history {pool_id}` with --to"
        )
    return (
        f"worker pool {pool_id} has had no other {what}; "
        f"`slipway pool set-image {pool_id} IMAGE --reason …` launches another image"
    )


def returned(present: WorkerPool | None, then: WorkerPool, rollback: Rollback) -> WorkerPool:
    """Declaration after a rollback to an entry that declared `then`.

    By default launch configs that were declared `then` and are at `present` get the body that they had. To a given
    entry all that it had return, and those declared since are left out. The user data of the pool are part of every
    body, and return with it. Weights and maxima stay as they are.
    """
    if present is None or rollback.whole:
        return then
    now, before = _by_name(present), _by_name(then)
    pairs = (
        [(config, before.get(name, config)) for name, config in now.items()]
        if rollback.to_revision is None
        else [(now.get(name, config), config) for name, config in before.items()]
    )
    configs = tuple(config.model_copy(update={field: getattr(body, field) for field in BODY}) for config, body in pairs)
    return present.model_copy(update={"launch_configs": configs, "user_data": then.user_data})


def is_same(one: WorkerPool | None, other: WorkerPool) -> bool:
    """True if both declare the same pool, in whatever order of launch configs."""
    return one is not None and _unordered(one) == _unordered(other)


def _unordered(pool: WorkerPool) -> tuple[WorkerPool, dict[str, LaunchConfig]]:
    return pool.model_copy(update={"launch_configs": ()}), _by_name(pool)


def _by_name(pool: WorkerPool) -> dict[str, LaunchConfig]:
    return {config_name(pool, config): config for config in pool.launch_configs}


def _revisions(pool: DeclaredPool, seen: Snapshot) -> list[RevisionRow]:
    """Revisions that are current once the pool is declared."""
    return [revision_of(config, seen.revisions.get(config.name, ())) for config in pool.configs]


def _is_current(revision: RevisionRow, seen: Snapshot) -> bool:
    stored = seen.names.get(revision.name)
    return stored is not None and stored.declared and stored.current_id == revision.id


async def _check_healthy(db: Connection, pool_id: str, targets: list[RevisionRow]) -> None:
    """Raise TargetTripped if one of the revisions is tripped."""
    keys = [key for target in targets for key in shared_keys(target)]
    reasons = await declarations.tripped(db, [target.id for target in targets], keys)
    for target in targets:
        for of in (target.id, *shared_keys(target)):
            if of in reasons:
                raise TargetTripped(
                    f"{target.id} is tripped: {reasons[of] or of}; choose another entry of "
                    f"`slipway pool history {pool_id}` with --to, or roll back with force if it is meant"
                )
