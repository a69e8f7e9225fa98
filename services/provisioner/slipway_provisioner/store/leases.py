"""Leases of the provisioner: pending requests, granted leases, and the release of each unit, once."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import names
from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmed,
    LeaseConfirmRequested,
    LeaseGranted,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    LeaseUnleasedReported,
)
from slipway_common.events.lifecycle import WAITING
from slipway_common.messaging import outbox
from slipway_provisioner.store.configs import MAY_START
from slipway_provisioner.store.tables import lease, states


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease granted to the provisioner. `units` are those not yet released."""

    id: str
    request_id: str
    lease_pool_id: str
    launch_config_id: str
    fencing_token: int
    units: int
    state: str
    expires_at: datetime
    hold_until: datetime
    renewed_at: datetime
    traceparent: str


# Leases under which nothing may start, or whose renewal is pending, are left out so that they do not block others.
CANDIDATES: Final = f"""
SELECT l.id FROM lease l JOIN launch_config c ON c.id = l.launch_config_id JOIN worker_pool p ON p.id = c.pool_id
WHERE l.state <> 'ended' AND {MAY_START}
    AND (l.expires_at > slipway_clock() + $2 * interval '1 s' OR l.renewed_at < slipway_clock() - $3 * interval '1 s')
    AND EXISTS (SELECT FROM worker w WHERE w.lease_id = l.id AND w.state IN ({states(WAITING)}))
ORDER BY l.fencing_token LIMIT $1"""
GET: Final = f"SELECT {names(lease.c[name] for name in Lease.__struct_fields__)} FROM lease WHERE id = $1"
LOCK: Final = f"{GET} FOR UPDATE"
TRY_LOCK: Final = f"{LOCK} SKIP LOCKED"
CONFIG_OF: Final = "SELECT launch_config_id FROM lease WHERE id = $1"
LOCK_MANY: Final = "SELECT FROM lease WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE"
CONFIRM: Final = """
UPDATE lease SET state = 'confirmed', fencing_token = $3, expires_at = $2,
    ttl_seconds = greatest(0.1, extract(epoch FROM $2 - slipway_clock()))
WHERE id = $1 AND state <> 'ended'"""
INSERT: Final = """
INSERT INTO lease (id, request_id, lease_pool_id, launch_config_id, fencing_token, units, state, expires_at, hold_until,
    renewed_at, traceparent, granted_units)
VALUES ($1, $2, $3, $4, $5, $6, 'reserved', $7, $8, slipway_clock(), $9, $6)
ON CONFLICT (id) DO NOTHING RETURNING true"""
# It has no fencing token until the broker has charged it; until then it is neither renewed nor released.
INSERT_UNLEASED: Final = """
INSERT INTO lease (id, request_id, lease_pool_id, launch_config_id, fencing_token, units, state, expires_at, hold_until,
    renewed_at, traceparent)
VALUES ($1, $2, $3, $4, 0, $5, 'unleased', $6, $6, slipway_clock(), $7)"""
END: Final = "UPDATE lease SET state = 'ended', units = 0 WHERE id = $1"
RELEASE: Final = """
UPDATE lease SET units = units - $2, state = CASE WHEN units <= $2 THEN 'ended' ELSE state END
WHERE id = $1 AND state <> 'ended' RETURNING lease_pool_id, fencing_token, traceparent"""
RENEWABLE: Final = """
UPDATE lease SET renewed_at = slipway_clock() WHERE id IN (
    SELECT id FROM lease WHERE state = 'confirmed' AND renewed_at < slipway_clock() - ttl_seconds / 3 * interval '1 s'
    ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id, lease_pool_id, fencing_token, traceparent"""
RENEW_ONE: Final = """
UPDATE lease SET renewed_at = slipway_clock() WHERE id = $1 AND renewed_at < slipway_clock() - $2 * interval '1 s'
RETURNING id, lease_pool_id, fencing_token, traceparent"""

