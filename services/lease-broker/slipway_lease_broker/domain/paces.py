"""Paces of a lease pool: each operation is paced by itself, so that none waits for the starts of another. Pure.

An operation that its pool does not declare is paced by itself too, but only OPERATIONS_MAX of these at a time; further
ones share one pace. Otherwise callers that name an operation after each of their jobs would not be paced at all.
"""

from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from slipway_lease_broker.domain import pacing
from slipway_lease_broker.domain.adaptive import Adaptive, even_pacing
from slipway_lease_broker.domain.ledger import LeasePool
from slipway_lease_broker.domain.limits import Limit, adaptive_terms
from slipway_lease_broker.domain.pacing import Pace, Pacing
from slipway_lease_broker.domain.terms import Policy

OPERATIONS_MAX: Final = 4
SHARED: Final = ""  # key of the pace of all others; no operation has this name


class Paced(Protocol):
    """Terms and state of a lease pool that determine its pacing."""

    @property
    def policy(self) -> Policy: ...
    @property
    def hold_seconds(self) -> float: ...
    @property
    def adaptive(self) -> Adaptive | None: ...
    @property
    def paces(self) -> dict[str, Pace]: ...


class Paces:
    """The paces of one round: the pool's, under the limit in force, and the starts of the round."""

    def __init__(self, pool: LeasePool, limit: Limit, now: datetime) -> None:
        self._pool, self._limit, self._now = pool, limit, now
        self._pacing: dict[str, Pacing | None] = {}  # by operation, once it was needed
        ahead = {key: pace for key, pace in pool.paces.items() if pace.until > now}
        self._until = {key: until for key, pace in ahead.items() if (until := self._converted(key, pace)) is not None}

    def pacing(self, operation: str) -> Pacing | None:
        """Pacing of an operation; None: its starts are not paced."""
        if operation not in self._pacing:
            self._pacing[operation] = pacing_of(self._pool, operation, self._limit.units)
        return self._pacing[operation]

    def free_at(self, operation: str, units: int) -> datetime:
        """Time at which `units` may start together; now when they may start at once."""
        terms = self.pacing(operation)
        return self._now if terms is None else pacing.free_at(self.until(operation), self._now, units, terms)

    def units_now(self, operation: str, units: int) -> int:
        """Number of units, of so many that need not start together, that may start now."""
        terms = self.pacing(operation)
        return units if terms is None else min(units, pacing.units_now(self.until(operation), self._now, terms))

    def until(self, operation: str) -> datetime | None:
        """Theoretical arrival time of the next start of an operation; None: nothing lies ahead."""
        return self._until.get(self.key(operation))

    def spend(self, operation: str, units: int) -> None:
        """Count a start of `units` now."""
        if (terms := self.pacing(operation)) is None:
            return
        key = self.key(operation)
        most = pacing.most_ahead(terms, self._limit.units, self._pool.hold_seconds)
        until = pacing.spend(self._until.get(key), self._now, units, terms, most)
        if until is not None:
            self._until[key] = until

    def after(self) -> dict[str, Pace]:
        """Paces after the round, by operation."""
        terms = {key: self.pacing(key) for key in self._until}
        return {
            key: Pace(until=self._until[key], interval_seconds=of.interval_seconds)
            for key, of in terms.items()
            if of is not None
        }

    def key(self, operation: str) -> str:
        """Key of the pace of an operation: others may share it."""
        declared = self._pool.policy.operations
        if operation in declared or operation in self._until:
            return operation
        own = sum(key not in declared and key != SHARED for key in self._until)
        return operation if own < OPERATIONS_MAX else SHARED

    def _converted(self, operation: str, pace: Pace) -> datetime | None:
        """`until` of a pace under the terms of now."""
        terms = self.pacing(operation)
        if terms is not None and terms.interval_seconds == pace.interval_seconds:
            return pace.until
        return pacing.repaced(pace.until, self._now, Pacing(pace.interval_seconds), terms)


def pacing_of(pool: Paced, operation: str, limit_units: int) -> Pacing | None:
    """The pacing in force for an operation of a pool; None: its starts are not paced."""
    policy = pool.policy
    declared = policy.operation(operation).pacing or policy.pacing
    if isinstance(declared, str):
        return None
    if declared is not None:
        return declared
    bounds, state = policy.adaptive, pool.adaptive
    if bounds is not None and state is not None and state.units == limit_units:  # it is the limit in force
        return even_pacing(state, adaptive_terms(pool.hold_seconds, bounds), policy.max_interval_seconds)
    if limit_units == 0 and operation in pool.paces:
        # Stopped for a while: converting `until` to the pace of a limit of 0 and back would lose most of it.
        return Pacing(pool.paces[operation].interval_seconds)
    return pacing.default_pacing(limit_units, pool.hold_seconds, policy.max_interval_seconds)


def pacing_in_force(pool: Paced, limit_units: int) -> dict[str, Any]:
    """Pacing of a pool as shown: that of each declared operation, and that of all others. None: not paced."""
    return {
        "default": pacing_of(pool, SHARED, limit_units),
        "operations": {name: pacing_of(pool, name, limit_units) for name in pool.policy.operations},
    }


def expected_wait(pool: Paced, limit_units: int, waiting_units: int, now: datetime) -> timedelta:
    """Expected wait of a new request for its pace alone, if so many units wait ahead of it: that of the operation whose
    starts are paced for longest."""
    waits = [timedelta()]
    for operation, pace in pool.paces.items():
        terms = pacing_of(pool, operation, limit_units)
        if terms is not None and pace.until > now:
            waits.append(pacing.free_at(pace.until, now, 1, terms) - now + waiting_units * terms.interval)
    return max(waits)
