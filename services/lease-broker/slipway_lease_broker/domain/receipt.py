"""Confirmation by receipt: a holder that gets its grant in the answer to an open call need not confirm it separately.
Pure."""

from collections.abc import Container
from datetime import datetime
from typing import Any

import msgspec

from slipway_common.events.lease import LeaseGranted
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.ledger import Entry, Lease, State, advance, alive_until


def confirm_received(decision: Decision, receiving: Container[str], now: datetime) -> Decision:
    """The decision with the leases of requests in `receiving` confirmed at the grant."""
    granted = tuple(
        _confirmed(decision, lease, now) if lease.request_id in receiving else lease for lease in decision.granted
    )
    confirmed = {lease.id: lease for lease in granted if lease.state is State.CONFIRMED}
    if not confirmed:
        return decision
    deadlines = [lease.deadline for lease in granted]
    return msgspec.structs.replace(
        decision,
        granted=granted,
        events=tuple(_with_deadline(event, confirmed) for event in decision.events),
        history=(*decision.history, *(_entry(lease, now) for lease in confirmed.values())),
        wake_at=min(deadlines if decision.wake_at is None else [decision.wake_at, *deadlines]),
    )


def _confirmed(decision: Decision, lease: Lease, now: datetime) -> Lease:
    state = advance(lease.state, "confirmed")
    expires_at = alive_until(decision.pool, state, now, lease.hold_until)
    return msgspec.structs.replace(lease, state=state, expires_at=expires_at)


def _with_deadline(event: Any, leases: dict[str, Lease]) -> Any:
    lease = leases.get(event.lease_id) if isinstance(event, LeaseGranted) else None
    return event if lease is None else msgspec.structs.replace(event, expires_at=lease.expires_at)


def _entry(lease: Lease, now: datetime) -> Entry:
    return Entry(
        lease_pool_id=lease.lease_pool_id,
        at=now,
        kind="confirmed",
        reason="confirmed by receipt of the grant",
        lease_id=lease.id,
        request_id=lease.request_id,
        actor=lease.owner,
    )
