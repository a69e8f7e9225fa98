"""Who ends and who is admitted, for one lease pool at one instant. Pure: a decision is complete, has its reasons and
is only written down by the loop that asked for it.

The one rule that counts: units are granted only while the units held stay within the limit. A limit that falls below
what is held revokes nothing; it stops grants until enough has come back.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import msgspec

from slipway_common.events.lease import LeaseExpired, LeaseGranted, LeaseLost, LeaseQueued, LeaseReleased
from slipway_lease_broker.domain.ledger import (
    Entry,
    Group,
    Lease,
    LeasePool,
    Request,
    State,
    Tenant,
    advance,
    alive_until,
    counted,
    queued,
)

Ids = Callable[[], str]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Rows as they are to be, what to tell, and why. `wake_at` is when time alone will change something next."""

    pool: LeasePool  # with its state and counters after the decision
    ended: tuple[Lease, ...] = ()  # expired, lost, released by their hold, or lost and no longer counted
    granted: tuple[Lease, ...] = ()
    requests: tuple[Request, ...] = ()  # those that got units or were told to wait
    tenants: tuple[Tenant, ...] = ()  # those whose state changed
    groups: tuple[Group, ...] = ()  # those that started a member
    history: tuple[Entry, ...] = ()
    wake_at: datetime | None
    again: bool = False  # more could be decided than was loaded
    events: tuple[Any, ...] = ()
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.why)

    def summary(self, lines: int = 20) -> str:
        """For a row that is written often: the last reasons say who waits, the first what ended."""
        if len(self.why) <= lines:
            return str(self)
        left_out = f"… {len(self.why) - lines} more …"
        return "\n".join((*self.why[: lines - 1], left_out, self.why[-1]))


def decide(
    pool: LeasePool,
    due: Sequence[Lease],
    waiters: Sequence[Request],
    now: datetime,
    *,
    new_id: Ids,
    lost_linger_seconds: float,
    untold: Sequence[Request] = (),
    tenants: Mapping[str, Tenant] = MappingProxyType({}),
    groups: Mapping[str, Group] = MappingProxyType({}),
    next_deadline: datetime | None = None,
    more: bool = False,
    expire: bool = True,
) -> Decision:
    """`due` are the counted leases whose deadline has passed, `waiters` the heads of each queue in its order.

    `untold` wait, beyond the heads or among them, and were not told so yet, in order of arrival. `next_deadline` is the
    earliest of the counted leases that are not due. `more` says that more are due, or wait, than was loaded. With
    `expire` off no deadline passes: renewals may be waiting to be read.
    """
    linger = timedelta(seconds=lost_linger_seconds)
    after = [pass_time(lease, now, linger) if expire else lease for lease in due]
    changed = [(lease, then) for lease, then in zip(due, after, strict=True) if then is not lease]
    events: list[Any] = [event for lease, then in changed if (event := ending(lease, then)) is not None]
    for lease, then in changed:
        if then.ended_at is not None:
            pool = counted(pool, lease, -lease.units)

    waiters = sorted(waiters, key=lambda request: (request.since, request.place))
    granted, remaining = admit(pool, pool.limit_units - pool.held_cost, waiters, now, new_id)
    asked_at = {request.id: request.asked_at for request in waiters}
    events += [grant_event(lease, asked_at[lease.request_id]) for lease in granted]
    for lease in granted:
        pool = counted(pool, lease, lease.units)
    for old, new in zip(waiters, remaining, strict=True):
        pool = queued(pool, old.waiting_units, new.waiting_units)
    rows = {request.id: request for request in untold} | {request.id: request for request in remaining}
    told = [rows[request.id] for request in untold if rows[request.id].waiting_units]
    first = pool.waiting_requests - len(told) + 1
    for position, request in enumerate(told, start=first):
        events.append(queued_event(request, position))
        rows[request.id] = msgspec.structs.replace(request, queued_at=now)

    deadlines = [lease.deadline for lease in [*after, *granted] if lease.ended_at is None]
    before = {request.id: request for request in [*untold, *waiters]}
    limit = pool.limit_units
    return Decision(
        pool=msgspec.structs.replace(
            pool, last_token=pool.last_token + len(granted), limit_in_force=limit, limit_reason="as declared"
        ),
        ended=tuple(then for _, then in changed),
        granted=tuple(granted),
        requests=tuple(row for name, row in rows.items() if row is not before[name]),
        wake_at=min([*deadlines, *([next_deadline] if next_deadline else [])], default=None),
        again=more,
        events=tuple(events),
        why=(
            *(f"lease {then.id}: {reason(lease, then)}" for lease, then in changed),
            *(f"lease {lease.id}: {lease.units} units granted to request {lease.request_id}" for lease in granted),
            *(
                (
                    f"{pool.waiting_requests} requests wait for {pool.waiting_units} units: "
                    f"{pool.held_units} of {limit} held",
                )
                if pool.waiting_requests
                else ()
            ),
        ),
    )


