"""History: one row per decision with its reason. Append-only, and pruned by age."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Integer, bindparam, or_, select

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, append
from slipway_common.database.tables import TIME
from slipway_lease_broker.domain.ledger import Entry
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import entry

FIELDS: Final = entry.c[Entry.__struct_fields__]
SINCE: Final = bindparam("since", type_=TIME)
OF_POOL: Final = Statement(
    select(*FIELDS)
    .where(entry.c.lease_pool_id == bindparam("pool"), or_(SINCE.is_(None), entry.c.at >= SINCE))
    .order_by(entry.c.id.desc())
    .limit(bindparam("limit", type_=Integer))
)
OF_LEASE: Final = Statement(select(*FIELDS).where(entry.c.lease_id == bindparam("lease")).order_by(entry.c.id))


async def add(tx: Connection, entries: Sequence[Entry]) -> None:
    await append(tx, FIELDS.values(), entries)


async def of_pool(
    db: Connection, lease_pool_id: str, *, since: datetime | None = None, limit: int = 1_000
) -> list[Entry]:
    """Entries of a lease pool, newest first."""
    values = OF_POOL.arguments(pool=lease_pool_id, since=since, limit=limit)
    return structs(await db.fetch(OF_POOL.text, *values), Entry)


async def of_lease(db: Connection, lease_id: str) -> list[Entry]:
    """Entries of a lease, oldest first."""
    return structs(await db.fetch(OF_LEASE.text, lease_id), Entry)
