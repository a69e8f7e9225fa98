"""Consumer of lease events: binds grants to waiting intents, and returns intents of ended leases to the queue."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

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
    for kind, group in groupby(_in_groups(received), key=lambda record: type(record.event)):
        records = list(group)
        if kind is events.LeaseGranted:
            for grants in _of_different_requests(records):
                await apply.bind(tx, grants)
        elif kind is events.LeaseConfirmed:
            await leases.confirm(tx, [record.event for record in records])
        else:
            for record in records:
                await _end(tx, record.event)


async def _end(tx: Connection, event: Any) -> None:
    if isinstance(event, events.LeaseReleased) and event.remaining == 0:
        await apply.end(tx, event, f"lease ended: {event.reason}")
    elif isinstance(event, events.LeaseExpired | events.LeaseLost):
        await apply.end(tx, event, "lease lost")
    elif isinstance(event, events.LeaseQueued):
        await apply.queue(tx, event)


def _in_groups(received: Sequence[Received]) -> Sequence[Received]:
    """The events by their kinds, so that one statement applies several, if no two of them are about the same lease or
    request; else in their order."""
    named = [
        name
        for record in received
        for name in (getattr(record.event, "lease_id", ""), getattr(record.event, "request_id", ""))
        if name
    ]
    if len(set(named)) < len(named):
        return received
    return sorted(received, key=lambda record: record.type)


def _of_different_requests(records: Sequence[Received]) -> Iterator[list[tuple[events.LeaseGranted, str]]]:
    """Grants in their order, in parts in which each is of another request."""
    part: dict[str, tuple[events.LeaseGranted, str]] = {}
    for record in records:
        if record.event.request_id in part:
            yield list(part.values())
            part = {}
        part[record.event.request_id] = record.event, record.traceparent
    yield list(part.values())
