"""What somebody who waits is told: a place, an estimate, when to ask again, and why. Pure; admission looks at none of
it."""

from datetime import datetime
from typing import Final

import msgspec

from slipway_lease_broker.domain.eta import eta_seconds
from slipway_lease_broker.domain.ledger import LeasePool, Request
from slipway_lease_broker.domain.limits import in_force, most_units

RETRY_SECONDS: Final = (1.0, 60.0)  # at least and at most


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    position: int
    eta_seconds: float | None  # None while time alone will not let it start
    retry_after_seconds: float
    reason: str


def told(
    pool: LeasePool,
    request: Request,
    position: int,
    now: datetime,
    *,
    granted_units: int,
    granted_seconds: float,
    backoff_until: datetime | None = None,
) -> Waiting:
    """`granted_units` were granted lately, in `granted_seconds`: that is the pace, where it is known. `backoff_until`
    is when the request's tenant may start again after its failures."""
    limit = in_force(pool)
    per_minute = round(60 * granted_units / granted_seconds) if granted_seconds > 1 else 0
    eta = eta_seconds(
        limit_units=limit.units,
        held_units=pool.held_cost,
        waiting_units=position + request.waiting_units - 2,
        granted_per_minute=per_minute,
        hold_seconds=pool.hold_seconds,
    )
    gates = (request.since, pool.paced_until, pool.blocked_until, backoff_until)
    not_before = max(until for until in gates if until)
    if never_fits(pool, request):
        eta = None
    if eta is not None:
        eta = max(eta, (not_before - now).total_seconds(), 0.0)
    shortest, longest = RETRY_SECONDS
    return Waiting(
        position=position,
        eta_seconds=None if eta is None else round(eta, 1),
        retry_after_seconds=longest if eta is None else min(longest, max(shortest, round(eta, 1))),
        reason=reason(pool, request, position, now, backoff_until),
    )


def never_fits(pool: LeasePool, request: Request) -> bool:
    """Whether it asks for more than the limit in force allows, were nothing held."""
    most = most_units(pool, request.operation, in_force(pool).units)
    is_whole = request.whole or request.gang_id is not None
    return most is not None and (most == 0 or (is_whole and request.waiting_units > most))


def reason(
    pool: LeasePool, request: Request, position: int, now: datetime, backoff_until: datetime | None = None
) -> str:
    """Why it was not granted yet, in words."""
    limit = in_force(pool)
    held = f"{pool.held_cost} of {limit.units} units are held"
    ahead = f"; {position - 1} ahead" if position > 1 else ""
    if limit.units == 0:
        return f"nothing starts: {limit.reason}"
    if never_fits(pool, request):
        return f"asks for {request.waiting_units} units, more than the limit of {limit.units} allows: {limit.reason}"
    if request.since > now:
        return f"its group lets it start at {request.since.isoformat(timespec='seconds')}"
    if backoff_until is not None and backoff_until > now:
        until = backoff_until.isoformat(timespec="seconds")
        return f"{request.tenant} backs off until {until}: what it started failed"
    if pool.blocked_until is not None and pool.blocked_until > now:
        return f"the provider asked to wait until {pool.blocked_until.isoformat(timespec='seconds')}{ahead}"
    if pool.held_cost + request.waiting_units > limit.units:
        return f"{held}, limit {limit.reason}{ahead}"
    if pool.paced_until is not None and pool.paced_until > now:
        return f"starts are paced; {held}{ahead}"
    return f"{held}{ahead}"
