"""What the passing of time does to a lease, and how it is told. Pure."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_common.events.lease import LeaseExpired, LeaseLost, LeaseReleased
from slipway_lease_broker.domain.ledger import Lease, State, advance

# Why a lease ended, as its row and its holder have it.
HOLD: Final = "hold"
EXPIRED: Final = "expired"
LOST: Final = "lost"
NO_PROGRESS: Final = "no-progress"
RELEASED: Final = "released"
REPLACED: Final = "replaced"


def pass_time(lease: Lease, now: datetime, linger: timedelta) -> Lease:
    """The lease after the deadline that passed by `now`; the same object when none did."""
    if now < lease.deadline:
        return lease
    if lease.state is State.LOST:
        return msgspec.structs.replace(lease, ended_at=now)
    stands = lease.progress_until is not None and lease.progress_until < min(lease.expires_at, lease.hold_until)
    if not stands and lease.hold_until <= lease.expires_at:
        return msgspec.structs.replace(
            lease, state=advance(lease.state, "released"), units=0, ended_at=now, reason=HOLD
        )
    state = advance(lease.state, "deadline passed")
    if state is State.EXPIRED:
        return msgspec.structs.replace(lease, state=state, ended_at=now, reason=EXPIRED)
    # Counted on, since a call that began while it was alive may still create something.
    return msgspec.structs.replace(
        lease, state=state, counted_until=now + linger, reason=NO_PROGRESS if stands else LOST
    )


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
            reason=HOLD,
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


def because(lease: Lease, then: Lease) -> str:
    """The end in words."""
    if lease.state is State.LOST:
        return f"lost, and counted long enough: {lease.units} units free"
    if then.reason == NO_PROGRESS:
        return f"its progress stood still: lost, {lease.units} units counted until {then.counted_until}"
    return {
        State.RELEASED: f"its hold passed: {lease.units} units free",
        State.EXPIRED: f"not confirmed by its reserve deadline: {lease.units} units free",
        State.LOST: f"not renewed in time: lost, {lease.units} units counted until {then.counted_until}",
    }[then.state]
