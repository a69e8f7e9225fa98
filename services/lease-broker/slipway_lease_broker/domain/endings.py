"""Ends of leases by time: the state after a deadline, and the events and reasons for it. Pure."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_api.events.lease import LeaseExpired, LeaseLost, LeaseReleased
from slipway_lease_broker.domain.ledger import Lease, State, advance
from slipway_lease_broker.domain.reception import Receiving, downtime_since
from slipway_lease_broker.domain.text import quantity

# End reasons, as stored in the row and sent to the holder.
HOLD: Final = "hold"
EXPIRED: Final = "expired"
LOST: Final = "lost"
NO_PROGRESS: Final = "no-progress"
RELEASED: Final = "released"
REPLACED: Final = "replaced"

ALWAYS: Final = Receiving()


def apply_deadline(lease: Lease, now: datetime, linger: timedelta, receiving: Receiving = ALWAYS) -> Lease:
    """The lease after the deadline that passed by `now`; the same object when none did.

    A deadline that a command could have moved is postponed by the downtimes of its way in, and does not pass in one.
    """
    if now < lease.deadline:
        return lease
    if lease.state is State.LOST:
        return msgspec.structs.replace(lease, ended_at=now)
    if not _ends_by_hold(lease):
        downtimes = receiving.kafka if lease.over_kafka else receiving.http
        if downtimes is None:
            return lease
        if delay := downtime_since(downtimes, lease.extended_at):
            lease = _postponed(lease, delay, now)
            if now < lease.deadline:
                return lease
    if _ends_by_hold(lease):
        return msgspec.structs.replace(
            lease, state=advance(lease.state, "released"), units=0, ended_at=now, reason=HOLD
        )
    stalled = _is_stalled(lease)
    state = advance(lease.state, "deadline passed")
    if state is State.EXPIRED:
        return msgspec.structs.replace(lease, state=state, ended_at=now, reason=EXPIRED)
    # A lost lease stays counted, since a call that began while it was alive may still create something.
    return msgspec.structs.replace(
        lease, state=state, counted_until=now + linger, reason=NO_PROGRESS if stalled else LOST
    )


def _is_stalled(lease: Lease) -> bool:
    """True if the deadline of its progress is the first one."""
    return lease.progress_until is not None and lease.progress_until < min(lease.expires_at, lease.hold_until)


def _ends_by_hold(lease: Lease) -> bool:
    """True if the end of the hold, which no command moves, is the first deadline."""
    return lease.hold_until <= lease.expires_at and not _is_stalled(lease)


def _postponed(lease: Lease, delay: timedelta, now: datetime) -> Lease:
    return msgspec.structs.replace(
        lease,
        expires_at=min(lease.expires_at + delay, lease.hold_until),
        progress_until=None if lease.progress_until is None else lease.progress_until + delay,
        extended_at=now,
    )


def end_event(lease: Lease, then: Lease) -> LeaseReleased | LeaseExpired | LeaseLost | None:
    """The event for a lease that time ended; None when a lost one only stops counting."""
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


def ended_event(lease: Lease) -> LeaseReleased | LeaseExpired | LeaseLost:
    """The event for a lease that has ended, as it was published before."""
    if lease.state is State.LOST:
        return lost_event(lease)
    if lease.state is State.EXPIRED:
        return LeaseExpired(
            lease_pool_id=lease.lease_pool_id, lease_id=lease.id, request_id=lease.request_id, units=lease.units
        )
    return LeaseReleased(
        lease_pool_id=lease.lease_pool_id,
        lease_id=lease.id,
        request_id=lease.request_id,
        units=lease.granted_units,
        remaining=0,
        reason=lease.reason,
    )


def lost_event(lease: Lease) -> LeaseLost:
    return LeaseLost(
        lease_pool_id=lease.lease_pool_id,
        lease_id=lease.id,
        request_id=lease.request_id,
        units=lease.units,
        counted_until=lease.counted_until or lease.ended_at or lease.expires_at,
    )


def end_reason(lease: Lease, then: Lease) -> str:
    """The reason of the end as text for people."""
    units = quantity(lease.units, "unit")
    if lease.state is State.LOST:
        return f"lost lease no longer counted: {units} freed"
    if then.reason == NO_PROGRESS:
        return f"lost, no progress reported: {units} counted until {then.counted_until}"
    return {
        State.RELEASED: f"hold ended: {units} freed",
        State.EXPIRED: f"not confirmed before its reserve deadline: {units} freed",
        State.LOST: f"lost, not renewed in time: {units} counted until {then.counted_until}",
    }[then.state]
