"""History of pools: what was declared, by whom, with the changes made then."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, beyond, given
from slipway_provisioner.domain.comparison import History
from slipway_provisioner.domain.declaration import Request
from slipway_provisioner.domain.rollback import Entry
from slipway_provisioner.store.tables import pool_revision

R: Final = pool_revision.c
CHUNK: Final = 100
# The changes are passed as text: the driver would take a list in an array for a further dimension.
_GIVEN: Final = given(R.pool_id, R.revision, R.owner, R.revisions, R.spec, R.spec_digest, sa.Column("changes", sa.Text))
_REQUEST: Final = tuple(sa.bindparam(name, type_=R[name].type) for name in ("by", "action", "reason", "to_revision"))
RECORD: Final = Statement(
    sa.insert(pool_revision).from_select(
        [*(field.name for field in _GIVEN.c), "by", "action", "reason", "to_revision"],
        sa.select(
            *(sa.cast(field, JSONB) if field.name == "changes" else field for field in _GIVEN.c),
            *_REQUEST,
        ),
    )
)
_SHOWN: Final = R[
    "revision",
    "at",
    "by",
    "action",
    "reason",
    "to_revision",
    "owner",
    "revisions",
    "spec_digest",
    "changes",
    "spec",
]
LISTED: Final = Statement(
    sa.select(*_SHOWN)
    .where(R.pool_id == sa.bindparam("pool_id"), beyond({"after": R.revision}, descending=True))
    .order_by(R.revision.desc())
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
GET: Final = Statement(
    sa.select(*_SHOWN).where(R.pool_id == sa.bindparam("pool_id"), R.revision == sa.bindparam("revision"))
)
ENTRIES: Final = Statement(
    sa.select(*(R[name] for name in Entry.__struct_fields__))
    .where(R.pool_id == sa.bindparam("pool_id"))
    .order_by(R.revision.desc())
)


async def record(tx: Connection, rows: Sequence[History], revisions: Mapping[str, int], request: Request) -> None:
    """Record what was declared of pools, under their `revisions` of now."""
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        arguments = RECORD.rows(
            chunk,
            revision=[revisions[row.pool_id] for row in chunk],
            changes=[msgspec.json.encode(row.changes).decode() for row in chunk],
            by=request.by,
            action=request.action,
            reason=request.reason,
            to_revision=request.to_revision,
        )
        await tx.execute(RECORD.text, *arguments)


async def listed(db: Connection, pool_id: str, limit: int, *, after: int) -> list[dict[str, Any]]:
    """Changes of a pool, newest first, from the one before the revision `after`."""
    arguments = LISTED.arguments(pool_id=pool_id, after=after, limit=limit)
    return [dict(row) for row in await db.fetch(LISTED.text, *arguments)]


async def get(db: Connection, pool_id: str, revision: int) -> dict[str, Any] | None:
    row = await db.fetchrow(GET.text, *GET.arguments(pool_id=pool_id, revision=revision))
    return None if row is None else dict(row)


async def entries(db: Connection, pool_id: str) -> list[Entry]:
    """All entries of a pool, the newest first."""
    return [Entry(**row) for row in await db.fetch(ENTRIES.text, *ENTRIES.arguments(pool_id=pool_id))]
