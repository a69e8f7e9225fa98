"""Rolls a pool back to a revision of its history."""

from typing import Any

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.declaration.models import WorkerPool
from slipway_common.events.scopes import credential_key, image_key, quota_key
from slipway_provisioner.apply import declaration
from slipway_provisioner.apply.reading import Declared, GivenPool, spec_digest
from slipway_provisioner.domain.comparison import DeclaredPool, revision_of
from slipway_provisioner.domain.declaration import Applied, Known, Request
from slipway_provisioner.domain.revisions import RevisionRow
from slipway_provisioner.store import declarations, history


class NothingToRollBack(Exception):
    """The history of the pool has no such revision. Nothing was changed."""


class TargetTripped(Exception):
    """A revision that the rollback would launch is tripped. Nothing was changed."""


async def roll_back(
    db: Connection, pool_id: str, to_revision: int | None, request: Request, *, force: bool
) -> tuple[int, str, Applied]:
    """Declare a pool as in a revision of its history [default: the one before the last change of what was declared].

    Returns this revision, the digest of what is declared now, and the changes. Raises NothingToRollBack, TargetTripped
    unless `force`, and what `apply` raises.
    """
    index = await declarations.index(db)
    stored = index.pools.get(pool_id, Known("", ""))
    below = None
    while True:
        entry = await _target(db, pool_id, to_revision, stored, below)
        pool = WorkerPool.model_validate(entry["spec"])
        spec = pool.model_dump(mode="json")
        given = GivenPool(stored.owner or entry["owner"], spec, spec_digest(spec), pool)
        if not force:
            await _check_healthy(db, given.rows(index.regions))
        declared = Declared(pools={pool_id: given})
        change = msgspec.structs.replace(request, to_revision=entry["revision"])
        applied = await declaration.apply(db, declared, change)
        if applied.changes or to_revision is not None:
            return entry["revision"], given.digest, applied
        below = entry["revision"]  # the same in other words, such as another order of launch configs


async def _target(
    db: Connection, pool_id: str, to_revision: int | None, stored: Known, below: int | None
) -> dict[str, Any]:
    """Entry of the history to return to: a given one, else the newest other one, `below` a revision if given."""
    if to_revision is None:
        entry = await history.before(db, pool_id, stored.digest, below)
        missing = f"worker pool {pool_id} was never declared otherwise"
    else:
        entry = await history.get(db, pool_id, to_revision)
        missing = f"worker pool {pool_id} has no revision {to_revision}"
    if entry is None or not entry["spec"]:
        raise NothingToRollBack(f"{missing}; see `slipway pool history {pool_id}`")
    return entry


async def _check_healthy(db: Connection, pool: DeclaredPool) -> None:
    """Raise TargetTripped if a revision that is not current now, and would be then, is tripped."""
    seen = await declarations.snapshot(db, accounts=(), pools=(), config_names=[config.name for config in pool.configs])
    targets: list[RevisionRow] = []
    for config in pool.configs:
        known = {stored.id: stored.digest for stored in seen.revisions.get(config.name, ())}
        target = revision_of(config, known)
        stored = seen.names.get(config.name)
        if stored is None or not stored.declared or stored.current_id != target.id:
            targets.append(target)
    reasons = await declarations.tripped(db, [target.id for target in targets], _keys(targets))
    for target in targets:
        for of in (target.id, *_keys([target])):
            if of in reasons:
                raise TargetTripped(f"{target.id} is tripped: {reasons[of] or of}; roll back with force if it is meant")


def _keys(targets: list[RevisionRow]) -> list[str]:
    """Keys of what the revisions share with others."""
    return [
        key.text
        for target in targets
        for key in (
            image_key(target.image_revision),
            quota_key(target.account_id, target.region, target.instance_type),
            credential_key(target.account_id),
        )
    ]
