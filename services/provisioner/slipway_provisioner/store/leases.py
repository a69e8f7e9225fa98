"""The provisioner's side of leases: requests under way, leases held, units given back once."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from slipway_common import outbox
from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
)
from slipway_common.ids import new_id
from slipway_common.postgres import Connection
from slipway_provisioner.domain.workers import Worker

CANDIDATES: Final = """
SELECT l.id FROM lease l WHERE l.state <> 'ended' AND EXISTS (
    SELECT FROM worker w WHERE w.lease_id = l.id AND w.state = 'requested')
ORDER BY l.fencing_token LIMIT $1"""
LOCK: Final = """
SELECT id, request_id::text, lease_pool_id, launch_config_id, fencing_token, units, state, expires_at, hold_until,
    renewed_at, traceparent
FROM lease WHERE id = $1 FOR UPDATE"""
TRY_LOCK: Final = f"{LOCK} SKIP LOCKED"
RELEASE: Final = """
UPDATE lease SET units = units - $2, state = CASE WHEN units <= $2 THEN 'ended' ELSE state END
WHERE id = $1 AND state <> 'ended' RETURNING lease_pool_id, fencing_token, traceparent"""
RESEND: Final = """
UPDATE lease_request r SET sent_at = slipway_clock() WHERE r.id IN (
    SELECT id FROM lease_request WHERE sent_at < slipway_clock() - make_interval(secs => $1)
    ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id::text, lease_pool_id, pool_id, traceparent, (
    SELECT count(*) FROM worker w
    WHERE w.request_id = r.id AND w.state = 'requested' AND w.lease_id IS NULL) AS units"""
RENEWABLE: Final = """
UPDATE lease SET renewed_at = slipway_clock() WHERE id IN (
    SELECT id FROM lease WHERE state = 'confirmed' AND renewed_at < slipway_clock() - ttl_seconds / 3 * interval '1 s'
    ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id, lease_pool_id, fencing_token, traceparent"""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """One grant as the provisioner knows it. `units` are those not given back."""

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


async def lock(tx: Connection, lease_id: str, *, skip_locked: bool = False) -> Lease | None:
    row = await tx.fetchrow(TRY_LOCK if skip_locked else LOCK, lease_id)
    return None if row is None else Lease(**row)


async def request(
    tx: Connection, *, lease_pool_id: str, pool_id: str, launch_config_id: str, units: int, traceparent: str
) -> str:
    """Ask for admission of `units` starts of one config; returns the new request id."""
    request_id = new_id()
    await tx.execute(
        "INSERT INTO lease_request (id, lease_pool_id, pool_id, launch_config_id, units, sent_at, traceparent) "
        "VALUES ($1, $2, $3, $4, $5, slipway_clock(), $6)",
        request_id, lease_pool_id, pool_id, launch_config_id, units, traceparent,
    )  # fmt: skip
    asked = LeaseRequested(lease_pool_id=lease_pool_id, request_id=request_id, units=units, tenant=pool_id)
    await outbox.enqueue(tx, [outbox.Traced(asked, traceparent)])
    return request_id


async def cancel(tx: Connection, request_id: str, units: int, reason: str) -> None:
    """Give up units of a request that nobody waits for any more."""
    row = await tx.fetchrow(
        "UPDATE lease_request SET units = units - $2 WHERE id = $1 RETURNING lease_pool_id, traceparent, units",
        request_id, units,
    )  # fmt: skip
    if row is None:
        return
    if row["units"] <= 0:
        await tx.execute("DELETE FROM lease_request WHERE id = $1", request_id)
    gone = LeaseCancelRequested(
        lease_pool_id=row["lease_pool_id"], request_id=request_id, units=units, reason=reason
    )
    await outbox.enqueue(tx, [outbox.Traced(gone, row["traceparent"])])


async def release(
    tx: Connection, workers: Sequence[Worker], result: str, **evidence: Any
) -> list[Worker]:
    """Give back the units that these workers hold, each once; returns the workers without them. Rows are locked."""
    by_lease: dict[str, int] = {}
    for worker in workers:
        if worker.holds_unit and worker.lease_id is not None:
            by_lease[worker.lease_id] = by_lease.get(worker.lease_id, 0) + 1
    for lease_id in sorted(by_lease):
        await release_units(tx, lease_id, by_lease[lease_id], result, **evidence)
    return [msgspec.structs.replace(worker, holds_unit=False) for worker in workers]


async def release_units(tx: Connection, lease_id: str, units: int, result: str, **evidence: Any) -> None:
    """Tell the broker that units of a lease are free; nothing to tell once it has ended."""
    row = await tx.fetchrow(RELEASE, lease_id, units)
    if row is None:
        return
    event = LeaseReleaseRequested(
        lease_pool_id=row["lease_pool_id"], lease_id=lease_id, fencing_token=row["fencing_token"], units=units,
        result=result, **evidence,
    )  # fmt: skip
    await outbox.enqueue(tx, [outbox.Traced(event, row["traceparent"])])


async def end(tx: Connection, lease_id: str) -> None:
    """The broker ended it: expired, lost, or held to its end. Nothing is left to give back, whatever workers hold."""
    await tx.execute("UPDATE lease SET state = 'ended', units = 0 WHERE id = $1", lease_id)


async def resend(tx: Connection, after_seconds: float) -> int:
    """Repeat requests that have waited for `after_seconds` since they were last sent, under the same id, for the
    intents that still wait; returns how many."""
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
    await tx.execute("DELETE FROM lease_request WHERE id = ANY($1)", [r["id"] for r in rows if r["units"] == 0])
    return len(rows)


async def renew(tx: Connection) -> int:
    """Renew the leases of which a third of the ttl has passed; returns how many."""
    rows = await tx.fetch(RENEWABLE)
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
