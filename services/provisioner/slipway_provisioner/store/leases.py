"""Leases of the provisioner: pending requests, granted leases, and the release of each unit, once."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmed,
    LeaseConfirmRequested,
    LeaseExpired,
    LeaseGranted,
    LeaseLost,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    LeaseUnleasedReported,
)
from slipway_api.events.lifecycle import WAITING
from slipway_api.http.provisioner.workers import WorkerLease
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, arrays, columns, names, seconds
from slipway_common.messaging import outbox
from slipway_provisioner.domain.launching import LeaseState
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store.clock import NOW, overdue
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.configs import MAY_START
from slipway_provisioner.store.tables import lease, lease_request, worker


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


C: Final = lease.c
FIELDS: Final = C[Lease.__struct_fields__]
CANDIDATES_MAX: Final = 64
# Leases under which nothing may start, or whose renewal is pending, are left out so that they do not block others. What
# was sent in the future was sent before the clock was set back, and is due again, here and below. Settings are
# written into the text: a statement with parameters is planned anew each time, which takes longer than to execute it.
CANDIDATES: Final = f"""
SELECT l.id FROM (
    SELECT DISTINCT lease_id FROM worker WHERE lease_id IS NOT NULL AND state IN ({states(WAITING)})) AS w
CROSS JOIN LATERAL (SELECT * FROM lease WHERE id = w.lease_id LIMIT 1) AS l
JOIN launch_config c ON c.id = l.launch_config_id JOIN launch_config_name n ON n.name = c.name
JOIN worker_pool p ON p.id = c.pool_id JOIN account a ON a.id = c.account_id
WHERE l.state <> '{LeaseState.ENDED}' AND {MAY_START}
    AND (l.expires_at > slipway_clock() + (coalesce(a.request_timeout_seconds, $1) + $2) * interval '1 s'
        OR l.renewed_at NOT BETWEEN slipway_clock() - $2 * interval '1 s' AND slipway_clock())
ORDER BY l.fencing_token LIMIT {CANDIDATES_MAX}"""
# Leases with waiting intents that no other transaction has locked, as one that starts calls under them has.
FREE: Final = f"""
SELECT id FROM lease WHERE id = ANY($1) AND EXISTS (
    SELECT FROM worker WHERE lease_id = lease.id AND state IN ({states(WAITING)}))
ORDER BY id FOR UPDATE SKIP LOCKED"""
_ID: Final = C.id == sa.bindparam("lease_id")
_LIVE: Final = C.state != LeaseState.ENDED
_ONE: Final = sa.select(*FIELDS).where(_ID)
GET: Final = Statement(_ONE)
LOCK: Final = Statement(_ONE.with_for_update())
LOCK_ALL: Final = "SELECT lock_leases($1, $2)"
_CONFIRMED: Final = C["id", "fencing_token", "expires_at"]
# By their ids as well: a kept plan of the join alone could read all leases.
CONFIRM: Final = f"""
UPDATE lease l SET state = '{LeaseState.CONFIRMED}', fencing_token = c.fencing_token, expires_at = c.expires_at,
    ttl_seconds = greatest(0.1, extract(epoch FROM c.expires_at - slipway_clock()))
