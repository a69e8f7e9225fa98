"""Status of a waiting request for its owner: position, expected wait, time of the next poll, reason and code. Pure.

The reason is that of the verdict of admission (admit.py) on the request. The status adds the time at which the verdict
may change by itself, the number of requests ahead, and the time by which the leases that it waits for end.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_lease_broker.domain.admit import Admission
from slipway_lease_broker.domain.eta import eta_seconds
from slipway_lease_broker.domain.gangs import find_blocked_gangs
from slipway_lease_broker.domain.ledger import Group, LeasePool, Request, Tenant
from slipway_lease_broker.domain.limits import in_force
from slipway_lease_broker.domain.rules import Cause, never_starts
from slipway_lease_broker.domain.situation import Situation

RETRY_SECONDS: Final = (1.0, 60.0)  # at least and at most
BEHIND_LEASES_SECONDS_MIN: Final = 1.0  # the end of a lease takes a decision


class HoldEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A held lease: the time at which it ends unless it is released before, and its cost."""

    at: datetime
    cost: int


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
    hold_ends: Sequence[HoldEnd] = ()  # of the counted leases of its pool, in order; none if they are too many


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    position: int
    eta_seconds: float | None  # None while no passage of time will let it start
    retry_after_seconds: float
    reason: str
    cause: Cause
    held_until: datetime | None  # when enough held leases have ended; None: it waits for none, or this is unknown


def queue_status(place: QueuePosition) -> QueueStatus:
    """Status of a request at a position of the queue. A request that may start now waits behind those ahead."""
    admission = at_its_turn(place)
    verdict = admission.verdict(place.request)
    reason = admission.usage(place.request.operation) if verdict.units else verdict.reason
    until = "" if verdict.until is None else f"not before {verdict.until.isoformat(timespec='seconds')}"
    if verdict.cause is Cause.PACED:
        until = ""  # the reason names the next start
    ahead = f"{place.position - 1} ahead" if place.position > 1 else ""
    starts = never_starts(place.pool, admission.limit, place.request) is None
    missing = _missing_cost(place, admission) if starts else 0
    held_until = _held_until(place.hold_ends, missing)
    eta = _eta_seconds(place, admission, verdict.until, missing, held_until) if starts else None
    free = "" if held_until is None else f"free by {held_until.isoformat(timespec='seconds')}"
    shortest, longest = RETRY_SECONDS
    return QueueStatus(
        position=place.position,
        eta_seconds=None if eta is None else round(eta, 1),
        retry_after_seconds=longest if eta is None else min(longest, max(shortest, round(eta, 1))),
        reason="; ".join(filter(None, (reason, until, free, ahead))),
        cause=verdict.cause,
        held_until=held_until,
    )


def at_its_turn(place: QueuePosition) -> Admission:
    """Round of admission in which the request has its turn now."""
    situation = Situation(
        waiters=[place.request],
        per_queue=2,
        tenants=[] if place.tenant is None else [place.tenant],
        groups=[] if place.group is None else [place.group],
        blocked_gangs=find_blocked_gangs(place.elsewhere, {pool.id: pool for pool in place.other_pools}),
    )
    return Admission(place.pool, in_force(place.pool), situation, place.now)


def _missing_cost(place: QueuePosition, admission: Admission) -> int:
    """Cost that held leases have to free before the request and those ahead of it have started."""
    operation = place.request.operation
    wanted = (place.position - 1 + place.request.waiting_units) * place.pool.policy.operation(operation).weight
    return max(0, wanted - admission.free_cost(operation))


def _held_until(hold_ends: Sequence[HoldEnd], missing: int) -> datetime | None:
    freed = 0
    for end in hold_ends if missing else ():
        freed += end.cost
        if freed >= missing:
            return end.at
    return None


def _eta_seconds(
    place: QueuePosition, admission: Admission, until: datetime | None, missing: int, held_until: datetime | None
) -> float | None:
    pool, request, tenant, now = place.pool, place.request, place.tenant, place.now
    eta = eta_seconds(
        limit_units=admission.limit.units,
        held_units=admission.limit.units,
        waiting_units=missing - 1,
        granted_per_minute=round(60 * place.granted_units / place.granted_seconds) if place.granted_seconds > 1 else 0,
        hold_seconds=pool.hold_seconds,
    )
    if eta is None:
        return None
    if held_until is not None:
        eta = min(eta, (held_until - now).total_seconds())
    if missing:
        eta = max(eta, BEHIND_LEASES_SECONDS_MIN)
    pacing = admission.paces.pacing(request.operation)
    paced_until = admission.paces.free_at(request.operation, request.waiting_units)
    if pacing is not None:
        paced_until += (place.position - 1) * pacing.interval
    earliest = [until, request.since, paced_until, pool.blocked_until]
    if tenant is not None:
        earliest += [tenant.backoff_until, tenant.held_back_until]
    return max(eta, (max(at for at in earliest if at) - now).total_seconds(), 0.0)
