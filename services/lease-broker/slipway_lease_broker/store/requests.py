"""Requests and their queue. Written only under the lock of their pool."""

from collections.abc import Collection, Sequence
from typing import Final

from slipway_common.postgres import Connection
from slipway_lease_broker.domain.ledger import Request
from slipway_lease_broker.store.rows import columns, structs

FIELDS: Final = Request.__struct_fields__
SELECT: Final = f"SELECT {', '.join(FIELDS)} FROM requests"

WAITING: Final = f"{SELECT} WHERE lease_pool_id = $1 AND waiting_units > 0 ORDER BY place"
NAMED: Final = f"{SELECT} WHERE (lease_pool_id, id) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
# The place in the queue is an identity, drawn in the order of the rows.
ADD: Final = f"""
INSERT INTO requests ({", ".join(FIELDS)})
SELECT {", ".join(FIELDS)} FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::integer[],
    $7::timestamptz[], $8::timestamptz[], $9::timestamptz[], $10::text[])
    WITH ORDINALITY AS r ({", ".join(FIELDS)}, place)
ORDER BY r.place"""
SAVE: Final = """
UPDATE requests AS r SET waiting_units = s.waiting_units, last_asked_at = s.last_asked_at, queued_at = s.queued_at
FROM unnest($1::text[], $2::text[], $3::integer[], $4::timestamptz[], $5::timestamptz[])
    AS s (lease_pool_id, id, waiting_units, last_asked_at, queued_at)
WHERE r.lease_pool_id = s.lease_pool_id AND r.id = s.id"""
FORGET: Final = """
DELETE FROM requests WHERE lease_pool_id = $1 AND waiting_units = 0
    AND last_asked_at < slipway_clock() - make_interval(secs => $2)"""


async def waiting(tx: Connection, lease_pool_id: str) -> list[Request]:
    """In order of arrival."""
    return structs(await tx.fetch(WAITING, lease_pool_id), Request)


async def named(tx: Connection, keys: Collection[tuple[str, str]]) -> list[Request]:
    """By (lease pool id, request id)."""
    if not keys:
        return []
    pools, ids = zip(*keys, strict=True)
    return structs(await tx.fetch(NAMED, list(pools), list(ids)), Request)


async def add(tx: Connection, requests: Sequence[Request]) -> None:
    """At the end of the queue, in the order given."""
    if requests:
        await tx.execute(ADD, *columns(requests, *FIELDS))


async def save(tx: Connection, requests: Sequence[Request]) -> None:
    if requests:
        changing = ("lease_pool_id", "id", "waiting_units", "last_asked_at", "queued_at")
        await tx.execute(SAVE, *columns(requests, *changing))


async def forget(tx: Connection, lease_pool_id: str, *, done_for_seconds: float) -> None:
    await tx.execute(FORGET, lease_pool_id, done_for_seconds)