INSERT_REQUEST: Final = """
INSERT INTO lease_request (id, lease_pool_id, pool_id, launch_config_id, units, sent_at, traceparent)
VALUES ($1, $2, $3, $4, $5, slipway_clock(), $6)"""
LOCK_REQUESTS: Final = "SELECT FROM lease_request WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE"
REQUESTS_OF: Final = """
SELECT id FROM lease_request WHERE id IN (SELECT request_id FROM worker WHERE id = ANY($1::uuid[]))
ORDER BY id FOR UPDATE"""
REQUESTED_CONFIG: Final = "SELECT launch_config_id FROM lease_request WHERE id = $1"
TAKE: Final = "UPDATE lease_request SET units = units - $2 WHERE id = $1 RETURNING lease_pool_id, traceparent, units"
DELETE_REQUEST: Final = "DELETE FROM lease_request WHERE id = ANY($1::text[])"
RESEND: Final = f"""
UPDATE lease_request r SET sent_at = slipway_clock() WHERE r.id IN (
    SELECT id FROM lease_request WHERE sent_at < slipway_clock() - make_interval(secs => $1)
    ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id, lease_pool_id, pool_id, traceparent, (
    SELECT count(*) FROM worker w
    WHERE w.request_id = r.id AND w.state IN ({states(WAITING)}) AND w.lease_id IS NULL) AS units"""


async def candidates(db: Connection, limit: int, *, margin_seconds: float, renewal_pending_seconds: float) -> list[str]:
    """Leases under which a call may start, read without locks; oldest admission first."""
    return [row["id"] for row in await db.fetch(CANDIDATES, limit, margin_seconds, renewal_pending_seconds)]


async def config_of(db: Connection, lease_id: str) -> str:
    """Config that a lease admits starts of; it never changes."""
    config_id: str = await db.fetchval(CONFIG_OF, lease_id)
    return config_id


async def lock(tx: Connection, lease_id: str, *, skip_locked: bool = False) -> Lease | None:
    row = await tx.fetchrow(TRY_LOCK if skip_locked else LOCK, lease_id)
    return None if row is None else Lease(**row)


async def get(db: Connection, lease_id: str) -> Lease | None:
    row = await db.fetchrow(GET, lease_id)
    return None if row is None else Lease(**row)


def described(lease: Lease) -> dict[str, Any]:
    """Lease as shown to people."""
    return {name: value for name, value in msgspec.structs.asdict(lease).items() if name != "traceparent"}


async def lock_all(tx: Connection, lease_ids: Iterable[str], request_ids: Iterable[str]) -> None:
    """Lock leases, then requests, before several are changed."""
    await tx.execute(LOCK_MANY, sorted(set(lease_ids)))
    await tx.execute(LOCK_REQUESTS, sorted(set(request_ids)))


async def lock_requests_of(tx: Connection, worker_ids: Sequence[str]) -> list[str]:
    """Lock the requests of waiting workers; returns the request ids."""
    return [row["id"] for row in await tx.fetch(REQUESTS_OF, worker_ids)]


async def request(
    tx: Connection, *, lease_pool_id: str, pool_id: str, launch_config_id: str, units: int, traceparent: str
) -> str:
    """Request admission of `units` starts of one config; returns the new request id."""
    request_id = new_id()
    await tx.execute(INSERT_REQUEST, request_id, lease_pool_id, pool_id, launch_config_id, units, traceparent)
    event = LeaseRequested(lease_pool_id=lease_pool_id, request_id=request_id, units=units, tenant=pool_id)
    await outbox.enqueue(tx, [outbox.Traced(event, traceparent)])
    return request_id


async def requested_config(tx: Connection, request_id: str) -> str | None:
    """Config of a request; None if the request is unknown. Requests are locked."""
    config_id: str | None = await tx.fetchval(REQUESTED_CONFIG, request_id)
    return config_id


async def take(tx: Connection, request_id: str, units: int) -> Any:
    """Subtract granted or cancelled units from a request; returns the updated row, or None if it is unknown."""
    row = await tx.fetchrow(TAKE, request_id, units)
    if row is not None and row["units"] <= 0:
        await tx.execute(DELETE_REQUEST, [request_id])
    return row


async def cancel(tx: Connection, request_id: str, units: int, reason: str) -> None:
    """Cancel units of a request that no worker waits for."""
    row = await take(tx, request_id, units)
    if row is None:
        return
    event = LeaseCancelRequested(lease_pool_id=row["lease_pool_id"], request_id=request_id, units=units, reason=reason)
    await outbox.enqueue(tx, [outbox.Traced(event, row["traceparent"])])