def pass_time(lease: Lease, now: datetime, linger: timedelta) -> Lease:
    """The lease after the deadline that passed by `now`; the same object when none did."""
    if now < lease.deadline:
        return lease
    if lease.state is State.LOST:
        return msgspec.structs.replace(lease, ended_at=now)
    if lease.hold_until <= lease.expires_at:
        return msgspec.structs.replace(lease, state=advance(lease.state, "released"), units=0, ended_at=now)
    state = advance(lease.state, "deadline passed")
    if state is State.EXPIRED:
        return msgspec.structs.replace(lease, state=state, ended_at=now)
    # Counted on, since a call that began while it was alive may still create something.
    return msgspec.structs.replace(lease, state=state, counted_until=now + linger)


def admit(
    pool: LeasePool, free_units: int, waiters: Sequence[Request], now: datetime, new_id: Ids
) -> tuple[list[Lease], list[Request]]:
    """First come, first served: the head takes what it can, in part if need be, and nobody passes it."""
    granted: list[Lease] = []
    remaining: list[Request] = []
    for request in waiters:
        units = min(free_units, request.waiting_units)
        if units <= 0:
            remaining.append(request)
            continue
        free_units -= units
        hold_until = now + timedelta(seconds=pool.hold_seconds)
        granted.append(
            Lease(
                id=new_id(),
                lease_pool_id=pool.id,
                request_id=request.id,
                fencing_token=pool.last_token + len(granted) + 1,
                granted_units=units,
                units=units,
                state=State.RESERVED,
                granted_at=now,
                expires_at=alive_until(pool, State.RESERVED, now, hold_until),
                hold_until=hold_until,
                traceparent=request.traceparent,
                tenant=request.tenant,
                operation=request.operation,
                owner=request.owner,
                waited_seconds=max(0.0, (now - request.asked_at).total_seconds()),
            )
        )
        remaining.append(msgspec.structs.replace(request, waiting_units=request.waiting_units - units))
    return granted, remaining


def ending(lease: Lease, then: Lease) -> LeaseReleased | LeaseExpired | LeaseLost | None:
    """What is told when time ended a lease; None when a lost one merely stops counting."""
    if lease.state is State.LOST:
        return None
    if then.state is State.RELEASED:
        return LeaseReleased(
            lease_pool_id=lease.lease_pool_id,
            lease_id=lease.id,
            request_id=lease.request_id,
            units=lease.units,
            remaining=0,
            reason="hold",
        )
    if then.state is State.EXPIRED:
        return LeaseExpired(
            lease_pool_id=lease.lease_pool_id, lease_id=lease.id, request_id=lease.request_id, units=lease.units
        )
    return lost_event(then)


def lost_event(lease: Lease) -> LeaseLost:
    return LeaseLost(
        lease_pool_id=lease.lease_pool_id,
        lease_id=lease.id,
        request_id=lease.request_id,
        units=lease.units,
        counted_until=lease.counted_until or lease.ended_at or lease.expires_at,
    )


def reason(lease: Lease, then: Lease) -> str:
    if lease.state is State.LOST:
        return f"lost, and counted long enough: {lease.units} units free"
    return {
        State.RELEASED: f"its hold passed: {lease.units} units free",
        State.EXPIRED: f"not confirmed by its reserve deadline: {lease.units} units free",
        State.LOST: f"not renewed in time: lost, {lease.units} units counted until {then.counted_until}",
    }[then.state]


def grant_event(lease: Lease, asked_at: datetime) -> LeaseGranted:
    return LeaseGranted(
        lease_pool_id=lease.lease_pool_id,
        lease_id=lease.id,
        request_id=lease.request_id,
        units=lease.units,
        fencing_token=lease.fencing_token,
        expires_at=lease.expires_at,
        hold_until=lease.hold_until,
        waited_seconds=max(0.0, (lease.granted_at - asked_at).total_seconds()),
    )


def queued_event(request: Request, position: int) -> LeaseQueued:
    return LeaseQueued(
        lease_pool_id=request.lease_pool_id, request_id=request.id, units=request.waiting_units, position=position
    )
