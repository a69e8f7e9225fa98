"""Status of a waiting request for its owner: position, expected wait, time of the next poll, reason. Pure.

The reason is the verdict of admission (admit.py) on the request, with the times and the limit behind it.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_lease_broker.domain.admit import Admission, Cause, Verdict
from slipway_lease_broker.domain.eta import eta_seconds
from slipway_lease_broker.domain.gangs import find_blocked_gangs
from slipway_lease_broker.domain.ledger import Group, LeasePool, Request, Tenant
from slipway_lease_broker.domain.limits import in_force, most_units
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.domain.text import quantity

RETRY_SECONDS: Final = (1.0, 60.0)  # at least and at most


class QueuePosition(msgspec.Struct, frozen=True, kw_only=True):
    """A request with its position in the queue, and the rows that decide when it starts."""

    request: Request
    position: int  # from 1
    pool: LeasePool
    now: datetime
    granted_units: int  # in the last `granted_seconds`: the current rate, if known
    granted_seconds: float
    tenant: Tenant | None = None
    group: Group | None = None
    elsewhere: Sequence[Request] = ()  # the other requests of its gang
    other_pools: Sequence[LeasePool] = ()  # of these


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    position: int
    eta_seconds: float | None  # None while no passage of time will let it start
    retry_after_seconds: float
    reason: str


def queue_status(place: QueuePosition) -> QueueStatus:
    """The status of a request at a position of the queue."""
    eta = _eta_seconds(place)
    shortest, longest = RETRY_SECONDS
    return QueueStatus(
        position=place.position,
        eta_seconds=None if eta is None else round(eta, 1),
        retry_after_seconds=longest if eta is None else min(longest, max(shortest, round(eta, 1))),
        reason=reason(place, verdict(place)),
    )


def _eta_seconds(place: QueuePosition) -> float | None:
    pool, request, tenant = place.pool, place.request, place.tenant
    if never_fits(pool, request):
        return None
    per_minute = round(60 * place.granted_units / place.granted_seconds) if place.granted_seconds > 1 else 0
    eta = eta_seconds(
        limit_units=in_force(pool).units,
        held_units=pool.held_cost,
        waiting_units=place.position + request.waiting_units - 2,
        granted_per_minute=per_minute,
        hold_seconds=pool.hold_seconds,
    )
    earliest = (request.since, pool.paced_until, pool.blocked_until, tenant.backoff_until if tenant else None)
    not_before = max(until for until in earliest if until)
    return None if eta is None else max(eta, (not_before - place.now).total_seconds(), 0.0)


def never_fits(pool: LeasePool, request: Request) -> bool:
    """True if it requests more than the limit in force allows even with nothing held."""
    most = most_units(pool, request.operation, in_force(pool).units)
    is_whole = request.whole or request.gang_id is not None
    return most is not None and (most == 0 or (is_whole and request.waiting_units > most))


def verdict(place: QueuePosition) -> Verdict:
    """The verdict of admission on the request if it had its turn now."""
    situation = Situation(
        waiters=[place.request],
        per_queue=2,
        tenants=[] if place.tenant is None else [place.tenant],
        groups=[] if place.group is None else [place.group],
        blocked_gangs=find_blocked_gangs(place.elsewhere, {pool.id: pool for pool in place.other_pools}),
    )
    admission = Admission(place.pool, in_force(place.pool).units, situation, place.now)
    return admission.verdict(place.request)


def reason(place: QueuePosition, verdict: Verdict) -> str:
    """The reason why a request has not been granted yet, as text for people. One that may start now waits behind the
    others."""
    limit = in_force(place.pool)
    held = f"{place.pool.held_cost} of {quantity(limit.units, 'unit')} held"
    ahead = f"; {place.position - 1} ahead" if place.position > 1 else ""
    until = "" if verdict.until is None else verdict.until.isoformat(timespec="seconds")
    match verdict.cause:
        case Cause.STOPPED:
            return f"the limit is 0: {verdict.reason}"
        case Cause.LIMIT if limit.units == 0:
            return f"the limit is 0: {limit.reason}"
        case Cause.LIMIT:
            units = quantity(place.request.waiting_units, "unit")
            return f"requests {units}, more than the limit of {limit.units} allows: {limit.reason}"
        case Cause.GROUP:
            return f"its group starts it at {until}"
        case Cause.BACKOFF:
            return f"tenant {place.request.tenant} backs off until {until} after failures"
        case Cause.PROVIDER:
            return f"the provider asked to wait until {until}{ahead}"
        case Cause.UNITS:
            return f"{held} (limit {limit.reason}){ahead}"
        case Cause.PACING:
            return f"starts are paced: {held}{ahead}"
        case None if verdict.units:
            return f"{held}{ahead}"
    return f"{verdict.reason}; not before {until}{ahead}" if until else f"{verdict.reason}{ahead}"