FROM unnest({arrays(_CONFIRMED)}) AS c ({names(_CONFIRMED)})
WHERE l.id = ANY($1) AND l.id = c.id AND l.state <> '{LeaseState.ENDED}'"""
_NEW: Final[dict[str, Any]] = {field.name: sa.bindparam(field.name) for field in FIELDS if field.name != "renewed_at"}
INSERT: Final = Statement(
    postgresql.insert(lease)
    .values(_NEW | {"granted_units": sa.bindparam("units")})
    .on_conflict_do_nothing(index_elements=[C.id])
    .returning(sa.true())
)
_GRANTED: Final = C[
    "id", "request_id", "lease_pool_id", "fencing_token", "units", "expires_at", "hold_until", "traceparent"
]
# Without a launch config if their request is unknown, which is looked up by its id: see BIND.
GRANT: Final = f"""
INSERT INTO lease ({names(_GRANTED)}, granted_units, state, launch_config_id)
SELECT {names(_GRANTED, "g.")}, g.units, '{LeaseState.RESERVED}', coalesce(r.launch_config_id, '')
FROM unnest({arrays(_GRANTED)}) AS g ({names(_GRANTED)})
LEFT JOIN lease_request r ON r.id = ANY($2) AND r.id = g.request_id
ORDER BY g.id ON CONFLICT (id) DO NOTHING RETURNING id"""
# It has no fencing token until the broker has charged it; until then it is neither renewed nor released.
INSERT_UNLEASED: Final = Statement(sa.insert(lease).values(_NEW))
END: Final = Statement(sa.update(lease).where(_ID).values(state=LeaseState.ENDED, units=0))
_UNITS: Final = sa.bindparam("released", type_=C.units.type)
RELEASE: Final = Statement(
    sa.update(lease)
    .where(_ID, _LIVE)
    .values(units=C.units - _UNITS, state=sa.case((C.units <= _UNITS, LeaseState.ENDED.value), else_=C.state))
    .returning(C.lease_pool_id, C.fencing_token, C.traceparent)
)
_RENEWED: Final = C["id", "lease_pool_id", "fencing_token", "traceparent"]
# An index finds those that are due by the shortest TTL; each is compared with its own.
RENEWABLE: Final = f"""
UPDATE lease SET renewed_at = slipway_clock() WHERE id = ANY(ARRAY(
    SELECT id FROM lease
    WHERE state = '{LeaseState.CONFIRMED}'
        AND {overdue("renewed_at", f"(SELECT min(ttl_seconds) FROM lease WHERE state <> '{LeaseState.ENDED}') / 3")}
        AND renewed_at NOT BETWEEN {NOW} - ttl_seconds / 3 * interval '1 s' AND {NOW}
    ORDER BY id FOR UPDATE SKIP LOCKED))
RETURNING {names(_RENEWED)}"""
RENEW_ONE: Final = Statement(
    sa.update(lease)
    .where(
        _ID,
        ~C.renewed_at.between(sa.func.slipway_clock() - seconds("renewal_pending"), sa.func.slipway_clock()),
    )
    .values(renewed_at=sa.func.slipway_clock())
    .returning(*_RENEWED)
)

REQUEST: Final = lease_request.c
_REQUEST_ID: Final = REQUEST.id == sa.bindparam("request_id")
_REQUESTS: Final = REQUEST.id == sa.any_(array("ids", REQUEST.id))
INSERT_REQUEST: Final = Statement(
    sa.insert(lease_request).values(
        {field.name: sa.bindparam(field.name) for field in REQUEST if field.name != "sent_at"}
    )
)
REQUESTS_OF: Final = Statement(
    sa.select(REQUEST.id)
    .where(REQUEST.id.in_(sa.select(worker.c.request_id).where(worker.c.id == sa.any_(array("ids", worker.c.id)))))
    .order_by(REQUEST.id)
    .with_for_update()
)
LEASES_OF: Final = Statement(
    sa.select(C.id)
    .where(C.id.in_(sa.select(worker.c.lease_id).where(worker.c.id == sa.any_(array("ids", worker.c.id)))))
    .order_by(C.id)
    .with_for_update(skip_locked=True)
)
REQUESTED_CONFIG: Final = Statement(sa.select(REQUEST.launch_config_id).where(_REQUEST_ID))
# A request of which no unit is left is deleted.
TAKE: Final = """
WITH ended AS (DELETE FROM lease_request WHERE id = $1 AND units <= $2 RETURNING lease_pool_id, traceparent),
left_over AS (
    UPDATE lease_request SET units = units - $2 WHERE id = $1 AND units > $2 RETURNING lease_pool_id, traceparent)
SELECT * FROM ended UNION ALL SELECT * FROM left_over"""
# A unit of a lease for each of these intents, and the units of their requests. By their ids as well: a kept plan of the
# joins alone could read all workers and requests.
BIND: Final = """
WITH taken AS (SELECT * FROM unnest($3::text[], $4::integer[]) AS t (id, units)),
ended AS (DELETE FROM lease_request r USING taken t WHERE r.id = ANY($3) AND r.id = t.id AND r.units <= t.units),
left_over AS (
    UPDATE lease_request r SET units = r.units - t.units
    FROM taken t WHERE r.id = ANY($3) AND r.id = t.id AND r.units > t.units)
