"""Audit of lease pools: one row per change of declared terms, with who made it. Append-only, and pruned by age."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Integer, bindparam, insert, select

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, given, matches, not_before
from slipway_lease_broker.domain.declaration import KIND, Audited
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import audit

FIELDS: Final = audit.c[Audited.__struct_fields__]
ADD: Final = Statement(insert(audit).from_select(FIELDS.keys(), select(given(*FIELDS))))
LISTED: Final = Statement(
    select(*FIELDS)
    .where(audit.c.kind == KIND, matches(audit.c.subject_id, "pool"), not_before(audit.c.at, "since"))
    .order_by(audit.c.id.desc())
    .limit(bindparam("limit", type_=Integer))
)


async def add(tx: Connection, rows: Sequence[Audited]) -> None:
    if rows:
        await tx.execute(ADD.text, *ADD.rows(rows))


async def listed(
    db: Connection, lease_pool_id: str | None, *, since: datetime | None = None, limit: int
) -> list[Audited]:
    """Changes of a lease pool, or of all, newest first."""
    arguments = LISTED.arguments(pool=lease_pool_id, since=since, limit=limit)
    return structs(await db.fetch(LISTED.text, *arguments), Audited)
