"""Consumer of lease events: binds grants to waiting intents, and returns intents of ended leases to the queue."""

from collections.abc import Sequence
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.events import lease as events
from slipway_common.messaging.records import Received
from slipway_provisioner.domain.workers import delayed
from slipway_provisioner.store import leases, workers

# Owners whose grants are ours. A broker that publishes no owner has no other clients.
OWN_OWNERS: Final = ("", "/slipway/provisioner")


async def record_leases(tx: Connection, received: Sequence[Received]) -> None:
    """Apply lease events in order. Units that are no longer needed are released in the same transaction. Leases of
    other owners are ignored."""
    received = [record for record in received if getattr(record.event, "owner", "") in OWN_OWNERS]
    lease_events = [record.event for record in received]
    await leases.lock_all(
        tx,
        [event.lease_id for event in lease_events if hasattr(event, "lease_id")],
        [event.request_id for event in lease_events if isinstance(event, events.LeaseGranted)],
    )
    for record in received:
        event = record.event
        if isinstance(event, events.LeaseGranted):
            await _granted(tx, event, record.traceparent)
        elif isinstance(event, events.LeaseConfirmed):
            await leases.confirm(tx, event)
        elif isinstance(event, events.LeaseReleased) and event.remaining == 0:
            await _ended(tx, event.lease_id, f"lease ended: {event.reason}")
        elif isinstance(event, events.LeaseExpired | events.LeaseLost):
            await _ended(tx, event.lease_id, "lease lost")


async def _granted(tx: Connection, event: events.LeaseGranted, traceparent: str) -> None:
    config_id = await leases.requested_config(tx, event.request_id)
    if not await leases.insert(tx, event, config_id or "", traceparent):
        return
    waiting = [] if config_id is None else await workers.lock_waiting(tx, event.request_id, event.units)
    bound = [msgspec.structs.replace(worker, lease_id=event.lease_id, holds_unit=True) for worker in waiting]
    await workers.save_without_events(tx, bound)
    await leases.take(tx, event.request_id, len(bound))
    if len(bound) < event.units:
        await leases.release_units(tx, event.lease_id, event.units - len(bound), "surplus")


async def _ended(tx: Connection, lease_id: str, reason: str) -> None:
    """End a lease. Its intents without a call request admission again; calls already made continue and are recorded."""
    if await leases.lock(tx, lease_id) is None:
        return
    waiting = await workers.lock_leased(tx, lease_id)
    await leases.end(tx, lease_id)
    await workers.save(tx, [delayed(worker, reason) for worker in waiting])
