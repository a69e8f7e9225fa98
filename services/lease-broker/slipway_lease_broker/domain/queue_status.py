"""Status of a waiting request for its owner: position, expected wait, time of the next poll, reason. Pure; admission
does not use it."""

from datetime import datetime
from typing import Final

import msgspec

from slipway_lease_broker.domain.eta import eta_seconds
from slipway_lease_broker.domain.ledger import LeasePool, Request
from slipway_lease_broker.domain.limits import in_force, most_units
from slipway_lease_broker.domain.text import quantity

RETRY_SECONDS: Final = (1.0, 60.0)  # at least and at most


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    position: int
    eta_seconds: float | None  # None while no passage of time will let it start
    retry_after_seconds: float
    reason: str


def queue_status(
    pool: LeasePool,
    request: Request,
    position: int,
    now: datetime,
    *,
    granted_units: int,
    granted_seconds: float,
    backoff_until: datetime | None = None,
) -> QueueStatus:
    """The status of a request. `granted_units` in the last `granted_seconds` are the current rate, if known.
    `backoff_until` is when the tenant of the request may start again after its failures."""
    limit = in_force(pool)
    per_minute = round(60 * granted_units / granted_seconds) if granted_seconds > 1 else 0
    eta = eta_seconds(
        limit_units=limit.units,
        held_units=pool.held_cost,
        waiting_units=position + request.waiting_units - 2,
        granted_per_minute=per_minute,
        hold_seconds=pool.hold_seconds,
    )
    earliest = (request.since, pool.paced_until, pool.blocked_until, backoff_until)
    not_before = max(until for until in earliest if until)
    if never_fits(pool, request):
        eta = None
    if eta is not None:
        eta = max(eta, (not_before - now).total_seconds(), 0.0)
    shortest, longest = RETRY_SECONDS
    return QueueStatus(
        position=position,
        eta_seconds=None if eta is None else round(eta, 1),
        retry_after_seconds=longest if eta is None else min(longest, max(shortest, round(eta, 1))),
        reason=reason(pool, request, position, now, backoff_until),
    )


def never_fits(pool: LeasePool, request: Request) -> bool:
    """True if it requests more than the limit in force allows even with nothing held."""
    most = most_units(pool, request.operation, in_force(pool).units)
    is_whole = request.whole or request.gang_id is not None
    return most is not None and (most == 0 or (is_whole and request.waiting_units > most))


def reason(
    pool: LeasePool, request: Request, position: int, now: datetime, backoff_until: datetime | None = None
) -> str:
    """The reason why it has not been granted yet, as text for people."""
    limit = in_force(pool)
    held = f"{pool.held_cost} of {quantity(limit.units, 'unit')} held"
    ahead = f"; {position - 1} ahead" if position > 1 else ""
    if limit.units == 0:
        return f"the limit is 0: {limit.reason}"
    if never_fits(pool, request):
        units = quantity(request.waiting_units, "unit")
        return f"requests {units}, more than the limit of {limit.units} allows: {limit.reason}"
    if request.since > now:
        return f"its group starts it at {request.since.isoformat(timespec='seconds')}"
    if backoff_until is not None and backoff_until > now:
        until = backoff_until.isoformat(timespec="seconds")
        return f"tenant {request.tenant} backs off until {until} after failures"
    if pool.blocked_until is not None and pool.blocked_until > now:
        return f"the provider asked to wait until {pool.blocked_until.isoformat(timespec='seconds')}{ahead}"
    if pool.held_cost + request.waiting_units > limit.units:
        return f"{held} (limit {limit.reason}){ahead}"
    if pool.paced_until is not None and pool.paced_until > now:
        return f"starts are paced: {held}{ahead}"
    return f"{held}{ahead}"
