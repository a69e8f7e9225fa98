"""Changes made by a declaration of all lease pools. Pure.

The list is complete: a pool that it omits is retired, that is, its limit drops to 0. As with any lowered limit, leases
run on and requests wait. Declaring the pool again restores it.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from slipway_common.events.lease import LeaseLimitChanged
from slipway_lease_broker.domain.terms import Policy


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one lease pool; `revision` grows with every change."""

    id: str
    limit_units: int
    hold_seconds: float
    ttl_seconds: float
    reserve_seconds: float
    policy: Policy = Policy()
    revision: int = 1
    retired: bool = False


TERMS: Final = tuple(name for name in Declared.__struct_fields__ if name not in ("id", "revision", "retired"))


class PoolChange(msgspec.Struct, frozen=True, kw_only=True):
    """One pool before and after; `before` is None for a new one."""

    change: Literal["created", "updated", "restored", "retired", "unchanged"]
    before: Declared | None
    after: Declared


def compare(current: Sequence[Declared], wanted: Sequence[Declared]) -> list[PoolChange]:
    """One change per pool, declared or known, in order of ids; pools that stay retired are left out."""
    known = {pool.id: pool for pool in current}
    named = {pool.id: pool for pool in wanted}
    return [
        change(known.get(name), named.get(name))
        for name in sorted({*named, *(pool.id for pool in current if not pool.retired)})
    ]


def change(before: Declared | None, wanted: Declared | None) -> PoolChange:
    if before is None:
        assert wanted is not None
        return PoolChange(change="created", before=None, after=wanted)
    if wanted is None:
        retired = msgspec.structs.replace(before, limit_units=0, retired=True, revision=before.revision + 1)
        return PoolChange(change="retired", before=before, after=retired)
    if not before.retired and all(getattr(before, term) == getattr(wanted, term) for term in TERMS):
        return PoolChange(change="unchanged", before=before, after=before)
    after = msgspec.structs.replace(wanted, revision=before.revision + 1)
    return PoolChange(change="restored" if before.retired else "updated", before=before, after=after)


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
