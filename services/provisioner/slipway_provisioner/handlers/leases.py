"""Consumer of lease events: binds grants to waiting intents, and returns intents of ended leases to the queue."""

from collections.abc import Sequence
from typing import Final

from slipway_api.events import lease as events
from slipway_common.database.postgres import Connection
from slipway_common.messaging.records import Received
from slipway_provisioner.apply import leases as apply
from slipway_provisioner.store import leases

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
        [event.request_id for event in lease_events if getattr(event, "request_id", "")],
    )
    for record in received:
        event = record.event
        if isinstance(event, events.LeaseGranted):
            await apply.bind(tx, event, record.traceparent)
        elif isinstance(event, events.LeaseConfirmed):
            await leases.confirm(tx, event)
        elif isinstance(event, events.LeaseReleased) and event.remaining == 0:
            await apply.end(tx, event, f"lease ended: {event.reason}")
        elif isinstance(event, events.LeaseExpired | events.LeaseLost):
            await apply.end(tx, event, "lease lost")
        elif isinstance(event, events.LeaseQueued):
            await apply.queue(tx, event)