async def insert(tx: Connection, event: LeaseGranted, launch_config_id: str, traceparent: str) -> bool:
    """Store a grant; False if it is known."""
    new = await tx.fetchval(
        INSERT,
        event.lease_id,
        event.request_id,
        event.lease_pool_id,
        launch_config_id,
        event.fencing_token,
        event.units,
        event.expires_at,
        event.hold_until,
        traceparent,
    )
    return bool(new)


async def insert_unleased(
    tx: Connection, started: LeaseUnleasedReported, launch_config_id: str, traceparent: str, *, hold_seconds: float
) -> None:
    """Store and report an unleased launch, valid for as long as a lease of its pool."""
    await tx.execute(
        INSERT_UNLEASED,
        started.lease_id,
        started.request_id,
        started.lease_pool_id,
        launch_config_id,
        started.units,
        started.started_at + timedelta(seconds=hold_seconds),
        traceparent,
    )
    await outbox.enqueue(tx, [outbox.Traced(started, traceparent)])


async def request_confirmation(tx: Connection, lease: Lease) -> None:
    """Request the confirmation of a grant, whose call is committed. The broker's reply changes the row."""
    event = LeaseConfirmRequested(
        lease_pool_id=lease.lease_pool_id, lease_id=lease.id, fencing_token=lease.fencing_token
    )
    await outbox.enqueue(tx, [outbox.Traced(event, lease.traceparent)])


async def confirm(tx: Connection, event: LeaseConfirmed) -> None:
    """Record a confirmation, a renewal, or the charge of an unleased launch. Ended leases stay ended."""
    await tx.execute(CONFIRM, event.lease_id, event.expires_at, event.fencing_token)


async def release(tx: Connection, lease_id: str, units: int, result: str, **evidence: Any) -> None:
    """Publish the release of units of a lease, unless it has ended."""
    row = await tx.fetchrow(RELEASE, lease_id, units)
    if row is None or not row["fencing_token"]:
        return  # without a fencing token it stays charged until its hold ends
    event = LeaseReleaseRequested(
        lease_pool_id=row["lease_pool_id"],
        lease_id=lease_id,
        fencing_token=row["fencing_token"],
        units=units,
        result=result,
        **evidence,
    )
    await outbox.enqueue(tx, [outbox.Traced(event, row["traceparent"])])


async def end(tx: Connection, lease_id: str) -> None:
    """Record that the broker ended a lease. Nothing is left to release, whatever units workers still hold."""
    await tx.execute(END, lease_id)


async def resend(tx: Connection, after_seconds: float) -> int:
    """Resend requests that were last sent `after_seconds` ago, under the same id and for the intents that still wait;
    returns their number."""
    rows = await tx.fetch(RESEND, after_seconds)
    events = [
        outbox.Traced(
            LeaseRequested(
                lease_pool_id=row["lease_pool_id"], request_id=row["id"], units=row["units"], tenant=row["pool_id"]
            ),
            row["traceparent"],
        )
        for row in rows
        if row["units"] > 0
    ]
    await outbox.enqueue(tx, events)
    await tx.execute(DELETE_REQUEST, [row["id"] for row in rows if row["units"] == 0])
    return len(rows)


async def renew(tx: Connection) -> int:
    """Renew leases whose last renewal is a third of their TTL ago; returns their number."""
    return await _renew(tx, await tx.fetch(RENEWABLE))


async def renew_one(tx: Connection, lease_id: str, *, renewal_pending_seconds: float) -> None:
    """Renew a lease now, unless a renewal was requested within the last `renewal_pending_seconds`."""
    await _renew(tx, await tx.fetch(RENEW_ONE, lease_id, renewal_pending_seconds))


async def _renew(tx: Connection, rows: Sequence[Any]) -> int:
    events = [
        outbox.Traced(
            LeaseRenewRequested(
                lease_pool_id=row["lease_pool_id"], lease_id=row["id"], fencing_token=row["fencing_token"]
            ),
            row["traceparent"],
        )
        for row in rows
    ]
    await outbox.enqueue(tx, events)
    return len(rows)
