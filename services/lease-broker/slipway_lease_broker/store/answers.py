"""Queries for answers to callers: leases by request, recent grants, queue positions. Takes no locks."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Column, Integer, bindparam, func, select, true, tuple_

from slipway_common.database.places import Number, Text
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, arrays, beyond, given, matches, names
from slipway_common.database.tables import TIME
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Request
from slipway_lease_broker.domain.queue_status import HoldEnd, QueuePosition
from slipway_lease_broker.store import gangs, groups, leases, pools, requests, tenants
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import COUNTED, WAITING, condition, lease, lease_pool, request

ASKED: Final = given(Column("requests", lease.c.request_id.type), name="asked")
# One request after another: a kept plan of their leases in order could read all leases of the pool.
_GRANTED: Final = (
    select(*leases.FIELDS)
    .where(lease.c.lease_pool_id == bindparam("pool"), lease.c.request_id == ASKED.c.requests)
    .offset(0)
    .lateral("granted")
)
OF_REQUESTS: Final = Statement(
    select(*_GRANTED.c).select_from(ASKED.join(_GRANTED, true())).order_by(_GRANTED.c.fencing_token)
)
SEEN: Final = lease.c["lease_pool_id", "fencing_token"]
GRANT: Final = lease.c["lease_pool_id", "request_id", "fencing_token"]
# Tokens are assigned under the pool's lock, so they commit in order: no grant above the last seen token is missed, and
# the cost is that of the grants since.
SINCE: Final = f"""
SELECT g.* FROM unnest({arrays(SEEN)}) AS seen ({names(SEEN)}), LATERAL (
    SELECT {names(GRANT)} FROM leases AS l
    WHERE l.lease_pool_id = seen.lease_pool_id AND l.fencing_token > seen.fencing_token
    ORDER BY l.fencing_token LIMIT $3) AS g"""
POOL_OF: Final = Statement(select(lease.c.lease_pool_id).where(lease.c.id == bindparam("lease")))
POOL: Final = Statement(
    select(*pools.TERMS, func.slipway_clock().label("now")).where(lease_pool.c.id == bindparam("pool"))
)
# Requests served before one: those ahead of it in its own queue; as many of each other tenant, since tenants take
# turns; and all of a higher priority. No queue is counted further than $3.
QUEUE_POSITION: Final = f"""
WITH RECURSIVE mine AS (SELECT {names(requests.FIELDS)} FROM requests WHERE lease_pool_id = $1 AND id = $2),
ahead AS (
    SELECT count(*) AS requests FROM (SELECT FROM mine AS m, requests AS r
        WHERE r.lease_pool_id = $1 AND {condition(WAITING, "r.")} AND r.operation = m.operation
            AND r.tenant = m.tenant AND r.priority = m.priority AND r.group_name = m.group_name
            AND (r.since, r.place) < (m.since, m.place) LIMIT $3) AS before
), {requests.QUEUES}, others AS (
    SELECT coalesce(sum(counted.requests), 0) AS requests FROM mine AS m, ahead AS a, queue AS q, LATERAL (
        SELECT count(*) AS requests FROM (SELECT FROM requests AS r
            WHERE r.lease_pool_id = $1 AND {condition(WAITING, "r.")} AND r.operation = q.operation
                AND r.tenant = q.tenant AND r.priority = q.priority AND r.group_name = q.group_name
            LIMIT CASE WHEN q.priority > m.priority THEN $3 ELSE a.requests + 1 END) AS turns) AS counted
    WHERE q.priority >= m.priority AND q.operation = m.operation
        AND ({names(requests.QUEUE, "q.")}) <> ({names(requests.QUEUE, "m.")})
)
SELECT m.*, 1 + a.requests + o.requests AS position FROM mine AS m, ahead AS a, others AS o"""
# The rate of grants, from up to the last hundred of the last minute: fewer are those of the whole minute, or a pool
# whose only lease was just granted would promise the next one at once. Tokens are in the order of grants.
GRANT_RATE: Final = """
SELECT coalesce(sum(granted_units), 0)::int AS units,
    CASE WHEN count(*) < 100 THEN 60.0 ELSE extract(epoch FROM slipway_clock() - min(granted_at)) END::float8 AS seconds
FROM (
    SELECT granted_units, granted_at FROM leases WHERE lease_pool_id = $1 ORDER BY fencing_token DESC LIMIT 100) AS last
