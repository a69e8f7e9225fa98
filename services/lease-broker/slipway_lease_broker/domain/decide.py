"""Who ends and who is admitted, for one lease pool at one instant. Pure: a decision is complete, has its reasons and
is only written down by the loop that asked for it.

The one rule that counts: units are granted only while the units held stay within the limit. A limit that falls below
what is held revokes nothing; it stops grants until enough has come back.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from slipway_common.events.lease import LeaseExpired, LeaseGranted, LeaseLost, LeaseQueued, LeaseReleased
from slipway_lease_broker.domain.ledger import (
    Lease,
    LeasePool,
    Request,
    State,
    advance,
    alive_until,
    earliest_deadline,
    held_units,
)

Ids = Callable[[], str]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Rows as they are to be, what to tell, and why. `wake_at` is when time alone will change something next."""

    ended: tuple[Lease, ...] = ()  # expired, lost, released by their hold, or lost and no longer counted
    granted: tuple[Lease, ...] = ()
    requests: tuple[Request, ...] = ()  # those that got units or were told to wait
    last_token: int
    held_units: int
    waiting_units: int
    wake_at: datetime | None
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
    leases: Sequence[Lease],
    waiters: Sequence[Request],
    now: datetime,
    *,
    new_id: Ids,
    lost_linger_seconds: float,
    expire: bool = True,
) -> Decision:
    """`leases` are those still counted, `waiters` those still waiting in order of arrival.

    With `expire` off no deadline passes: renewals may be waiting to be read.
    """
    linger = timedelta(seconds=lost_linger_seconds)
    after = [pass_time(lease, now, linger) if expire else lease for lease in leases]
    changed = [(lease, then) for lease, then in zip(leases, after, strict=True) if then is not lease]
    events: list[Any] = [event for lease, then in changed if (event := ending(lease, then)) is not None]

    granted, remaining = admit(pool, pool.limit_units - held_units(after), waiters, now, new_id)
    asked_at = {request.id: request.asked_at for request in waiters}
    events += [grant_event(lease, asked_at[lease.request_id]) for lease in granted]

    still = [request for request in remaining if request.waiting_units]
    for position, request in enumerate(still, start=1):
        if request.queued_at is None:
            events.append(queued_event(request, position))
    told = [msgspec.structs.replace(r, queued_at=now) if r.waiting_units and not r.queued_at else r for r in remaining]

    counted = [*after, *granted]
    held, waiting = held_units(counted), sum(request.waiting_units for request in still)
    return Decision(
        ended=tuple(then for _, then in changed),
        granted=tuple(granted),
        requests=tuple(new for new, old in zip(told, waiters, strict=True) if new is not old),
        last_token=pool.last_token + len(granted),
        held_units=held,
        waiting_units=waiting,
        wake_at=earliest_deadline(counted),
        events=tuple(events),
        why=(
            *(f"lease {then.id}: {reason(lease, then)}" for lease, then in changed),
            *(f"lease {lease.id}: {lease.units} units granted to request {lease.request_id}" for lease in granted),
            *((f"{len(still)} requests wait for {waiting} units: {held} of {pool.limit_units} held",) if still else ()),
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
