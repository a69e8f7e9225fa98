"""History: one row per decision with its reason. Append-only, and pruned by age."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Integer, bindparam, select

from slipway_common.database.places import LAST_NUMBER
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Append, Statement, beyond, not_before
from slipway_lease_broker.domain.ledger import Entry
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import entry

FIELDS: Final = entry.c[Entry.__struct_fields__]
ADD: Final = Append(FIELDS.values())
OF_POOL: Final = Statement(
    select(entry.c.id, *FIELDS)
    .where(
        entry.c.lease_pool_id == bindparam("pool"),
        not_before(entry.c.at, "since"),
        beyond({"after": entry.c.id}, descending=True),
    )
    .order_by(entry.c.id.desc())
    .limit(bindparam("limit", type_=Integer))
)
OF_LEASE: Final = Statement(select(*FIELDS).where(entry.c.lease_id == bindparam("lease")).order_by(entry.c.id))


async def add(tx: Connection, entries: Sequence[Entry]) -> None:
    await ADD(tx, entries)


async def of_pool(
    db: Connection, lease_pool_id: str, *, since: datetime | None = None, after: int = LAST_NUMBER, limit: int
) -> list[tuple[int, Entry]]:
    """Entries of a lease pool with their numbers, newest first, from the one before the number `after`."""
    values = OF_POOL.arguments(pool=lease_pool_id, since=since, after=after, limit=limit)
    rows = [dict(row) for row in await db.fetch(OF_POOL.text, *values)]
    return [(row.pop("id"), Entry(**row)) for row in rows]


async def of_lease(db: Connection, lease_id: str) -> list[Entry]:
    """Entries of a lease, oldest first."""
    return structs(await db.fetch(OF_LEASE.text, lease_id), Entry)
