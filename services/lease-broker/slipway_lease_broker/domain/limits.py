"""The limit in force of a lease pool and its reason. Pure.

In this order: the limit of an archived or drained pool is 0; a pinned pool has its declared limit until an operator
unpins it; a derived limit follows the units reported last; an adaptive limit follows throttle evidence; all other
limits are as declared.
"""

import sys
from datetime import datetime
from fractions import Fraction
from typing import Final

import msgspec

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_identity
from slipway_lease_broker.domain.adaptive import Adaptive, AdaptiveTerms, adapt, initial_adaptive, rises_at
from slipway_lease_broker.domain.commands import UNITS_MAX
from slipway_lease_broker.domain.ledger import LeasePool
from slipway_lease_broker.domain.terms import Bounds
from slipway_lease_broker.domain.text import quantity
from slipway_lease_broker.domain.unleased import Allowance

IN_USE: Final = 0.9  # share of the limit that counts as fully used: with paced starts the last unit is seldom in use


class Limit(msgspec.Struct, frozen=True):
    """A limit with its reason; `cause` is one word for metrics."""

    units: int
    cause: str
    reason: str


def in_force(pool: LeasePool) -> Limit:
    if pool.archived:
        return Limit(0, "archived", "archived")
    if pool.drained_reason is not None:
        return Limit(0, "drained", f"drained: {pool.drained_reason}")
    if pool.pinned_reason is not None:
        return Limit(pool.limit_units, "pinned", f"pinned: {pool.pinned_reason}")
    policy = pool.policy
    if policy.derived is not None and pool.derived_units is not None:
        # Exact: in floats 100 × 0.29 is 28.999….
        units = min(UNITS_MAX, int(Fraction(str(policy.derived.per_unit)) * pool.derived_units))
        stale = " (stale report)" if pool.derived_alerted else ""
        derived = quantity(pool.derived_units, "unit")
        return Limit(units, "derived", f"derived: {policy.derived.per_unit:g} × {derived}{stale}")
    if policy.adaptive is not None and pool.adaptive is not None:
        return Limit(pool.adaptive.units, "adaptive", "adaptive")
    return Limit(pool.limit_units, "declared", "as declared")


def highest(pool: LeasePool) -> Limit:
    """Highest limit possible under the declared terms; unbounded if unknown. A limit of 0 counts as unknown, since it
    stops a pool only for a while."""
    policy = pool.policy
    units = pool.limit_units if policy.adaptive is None else max(pool.limit_units, policy.adaptive.ceiling)
    return Limit(units if units and policy.derived is None else sys.maxsize, "declared", "as declared")


def allowance(pool: LeasePool, units: int, waited_cost: int, *, unleased_max: int | None) -> Allowance:
    """Unleased units that a reporter may still count against a pool: up to its `unleased_max`, by default what it could
    hold, less the `units` of it that count already. Those whose request waited block new grants by no more than the
    limit, less the `waited_cost` of all that count already."""
    most = max(pool.limit_units, in_force(pool).units)
    own = most if unleased_max is None else unleased_max
    return Allowance(units_max=own, units=max(0, own - units), waited_cost=max(0, most - waited_cost))


def adapted(pool: LeasePool, now: datetime) -> tuple[LeasePool, str]:
    """The pool after the evidence received since the last decision, and the reason of a changed limit; "" if it did not
    change."""
    bounds = pool.policy.adaptive
    if bounds is None:
        return (pool if pool.adaptive is None and not pool.evidence else _with(pool, None)), ""
    terms = adaptive_terms(pool.hold_seconds, bounds)
    state, reason = adapt(
        pool.adaptive or initial_adaptive(pool.limit_units, terms, now),
        terms,
        pool.evidence,
        saturated=saturated(pool),
        now=now,
        pinned=pool.pinned_reason is not None,
    )
    return _with(pool, state), reason


def saturated(pool: LeasePool) -> bool:
    """True if more units are wanted than the adaptive limit has, and it is in use; otherwise there is no evidence that
    it could be higher."""
    limit = pool.adaptive.units if pool.adaptive is not None else pool.limit_units
    return pool.held_cost + pool.waiting_units > limit and pool.held_cost >= IN_USE * limit


def reconsider_at(pool: LeasePool, now: datetime) -> datetime | None:
    """The next time at which the limit may change by itself: an adaptive limit in use may rise, a report may become
    stale."""
    policy, state = pool.policy, pool.adaptive
    if policy.derived is not None and pool.derived_until is not None and not pool.derived_alerted:
        return pool.derived_until
    if policy.adaptive is None or state is None or pool.pinned_reason is not None or not saturated(pool):
        return None
    if state.limit >= policy.adaptive.ceiling:
        return None
    return max(now, rises_at(state, adaptive_terms(pool.hold_seconds, policy.adaptive)))


def aged(pool: LeasePool, now: datetime) -> tuple[LeasePool, AlertRaised | AlertResolved | None]:
    """The pool after the report that its limit derives from became stale or was renewed, and the alert for that."""
    old = pool.policy.derived is not None and pool.derived_until is not None and pool.derived_until <= now
    if old == pool.derived_alerted:
        return pool, None
    alert = Alert(
        **alert_identity("lease-broker", "lease-pool-units-stale", "lease-pool", pool.id),
        summary=f"lease pool {pool.id}: the units that its limit derives from were not reported in time",
        effect=f"its limit stays at the value for {quantity(pool.derived_units or 0, 'unit')}, which may be outdated",
        doing="keeps the last limit until units are reported again",
        command=f"slipway lease units {pool.id} {pool.derived_units or 0}",
        since=pool.derived_until,
        cause="the reporter of the units has stopped reporting",
        severity="notice",
    )
    kind = AlertRaised if old else AlertResolved
    return msgspec.structs.replace(pool, derived_alerted=old), kind(**msgspec.structs.asdict(alert))


def adaptive_terms(hold_seconds: float, bounds: Bounds) -> AdaptiveTerms:
    return AdaptiveTerms(floor=bounds.floor, ceiling=bounds.ceiling, window_seconds=hold_seconds)


def _with(pool: LeasePool, state: Adaptive | None) -> LeasePool:
    return msgspec.structs.replace(pool, adaptive=state, evidence=())
