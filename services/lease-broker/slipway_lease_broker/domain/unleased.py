"""Unleased launches, reported after the broker was unavailable: each counts as a lease granted when it started, until
its hold ends. Pure."""

from datetime import datetime, timedelta

import msgspec

from slipway_lease_broker.domain.endings import HOLD
from slipway_lease_broker.domain.ledger import Entry, Lease, LeasePool, Request, State, UnleasedBy, counted
from slipway_lease_broker.domain.text import quantity

UNLEASED = "started without a lease"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    operation: str
    units: int
    started_at: datetime
    hold_seconds: float | None = None  # None: the pool's
    tenant: str = ""  # empty: its owner
    cause: UnleasedBy = UnleasedBy.UNAVAILABLE


class Charge(msgspec.Struct, frozen=True):
    """The rows to add for an unleased launch, and the pool after them."""

    pool: LeasePool
    request: Request
    lease: Lease
    entry: Entry


def charge(pool: LeasePool, start: Start, now: datetime, *, lease_id: str, owner: str) -> Charge:
    """A confirmed lease that lives until its hold ends: its holder may release it earlier and need not renew it. If the
    hold has already ended the lease does not count, and is stored so that the launch is counted once."""
    started_at = min(start.started_at, now)
    hold_until = started_at + timedelta(seconds=min(start.hold_seconds or pool.hold_seconds, pool.hold_seconds))
    over = hold_until <= now
    lease = Lease(
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
        tenant=start.tenant or owner,
        operation=start.operation,
        weight=pool.policy.operation(start.operation).weight,
        owner=owner,
        mode=pool.policy.mode,
        reason=HOLD if over else UNLEASED,
        extended_at=now,
        over_kafka=True,
        unleased_by=start.cause,
    )
    request = Request(
        id=start.request_id,
        lease_pool_id=pool.id,
        tenant=start.tenant or owner,
        operation=start.operation,
        requested_units=start.units,
        waiting_units=0,
        requested_at=started_at,
        last_requested_at=now,
        since=started_at,
        whole=True,
        owner=owner,
        over_kafka=True,
    )
    pool = msgspec.structs.replace(pool, last_token=lease.fencing_token)
    when = f"{started_at.isoformat(timespec='seconds')} ({start.cause})"
    entry = Entry(
        lease_pool_id=pool.id,
        at=now,
        kind="unleased",
        reason=f"{quantity(start.units, 'unit')} {UNLEASED} at {when}",
        lease_id=lease_id,
        request_id=start.request_id,
        units=start.units,
        actor=owner,
    )
    return Charge(pool if over else counted(pool, lease, lease.units), request, lease, entry)
