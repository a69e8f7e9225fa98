"""Status of a waiting request for its owner: position, expected wait, time of the next poll, reason and code. Pure.

The reason is that of the verdict of admission (admit.py) on the request. The status adds the time at which the verdict
may change by itself, and the number of requests ahead.
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
    cause: Cause


def queue_status(place: QueuePosition) -> QueueStatus:
    """Status of a request at a position of the queue. A request that may start now waits behind those ahead."""
    admission = at_its_turn(place)
    verdict = admission.verdict(place.request)
    reason = admission.usage(place.request.operation) if verdict.units else verdict.reason
    until = "" if verdict.until is None else f"not before {verdict.until.isoformat(timespec='seconds')}"
    ahead = f"{place.position - 1} ahead" if place.position > 1 else ""
    eta = _eta_seconds(place, verdict.until)
    shortest, longest = RETRY_SECONDS
    return QueueStatus(
        position=place.position,
        eta_seconds=None if eta is None else round(eta, 1),
        retry_after_seconds=longest if eta is None else min(longest, max(shortest, round(eta, 1))),
        reason="; ".join(filter(None, (reason, until, ahead))),
        cause=verdict.cause,
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


def _eta_seconds(place: QueuePosition, until: datetime | None) -> float | None:
    pool, request, tenant = place.pool, place.request, place.tenant
    limit = in_force(pool)
    if never_starts(pool, limit, request) is not None:
        return None
    per_minute = round(60 * place.granted_units / place.granted_seconds) if place.granted_seconds > 1 else 0
    eta = eta_seconds(
        limit_units=limit.units,
        held_units=pool.held_cost,
        waiting_units=place.position + request.waiting_units - 2,
        granted_per_minute=per_minute,
        hold_seconds=pool.hold_seconds,
    )
    earliest = (until, request.since, pool.paced_until, pool.blocked_until, tenant.backoff_until if tenant else None)
    not_before = max(at for at in earliest if at)
    return None if eta is None else max(eta, (not_before - place.now).total_seconds(), 0.0)