UPDATE worker w SET lease_id = b.lease_id, holds_unit = true
FROM unnest($1::uuid[], $2::text[]) AS b (id, lease_id) WHERE w.id = ANY($1) AND w.id = b.id"""
DELETE_REQUEST: Final = Statement(sa.delete(lease_request).where(_REQUESTS))
RESEND: Final = f"""
UPDATE lease_request r SET sent_at = slipway_clock() WHERE r.id = ANY(ARRAY(
    SELECT id FROM lease_request
    WHERE {overdue("sent_at", "$1")}
    ORDER BY id FOR UPDATE SKIP LOCKED))
RETURNING {names(REQUEST["id", "lease_pool_id", "pool_id", "traceparent"])}, (
    SELECT count(*) FROM worker w
    WHERE w.request_id = r.id AND w.state IN ({states(WAITING)}) AND w.lease_id IS NULL) AS units"""


async def candidates(db: Connection, *, call_timeout_seconds: float, clock_skew_seconds: float) -> list[str]:
    """Leases under which a call may start, read without locks; oldest admission first. A renewal is pending for the
    clock skew."""
    text = CANDIDATES.replace("$1", f"{call_timeout_seconds:f}").replace("$2", f"{clock_skew_seconds:f}")
    return [row["id"] for row in await db.fetch(text)]


async def free(db: Connection, lease_ids: Sequence[str]) -> list[str]:
    """Those of some leases that have waiting intents and that no other transaction has locked. Call it outside a
    transaction, which would keep their locks."""
    return [row["id"] for row in await db.fetch(FREE, lease_ids)]


async def lock(tx: Connection, lease_id: str) -> Lease | None:
    row = await tx.fetchrow(LOCK.text, *LOCK.arguments(lease_id=lease_id))
    return None if row is None else Lease(**row)


async def get(db: Connection, lease_id: str) -> Lease | None:
    row = await db.fetchrow(GET.text, *GET.arguments(lease_id=lease_id))
    return None if row is None else Lease(**row)


def described(lease: Lease) -> WorkerLease:
    """Lease as shown to people."""
    return msgspec.convert(lease, WorkerLease, from_attributes=True)


async def lock_all(tx: Connection, lease_ids: Iterable[str], request_ids: Iterable[str]) -> None:
    """Lock leases, then requests, before several are changed."""
    await tx.execute(LOCK_ALL, sorted(set(lease_ids)), sorted(set(request_ids)))


async def lock_of(tx: Connection, worker_ids: Sequence[str]) -> list[str]:
    """Lock the leases of waiting workers that no other transaction has locked; returns the lease ids."""
    return [row["id"] for row in await tx.fetch(LEASES_OF.text, *LEASES_OF.arguments(ids=worker_ids))]


async def lock_requests_of(tx: Connection, worker_ids: Sequence[str]) -> list[str]:
    """Lock the requests of waiting workers; returns the request ids."""
    return [row["id"] for row in await tx.fetch(REQUESTS_OF.text, *REQUESTS_OF.arguments(ids=worker_ids))]


async def request(
    tx: Connection, *, lease_pool_id: str, pool_id: str, launch_config_id: str, units: int, traceparent: str
) -> str:
    """Request admission of `units` starts of one config; returns the new request id."""
    request_id = new_id()
    arguments = INSERT_REQUEST.arguments(
        id=request_id,
        lease_pool_id=lease_pool_id,
        pool_id=pool_id,
        launch_config_id=launch_config_id,
        units=units,
        traceparent=traceparent,
    )
    await tx.execute(INSERT_REQUEST.text, *arguments)
    event = LeaseRequested(lease_pool_id=lease_pool_id, request_id=request_id, units=units, tenant=pool_id)
    await outbox.enqueue(tx, [outbox.Traced(event, traceparent)])
    return request_id


async def requested_config(tx: Connection, request_id: str) -> str | None:
    """Config of a request; None if the request is unknown. Requests are locked."""
    arguments = REQUESTED_CONFIG.arguments(request_id=request_id)
    config_id: str | None = await tx.fetchval(REQUESTED_CONFIG.text, *arguments)
    return config_id


async def take(tx: Connection, request_id: str, units: int) -> Any:
    """Subtract granted or cancelled units from a locked request; returns its row, or None if it is unknown."""
    return await tx.fetchrow(TAKE, request_id, units)


async def cancel(tx: Connection, request_id: str, units: int, reason: str) -> None:
    """Cancel units of a request that no worker waits for."""
    row = await take(tx, request_id, units)
    if row is None:
        return
    event = LeaseCancelRequested(lease_pool_id=row["lease_pool_id"], request_id=request_id, units=units, reason=reason)
    await outbox.enqueue(tx, [outbox.Traced(event, row["traceparent"])])


async def grant(tx: Connection, grants: Sequence[tuple[LeaseGranted, str]]) -> set[str]:
    """Store grants, each with its trace; returns the ids of those that are not known."""
    events = [event for event, _ in grants]
    values = columns(events, ("lease_id", *(field.name for field in _GRANTED[1:-1])))
    return {row["id"] for row in await tx.fetch(GRANT, *values.values(), [trace for _, trace in grants])}


async def bind(tx: Connection, admitted: Sequence[Worker], taken: Mapping[str, int]) -> None:
    """Store the leases that intents start under, and subtract the units `taken` from requests. All are locked."""
    bound = columns(admitted, ("id", "lease_id")).values()
    await tx.execute(BIND, *bound, list(taken), list(taken.values()))


async def insert_ended(
    tx: Connection, event: LeaseReleased | LeaseExpired | LeaseLost, launch_config_id: str, at: datetime
) -> bool:
    """Store a lease that ended before its grant was received; False if it is known."""
    arguments = INSERT.arguments(
        id=event.lease_id,
        request_id=event.request_id,
        lease_pool_id=event.lease_pool_id,
        launch_config_id=launch_config_id,
        fencing_token=0,
        units=0,
        state=LeaseState.ENDED,
        expires_at=at,
        hold_until=at,
        traceparent="",
    )
    return bool(await tx.fetchval(INSERT.text, *arguments))


async def insert_unleased(
    tx: Connection, started: LeaseUnleasedReported, launch_config_id: str, traceparent: str, *, hold_seconds: float
) -> None:
    """Store and report an unleased launch, valid for as long as a lease of its pool."""
    hold_until = started.started_at + timedelta(seconds=hold_seconds)
    arguments = INSERT_UNLEASED.arguments(
        id=started.lease_id,
        request_id=started.request_id,
        lease_pool_id=started.lease_pool_id,
        launch_config_id=launch_config_id,
        fencing_token=0,
        units=started.units,
        state=LeaseState.UNLEASED,
        expires_at=hold_until,
        hold_until=hold_until,
        traceparent=traceparent,
    )
    await tx.execute(INSERT_UNLEASED.text, *arguments)
    await outbox.enqueue(tx, [outbox.Traced(started, traceparent)])


def confirmation(lease: Lease) -> outbox.Traced:
    """Request for the confirmation of a grant, whose call is committed. The broker's reply changes the row."""
    event = LeaseConfirmRequested(
        lease_pool_id=lease.lease_pool_id, lease_id=lease.id, fencing_token=lease.fencing_token
    )
    return outbox.Traced(event, lease.traceparent)