WHERE granted_at > slipway_clock() - interval '1 minute'"""
HOLD_ENDS: Final = f"""
SELECT coalesce(counted_until, hold_until) AS at, greatest(units - uncounted_units, 0) * weight AS cost FROM leases
WHERE lease_pool_id = $1 AND {condition(COUNTED)} ORDER BY 1"""
AFTER: Final = bindparam("rank", type_=Integer), bindparam("since", type_=TIME), bindparam("place", type_=BigInteger)
UNGRANTED: Final = Statement(
    select(*requests.FIELDS)
    .where(
        request.c.lease_pool_id == bindparam("pool"),
        request.c.waiting_units > 0,
        matches(request.c.tenant, "tenant"),
        tuple_(-request.c.priority, request.c.since, request.c.place)
        > tuple_(
            bindparam("rank", type_=Integer), bindparam("since", type_=TIME), bindparam("place", type_=BigInteger)
        ),
    )
    .order_by(request.c.priority.desc(), request.c.since, request.c.place)
    .limit(leases.LIMIT)
)
HELD: Final = Statement(
    select(*leases.FIELDS)
    .where(
        COUNTED,
        matches(lease.c.lease_pool_id, "pool"),
        matches(lease.c.tenant, "tenant"),
        matches(lease.c.owner, "owner"),
        beyond({"after_pool": lease.c.lease_pool_id, "after_token": lease.c.fencing_token}),
    )
    .order_by(lease.c.lease_pool_id, lease.c.fencing_token)
    .limit(leases.LIMIT)
)

NOTIFY: Final = "SELECT pg_notify($1, $2)"

AHEAD_MAX: Final = 1_000
SINCE_MAX: Final = 1_000
HELD_READ_MAX: Final = 1_000


async def of_requests(db: Connection, lease_pool_id: str, request_ids: Collection[str]) -> list[Lease]:
    """All leases that were granted to these requests, in order of tokens."""
    ids = list(request_ids)
    if not ids:
        return []
    values = OF_REQUESTS.arguments(pool=lease_pool_id, requests=ids)
    return structs(await db.fetch(OF_REQUESTS.text, *values), Lease)


async def granted_since(db: Connection, seen: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """(lease pool, request, token) of grants above the tokens seen, at most SINCE_MAX per pool."""
    rows = await db.fetch(SINCE, list(seen), list(seen.values()), SINCE_MAX)
    return [(row["lease_pool_id"], row["request_id"], row["fencing_token"]) for row in rows]


async def pool_of(db: Connection, lease_id: str) -> str | None:
    found: str | None = await db.fetchval(POOL_OF.text, lease_id)
    return found


async def pool(db: Connection, lease_pool_id: str) -> tuple[LeasePool, datetime] | None:
    """A lease pool and the database's time."""
    row = await db.fetchrow(POOL.text, lease_pool_id)
    return None if row is None else (msgspec.convert(dict(row), LeasePool), row["now"])


async def queue_position(db: Connection, lease_pool_id: str, request_id: str) -> QueuePosition | None:
    """The position of a request in the queues of its pool, with at most AHEAD_MAX requests of each queue counted; None
    for an unknown request."""
    found = await pool(db, lease_pool_id)
    row = await db.fetchrow(QUEUE_POSITION, lease_pool_id, request_id, AHEAD_MAX)
    if found is None or row is None:
        return None
    rate: Any = await db.fetchrow(GRANT_RATE, lease_pool_id)
    request = msgspec.convert(dict(row), Request)
    known = await tenants.named(db, {(lease_pool_id, request.tenant)})
    group = await groups.named(db, {(lease_pool_id, request.group_name)} if request.group_name else ())
    elsewhere = [] if request.gang_id is None else await gangs.elsewhere(db, [request.gang_id], lease_pool_id)
    others = {member.lease_pool_id for member in elsewhere}
    return QueuePosition(
        request=request,
        position=int(row["position"]),
        pool=found[0],
        now=found[1],
        tenant=known[0] if known else None,
        group=group[0] if group else None,
        elsewhere=elsewhere,
        other_pools=await pools.named(db, others) if others else (),
        hold_ends=await _hold_ends(db, found[0]),
        granted_units=rate["units"],
        granted_seconds=rate["seconds"],
    )


async def _hold_ends(db: Connection, pool: LeasePool) -> list[HoldEnd]:
    """Ends of the held leases of a pool, in order; none if it has so many that reading them for each answer would
    cost too much."""
    return structs(await db.fetch(HOLD_ENDS, pool.id), HoldEnd) if pool.held_units <= HELD_READ_MAX else []


class WaitingPlace(NamedTuple):
    """Place in the list of waiting requests; `rank` is the negative priority."""

    rank: Annotated[int, msgspec.Meta(ge=-9, le=0)]
    since: datetime
    place: Number


class HeldPlace(NamedTuple):
    """Place in the list of leases that are held."""

    lease_pool_id: Text
    fencing_token: Number


FIRST_WAITING: Final = WaitingPlace(-10, datetime(1970, 1, 1, tzinfo=UTC), 0)
FIRST_HELD: Final = HeldPlace("", 0)


async def waiting(
    db: Connection, lease_pool_id: str, tenant: str | None, *, after: WaitingPlace = FIRST_WAITING, limit: int
) -> list[Request]:
    """Waiting requests, from the one after that place: higher priorities first, then the longest wait."""
    values = UNGRANTED.arguments(pool=lease_pool_id, tenant=tenant, limit=limit, **after._asdict())
    return structs(await db.fetch(UNGRANTED.text, *values), Request)


async def held(
    db: Connection,
    lease_pool_id: str | None,
    tenant: str | None,
    owner: str | None,
    *,
    after: HeldPlace = FIRST_HELD,
    limit: int,
) -> list[Lease]:
    """Leases that count against the limit of a pool or, for None, of all pools, from the one after that place."""
    values = HELD.arguments(
        pool=lease_pool_id,
        tenant=tenant,
        owner=owner,
        after_pool=after.lease_pool_id,
        after_token=after.fencing_token,
        limit=limit,
    )
    return structs(await db.fetch(HELD.text, *values), Lease)


async def notify(db: Connection, channel: str, payload: str) -> None:
    """Send a NOTIFY to all listeners. Call it outside transactions: inside one it would halve the commit rate."""
    await db.execute(NOTIFY, channel, payload)
