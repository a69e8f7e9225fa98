"""Starts without a lease, reported afterwards: each counts as a lease granted when it started, until its hold ends.

Pure. A start is charged once, whatever its cause and however often it is reported. It counts against the pool as far as
its reporter may charge it; what goes beyond holds back its own tenant only.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_identity
from slipway_lease_broker.domain.endings import HOLD
from slipway_lease_broker.domain.ledger import (
    Excess,
    Holding,
    Lease,
    LeasePool,
    Ledger,
    Request,
    State,
    UnleasedBy,
    counted,
    queued,
)
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.text import quantity

UNLEASED: Final = "started without a lease"
LOST_LEASE: Final = "lost-"
"""Beginning of the request id of a start whose lease was lost; then comes the id of that lease."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    operation: str
    units: int
    started_at: datetime
    hold_seconds: float | None = None  # None: the pool's
    tenant: str = ""  # empty: that of its request, or its owner
    cause: UnleasedBy = UnleasedBy.UNAVAILABLE


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what further starts count against the pool: on the units that only their reporter knows of, and on the
    cost of those, of all reporters, whose maximum wait was over. None: without a bound."""

    units_max: int = 0  # of the reporter, in all
    units: int | None = None  # of these, not used yet
    waited_cost: int | None = None

    def counted(self, start: Start, weight: int, *, known_units: int) -> int:
        """Units of a start that count against the pool; of `known_units` the broker knows without the report."""
        bounds = [start.units]
        if self.units is not None:
            bounds.append(known_units + self.units)
        if self.waited_cost is not None and start.cause is UnleasedBy.MAX_WAIT and weight:
            bounds.append(self.waited_cost // weight)
        return min(bounds)

    def after(self, lease: Lease) -> "Allowance":
        """The bounds after the lease of a start."""
        units, waited = self.units, self.waited_cost
        if waited is not None and lease.unleased_by is UnleasedBy.MAX_WAIT:
            waited = max(0, waited - lease.cost)
        elif units is not None:
            units = max(0, units - lease.counted_units)
        return msgspec.structs.replace(self, units=units, waited_cost=waited)


UNBOUNDED: Final = Allowance()


def granted_to(ledger: Ledger, lease_pool_id: str, request_id: str) -> list[Lease]:
    """The leases of a request id, in order: those that were granted, and those as which a start was charged."""
    key = lease_pool_id, request_id
    leases = [lease for lease in ledger.leases.values() if (lease.lease_pool_id, lease.request_id) == key]
    return sorted(leases, key=lambda lease: lease.fencing_token)


def was_unheard(lease: Lease) -> bool:
    """True of a grant that time alone has ended, where its request is reported as a start: nobody heard of it, and it
    counts no start."""
    return lease.unleased_by is None and (lease.state in (State.EXPIRED, State.LOST) or lease.reason == HOLD)


def lost_id(request_id: str) -> str | None:
    """Id of the lease whose loss a request id stands for; None for a request id of any other form."""
    return request_id.removeprefix(LOST_LEASE) if request_id.startswith(LOST_LEASE) else None


def charge(
    ledger: Ledger,
    lease_pool_id: str,
    start: Start,
    now: datetime,
    sender: Sender,
    allowance: Allowance = UNBOUNDED,
    *,
    lease_id: str,
) -> Lease:
    """The lease that a start counts as: the one that it has, or else a new one of this id. Its request waits no
    longer. A start whose lease was lost has that one, if it was renewed after all, and else counts in its place, as
    does one whose lease was lost since nobody had heard of it."""
    pool = ledger.pools[lease_pool_id]
    granted = granted_to(ledger, pool.id, start.request_id)
    if known := [lease for lease in granted if not was_unheard(lease)]:
        return known[-1]
    lost = granted[-1] if granted else None
    request = ledger.requests.get((pool.id, start.request_id))
    hold_until = None
    # A request vouches for nothing: anybody may make any number of them. Those that waited have a bound of their own.
    known_units = start.units if start.cause is UnleasedBy.MAX_WAIT and request is not None else 0
    named = ledger.leases.get((pool.id, lost_id(start.request_id) or "")) if start.cause is UnleasedBy.LOST else None
    if named is not None and named.live:
        return named
    if named is not None and named.state is State.LOST:
        lost, known_units, hold_until = named, named.units, named.hold_until
        start = msgspec.structs.replace(start, tenant=named.tenant)
    if lost is not None and lost.state is State.LOST and lost.ended_at is None:  # the start counts in its place
        known_units = max(known_units, lost.units)
        ledger.put_lease(msgspec.structs.replace(lost, ended_at=now))
        pool = counted(pool, lost, lost.units, 0)
    if request is None:
        request = request_of(pool, start, now, sender)
    elif request.waiting_units:
        pool = queued(pool, request, request.counted_units, 0)
    ledger.put_request(msgspec.structs.replace(request, waiting_units=0))
    lease = lease_of(pool, request, start, now, lease_id=lease_id, hold_until=hold_until)
    uncounted_units = start.units - allowance.counted(start, lease.weight, known_units=known_units)
    pool = msgspec.structs.replace(pool, last_token=lease.fencing_token)
    if lease.live:
        lease = msgspec.structs.replace(lease, uncounted_units=uncounted_units)
        pool = counted(pool, lease, 0, lease.units)
        if allowance.units is not None and (excess := start.units - known_units - allowance.units) > 0:
            pool = _hold_back(ledger, pool, lease, excess, allowance.units_max)
    ledger.pools[pool.id] = pool
    ledger.put_lease(lease)
    ledger.new_leases.add((pool.id, lease.id))
    ledger.dirty.add(pool.id)
    reason = f"{quantity(start.units, 'unit')} {UNLEASED} at {lease.granted_at.isoformat(timespec='seconds')}"
    uncounted = f"; {lease.uncounted_units} not counted" if lease.uncounted_units else ""
    ledger.add_history(
        pool,
        "unleased",
        f"{reason} ({start.cause}){uncounted}",
        now,
        sender.name,
        lease_id=lease_id,
        request_id=start.request_id,
        units=start.units,
    )
    return lease


def lease_of(
    pool: LeasePool, request: Request, start: Start, now: datetime, *, lease_id: str, hold_until: datetime | None = None
) -> Lease:
    """A confirmed lease that lives until its hold ends, at the latest `hold_until`: its holder may release it earlier
    and need not renew it. If the hold has already ended the lease does not count, and is stored so that the start is
    counted once."""
    started_at = min(start.started_at, now)
    ends_at = started_at + timedelta(seconds=min(start.hold_seconds or pool.hold_seconds, pool.hold_seconds))
    hold_until = ends_at if hold_until is None else min(ends_at, hold_until)
    over = hold_until <= now
    return Lease(
        id=lease_id,
        lease_pool_id=pool.id,
        request_id=start.request_id,
        fencing_token=pool.last_token + 1,
        granted_units=start.units,
        units=0 if over else start.units,
        state=State.RELEASED if over else State.CONFIRMED,
        granted_at=started_at,
        expires_at=hold_until,
        hold_until=hold_until,
        ended_at=hold_until if over else None,
        tenant=request.tenant,
        operation=start.operation,
        weight=pool.policy.operation(start.operation).weight,
        owner=request.owner,
        mode=pool.policy.mode,
        reason=HOLD if over else UNLEASED,
        extended_at=now,
        over_kafka=True,
        unleased_by=start.cause,
        # The process that waited, so that no other one with this request id gets the lease while it runs.
        holders={request.holder: Holding(since=started_at)} if request.holder else {},
    )


def request_of(pool: LeasePool, start: Start, now: datetime, sender: Sender) -> Request:
    """The request of a start that made none."""
    started_at = min(start.started_at, now)
    return Request(
        id=start.request_id,
        lease_pool_id=pool.id,
        tenant=start.tenant or sender.name,
        operation=start.operation,
        requested_units=start.units,
        waiting_units=0,
        requested_at=started_at,
        last_requested_at=now,
        since=started_at,
        whole=True,
        owner=sender.name,
        over_kafka=True,
    )


def _hold_back(ledger: Ledger, pool: LeasePool, lease: Lease, units: int, units_max: int) -> LeasePool:
    """Let the tenant of a start wait until its hold ends, for the units beyond what its reporter may count; returns the
    pool with the excess to raise an alert for."""
    reason = f"reported {quantity(units, 'unleased unit')} more than {lease.owner} may count"
    ledger.hold_back(lease, lease.hold_until, reason)
    if pool.excess is not None and pool.excess.units >= units:
        return pool
    excess = Excess(reporter=lease.owner, tenant=lease.tenant, units=units, units_max=units_max, until=lease.hold_until)
    return msgspec.structs.replace(pool, excess=excess)


def announced(pool: LeasePool, now: datetime) -> tuple[LeasePool, AlertRaised | AlertResolved | None]:
    """The pool after the alert for units beyond what a reporter may count was raised, or resolved at their end."""
    excess = pool.excess
    if excess is None or (excess.alerted and now < excess.until):
        return pool, None
    until = excess.until.isoformat(timespec="seconds")
    alert = Alert(
        **alert_identity("lease-broker", "lease-pool-unleased-excess", "lease-pool", pool.id),
        summary=f"lease pool {pool.id}: {excess.reporter} reported {quantity(excess.units, 'unleased unit')} more than "
        f"it may count",
        effect=f"tenant {excess.tenant} gets no lease until {until}; other tenants are not affected",
        doing=f"counts at most {quantity(excess.units_max, 'unleased unit')} of {excess.reporter} against the pool",
        command=f"slipway lease history {pool.id} -n 20",
        cause="its report is wrong, or it started more than unleased_max of its token allows",
        severity="notice",
    )
    if now >= excess.until:
        resolved = AlertResolved(**msgspec.structs.asdict(alert)) if excess.alerted else None
        return msgspec.structs.replace(pool, excess=None), resolved
    raised = msgspec.structs.replace(pool, excess=msgspec.structs.replace(excess, alerted=True))
    return raised, AlertRaised(**msgspec.structs.asdict(alert))