async def confirm(tx: Connection, events: Sequence[LeaseConfirmed]) -> None:
    """Record confirmations, renewals, and charges of unleased launches, of a lease the last one. Ended leases stay
    ended."""
    last = {event.lease_id: event for event in events}
    await tx.execute(CONFIRM, *columns(list(last.values()), ("lease_id", "fencing_token", "expires_at")).values())


async def release(tx: Connection, lease_id: str, units: int, result: str, **evidence: Any) -> None:
    """Publish the release of units of a lease, unless it has ended."""
    row = await tx.fetchrow(RELEASE.text, *RELEASE.arguments(lease_id=lease_id, released=units))
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
    await tx.execute(END.text, *END.arguments(lease_id=lease_id))


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
    if unneeded := [row["id"] for row in rows if row["units"] == 0]:
        await _delete_requests(tx, unneeded)
    return len(rows)


async def _delete_requests(tx: Connection, request_ids: Sequence[str]) -> None:
    await tx.execute(DELETE_REQUEST.text, *DELETE_REQUEST.arguments(ids=request_ids))


async def renew(tx: Connection) -> int:
    """Renew leases whose last renewal is a third of their TTL ago; returns their number."""
    return await _renew(tx, await tx.fetch(RENEWABLE))


async def renew_one(tx: Connection, lease_id: str, *, renewal_pending_seconds: float) -> None:
    """Renew a lease now, unless a renewal was requested within the last `renewal_pending_seconds`."""
    arguments = RENEW_ONE.arguments(lease_id=lease_id, renewal_pending=renewal_pending_seconds)
    await _renew(tx, await tx.fetch(RENEW_ONE.text, *arguments))


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
