"""Changes made by a declaration of lease pools. Pure.

A declaration consists of documents, each complete for its owner: a lease pool that its owner declared before and leaves
out now is archived, that is, its limit drops to 0. As with any lowered limit, leases run on and requests wait.
Declaring it again reactivates it. A lease pool without an owner belongs to the document that declares it first.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_api.events.lease import LeaseLimitChanged
from slipway_api.http.declaration import Change
from slipway_common.base.audited import AuditedChange, AuditedKind
from slipway_common.declaration.changes import (
    Danger,
    ForeignOwner,
    OwnedByAnother,
    Result,
    changes_digest,
    difference,
    is_among,
    maximum_danger,
    removed_danger,
)
from slipway_lease_broker.domain.terms import Policy

KIND: Final = "lease pool"


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one lease pool; `revision` grows with every change. `owner` is the document that declares it, empty
    for one that was imported or archived."""

    id: str
    limit_units: int
    hold_seconds: float
    ttl_seconds: float
    reserve_seconds: float
    policy: Policy = Policy()
    owner: str = ""
    revision: int = 1
    archived: bool = False


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """Lease pools as declared by their owners. `owners` includes those of documents without lease pools.

    `prune` archives also what other owners declared and these documents leave out; `adopt` takes lease pools over from
    other owners. `permitted` are the owners whose lease pools the caller may change; None: all.
    """

    owners: frozenset[str]
    pools: Sequence[Declared]
    prune: bool = False
    adopt: bool = False
    permitted: tuple[str, ...] | None = None

    def check(self, owner: str, what: str = "the declaration") -> None:
        """Raise ForeignOwner unless the caller may change what this owner has declared."""
        if not is_among(owner, self.permitted):
            raise ForeignOwner(owner, what)


TERMS: Final = tuple(name for name in Declared.__struct_fields__ if name not in ("id", "revision", "archived"))


class PoolChange(msgspec.Struct, frozen=True, kw_only=True):
    """One pool before and after; `before` is None for a new one."""

    result: Result
    before: Declared | None
    after: Declared

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """Value before and after of each field that changes, with the names of slipway.yaml."""
        after, before = shown(self.after), shown(self.before) if self.before else {}
        known = {name: (before.get(name), value) for name, value in after.items()}
        return {name: pair for name, pair in known.items() if pair[0] != pair[1] and name != "id"}

    def shown(self) -> Change:
        changed = detail(self.fields) if self.result == "updated" else ""
        return Change(kind=KIND, id=self.after.id, result=self.result, detail=changed)


def compare(current: Sequence[Declared], wanted: Declaration) -> list[PoolChange]:
    """One change per pool that is declared or archived, in order of ids. Raises OwnedByAnother, ForeignOwner."""
    known = {pool.id: pool for pool in current}
    named = {pool.id: pool for pool in wanted.pools}
    for owner in sorted(wanted.owners):
        wanted.check(owner)
    for pool in wanted.pools:
        before = known.get(pool.id)
        if before is not None and not before.archived:
            wanted.check(before.owner, f"{KIND} {pool.id}")
        if before and before.owner not in ("", *wanted.owners) and not wanted.adopt:
            raise OwnedByAnother(KIND, pool.id, before.owner, pool.owner)
    prune = wanted.prune and bool(wanted.owners)  # who declares nothing has not left anything out
    left_out = {
        pool.id for pool in current if not pool.archived and (prune or pool.owner in wanted.owners)
    } - named.keys()
    for name in sorted(left_out):
        wanted.check(known[name].owner, f"{KIND} {name}")
    return [change(known.get(name), named.get(name)) for name in sorted(named.keys() | left_out)]


def change(before: Declared | None, wanted: Declared | None) -> PoolChange:
    """Change of one pool to the `wanted` terms; None archives it."""
    if before is None:
        assert wanted is not None
        return PoolChange(result="created", before=None, after=wanted)
    if wanted is None:
        archived = msgspec.structs.replace(before, limit_units=0, owner="", archived=True, revision=before.revision + 1)
        return PoolChange(result="archived", before=before, after=archived)
    if not before.archived and all(getattr(before, term) == getattr(wanted, term) for term in TERMS):
        return PoolChange(result="unchanged", before=before, after=before)
    after = msgspec.structs.replace(wanted, revision=before.revision + 1)
    return PoolChange(result="reactivated" if before.archived else "updated", before=before, after=after)


def digest(changes: Sequence[PoolChange]) -> str:
    """Digest of changes with their dangers and the terms that are declared by them."""
    made = [change for change in changes if change.result != "unchanged"]
    terms = [msgspec.json.encode(shown_terms(change.after), order="sorted").decode() for change in made]
    return changes_digest([change.shown() for change in made], [*(danger.text for danger in dangers(made)), *terms])


def dangers(changes: Sequence[PoolChange]) -> list[Danger]:
    """Dangers of changes that need a confirmation: removed pools, and limits that grow too much. A lowered limit stops
    nothing that runs, and is the answer to throttling."""
    return [danger for made in changes for danger in _dangers(made)]


def _dangers(made: PoolChange) -> Iterator[Danger]:
    before, after = made.before, made.after
    if made.result == "archived":
        yield removed_danger(KIND, after.id)
    elif before is not None and not before.archived:
        limits = {(before.limit_units, after.limit_units), (ceiling(before), ceiling(after))}
        found = (maximum_danger(KIND, after.id, *pair) for pair in sorted(limits))
        yield from (danger for danger in found if danger is not None)


def ceiling(pool: Declared) -> int:
    """Largest adaptive limit; without one, the limit."""
    bounds = pool.policy.adaptive
    return pool.limit_units if bounds is None else bounds.ceiling


def shown(pool: Declared) -> dict[str, Any]:
    """A pool with the names of slipway.yaml."""
    fields: dict[str, Any] = msgspec.to_builtins(pool)
    return {"id": fields.pop("id"), "limit": fields.pop("limit_units"), **fields.pop("policy"), **fields}


def shown_terms(pool: Declared) -> dict[str, Any]:
    """The terms of a pool as they are declared in slipway.yaml."""
    return {name: value for name, value in shown(pool).items() if name not in ("owner", "revision", "archived")}


def detail(fields: Mapping[str, tuple[Any, Any]]) -> str:
    """Changed fields as text; the revision is left out, since it changes with every field."""
    return ", ".join(difference(name, old, new) for name, (old, new) in fields.items() if name != "revision")


def audited(made: PoolChange) -> AuditedChange:
    """Change of a lease pool as the audit records it: the fields that changed, before and after."""
    before = {name: old for name, (old, _) in made.fields.items()} if made.before else None
    after = {name: new for name, (_, new) in made.fields.items()}
    return AuditedChange(
        kind=AuditedKind.LEASE_POOL, subject_id=made.after.id, result=made.result, before=before, after=after
    )


def limit_events(changes: Sequence[PoolChange], reason: str) -> list[LeaseLimitChanged]:
    """LeaseLimitChanged for each changed limit. Other terms need no event: they reach holders with their grants."""
    return [
        LeaseLimitChanged(
            lease_pool_id=made.after.id,
            limit=made.after.limit_units,
            previous_limit=made.before.limit_units if made.before else None,
            reason=reason,
        )
        for made in changes
        if made.before is None or made.before.limit_units != made.after.limit_units
    ]
