"""Answers of the lease-broker become rows: who is admitted, until when, and who has to ask again."""

from collections.abc import Sequence
from typing import Any

import msgspec

from slipway_common.consume import Received
from slipway_common.events import lease as events
from slipway_common.postgres import Connection
from slipway_provisioner.domain.workers import delayed
from slipway_provisioner.store import leases, workers


async def record_leases(tx: Connection, received: Sequence[Received]) -> None:
    """Apply lease events in order. What was not asked for, or no longer, is given back in the same transaction."""
    for record in received:
        event = record.event
        if isinstance(event, events.LeaseGranted):
            await _granted(tx, event, record.traceparent)
        elif isinstance(event, events.LeaseConfirmed):
            await tx.execute(
                "UPDATE lease SET state = 'confirmed', expires_at = greatest(expires_at, $2), "
                "ttl_seconds = greatest(0.1, extract(epoch FROM $2 - slipway_clock())) "
                "WHERE id = $1 AND state <> 'ended'",
                event.lease_id, event.expires_at,
            )  # fmt: skip
        elif isinstance(event, events.LeaseReleased) and event.remaining == 0:
            await _ended(tx, event.lease_id, f"lease ended: {event.reason}")
        elif isinstance(event, events.LeaseExpired | events.LeaseLost):
            await _ended(tx, event.lease_id, "lease lost")


async def _granted(tx: Connection, event: events.LeaseGranted, traceparent: str) -> None:
    known = await tx.fetchval("SELECT true FROM lease WHERE id = $1", event.lease_id)
    if known:
        return
    request: Any = await tx.fetchrow(
        "SELECT launch_config_id FROM lease_request WHERE id::text = $1 FOR UPDATE", event.request_id
    )
    waiting = await workers.lock_waiting(tx, event.request_id, event.units) if request else []
    await tx.execute(
        "INSERT INTO lease (id, request_id, lease_pool_id, launch_config_id, fencing_token, units, state, expires_at, "
        "hold_until, renewed_at, traceparent) "
        "VALUES ($1, $2, $3, $4, $5, $6, 'reserved', $7, $8, slipway_clock(), $9)",
        event.lease_id, event.request_id, event.lease_pool_id, request["launch_config_id"] if request else "",
        event.fencing_token, event.units, event.expires_at, event.hold_until, traceparent,
    )  # fmt: skip
    bound = [msgspec.structs.replace(w, lease_id=event.lease_id, holds_unit=True) for w in waiting]
    await workers.save_silently(tx, bound)
    if request:
        taken = "UPDATE lease_request SET units = units - $2 WHERE id::text = $1"
        await tx.execute(taken, event.request_id, len(bound))
        await tx.execute("DELETE FROM lease_request WHERE id::text = $1 AND units <= 0", event.request_id)
    if len(bound) < event.units:
        await leases.release_units(tx, event.lease_id, event.units - len(bound), "surplus")


async def _ended(tx: Connection, lease_id: str, reason: str) -> None:
    """Intents that no call was made for ask again; calls already made go on, and are recorded."""
    held = await leases.lock(tx, lease_id)
    if held is None:
        return
    waiting = await workers.lock_leased(tx, lease_id)
    await leases.end(tx, lease_id)
    await workers.save(tx, [delayed(worker, reason) for worker in waiting])
