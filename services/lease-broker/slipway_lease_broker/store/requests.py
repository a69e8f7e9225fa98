"""Requests and their queue. Written only under the lock of their pool."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Integer, Select, bindparam, literal_column, select, true, update

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Append, Statement, arrays, given, names, one_of
from slipway_lease_broker.domain.ledger import Request
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import WAITING, WAITING_BY_ARRIVAL, condition, request

FIELDS: Final = request.c[Request.__struct_fields__]
NEW: Final = [field for field in FIELDS if field.name != "place"]
ADD: Final = Append(NEW)
SELECT: Final = f"SELECT {names(FIELDS)} FROM requests"

PER_QUEUE_MIN: Final = 16
QUEUE: Final = request.c["operation", "tenant", "priority", "group_name"]
# One row per queue of $1, found by a loose index scan: the cost grows with the queues, not with their requests.
QUEUES: Final = f"""
queue AS (
    (SELECT {names(QUEUE)} FROM requests
     WHERE lease_pool_id = $1 AND {condition(WAITING)}
     ORDER BY {names(QUEUE)} LIMIT 1)
    UNION ALL
    SELECT next.* FROM queue AS q, LATERAL (
        SELECT {names(QUEUE)} FROM requests
        WHERE lease_pool_id = $1 AND {condition(WAITING)}
            AND ({names(QUEUE)}) > ({names(QUEUE, "q.")})
        ORDER BY {names(QUEUE)} LIMIT 1) AS next
)"""
# The first of each queue.
HEADS: Final = f"""
WITH RECURSIVE {QUEUES}
SELECT heads.* FROM queue AS q, LATERAL (
    {SELECT} AS r WHERE lease_pool_id = $1 AND {condition(WAITING)} AND r.operation = q.operation
        AND r.tenant = q.tenant AND r.priority = q.priority AND r.group_name = q.group_name
    ORDER BY since, place
    LIMIT (SELECT least($2, greatest({PER_QUEUE_MIN}, ceil(2.0 * $2 / count(*))))::int FROM queue)) AS heads"""
# The first $6 of each queue named.
OF_QUEUES: Final = f"""
SELECT heads.* FROM unnest({arrays(QUEUE, first=2)}) AS q ({names(QUEUE)}), LATERAL (
    {SELECT} AS r WHERE lease_pool_id = $1 AND {condition(WAITING)} AND r.operation = q.operation
        AND r.tenant = q.tenant AND r.priority = q.priority AND r.group_name = q.group_name
    ORDER BY since, place LIMIT $6) AS heads"""
LAPSE: Final = f"""
UPDATE requests SET lapsed = true WHERE (lease_pool_id, id) IN (
    SELECT lease_pool_id, id FROM requests WHERE lease_pool_id = $1 AND {condition(WAITING_BY_ARRIVAL)}
        AND last_requested_at < $2 ORDER BY last_requested_at LIMIT $3)
RETURNING {names(FIELDS)}"""
UNANNOUNCED: Final = Statement(
    select(*FIELDS)
    .where(request.c.lease_pool_id == bindparam("pool"), WAITING, request.c.queued_at.is_(None))
    .order_by(request.c.place)
    .limit(bindparam("limit", type_=Integer))
)
KEYS: Final = request.c["lease_pool_id", "id"]
_KEY: Final = given(*KEYS)
# A row for each key by the primary key: a join could read all requests.
_ROW: Final = (
    select(*FIELDS)
    .where(request.c.lease_pool_id == _KEY.c.lease_pool_id, request.c.id == _KEY.c.id)
    .limit(literal_column("1"))
)


def _of_each_key(row: Select[Any]) -> Select[Any]:
    named = row.lateral("named")
    return select(*named.c).select_from(_KEY.join(named, true()))


NAMED: Final = Statement(_of_each_key(_ROW))
LOCK: Final = Statement(_of_each_key(_ROW.with_for_update(key_share=True)))
# Set by its first arrival.
FIXED: Final = request.c[
    "id",
    "lease_pool_id",
    "tenant",
    "operation",
    "requested_units",
    "requested_at",
    "since",
    "traceparent",
    "priority",
    "whole",
    "hold_seconds",
    "owner",
    "group_name",
    "gang_id",
    "over_kafka",
    "place",
]
CHANGED: Final = given(*KEYS, *(field for field in FIELDS if field.name not in FIXED))
SAVE: Final = Statement(
    update(request)
    .where(*one_of(CHANGED, *KEYS))
    .values({field.name: field for field in CHANGED.c if field.name not in FIXED})
)


async def heads(tx: Connection, lease_pool_id: str, *, enough: int) -> tuple[list[Request], int]:
    """The first requests of each queue, in order, and the most that were read of one queue.

    `enough` is how many may start in all; a queue hardly starts more than twice its share of them.
    """
    found = structs(await tx.fetch(HEADS, lease_pool_id, enough), Request)
    queues = len({request.queue for request in found}) or 1
    return found, min(enough, max(PER_QUEUE_MIN, -(-2 * enough // queues)))


async def of_queues(
    tx: Connection, lease_pool_id: str, queues: Collection[tuple[str, str, int, str]], *, per_queue: int
) -> list[Request]:
    """The first `per_queue` requests of each of these queues (operation, tenant, priority, group)."""
    names = [list(column) for column in zip(*queues, strict=True)]
    return structs(await tx.fetch(OF_QUEUES, lease_pool_id, *names, per_queue), Request)


async def lapse(tx: Connection, lease_pool_id: str, *, stale_since: datetime, limit: int) -> list[Request]:
    """Mark requests that were not repeated since then as lapsed, until they are repeated; returns them."""
    return structs(await tx.fetch(LAPSE, lease_pool_id, stale_since, limit), Request)


async def unannounced(tx: Connection, lease_pool_id: str, *, limit: int) -> list[Request]:
    """Waiting requests without a published LeaseQueued, in order of arrival."""
    return structs(await tx.fetch(UNANNOUNCED.text, *UNANNOUNCED.arguments(pool=lease_pool_id, limit=limit)), Request)


async def named(db: Connection, keys: Collection[tuple[str, str]]) -> list[Request]:
    """Requests by (lease pool id, request id)."""
    if not keys:
        return []
    pools, ids = zip(*keys, strict=True)
    return structs(await db.fetch(NAMED.text, *NAMED.arguments(lease_pool_id=pools, id=ids)), Request)


async def lock(tx: Connection, keys: Collection[tuple[str, str]]) -> list[Request]:
    """Lock requests by (lease pool id, request id), so that none is pruned before the transaction ends. Call it under
    the locks of their pools."""
    if not keys:
        return []
    pools, ids = zip(*keys, strict=True)
    return structs(await tx.fetch(LOCK.text, *LOCK.arguments(lease_pool_id=pools, id=ids)), Request)


async def add(tx: Connection, requests: Sequence[Request]) -> None:
    """Append requests to the queue, in the order given: `place` is an identity column, assigned in that order."""
    await ADD(tx, requests)


async def save(tx: Connection, requests: Sequence[Request]) -> None:
    if requests:
        await tx.execute(SAVE.text, *SAVE.rows(requests))
