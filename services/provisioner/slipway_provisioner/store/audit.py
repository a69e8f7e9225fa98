"""Audit of declared objects: who changed what."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, given, matches, not_before
from slipway_provisioner.domain.comparison import Audit
from slipway_provisioner.store.tables import audit

A: Final = audit.c
CHUNK: Final = 100
_BY: Final = tuple(sa.bindparam(name, type_=sa.Text) for name in ("by", "action", "reason"))
_AUDIT: Final = given(*(A[name] for name in Audit.__struct_fields__))
RECORD: Final = Statement(
    sa.insert(audit).from_select([*Audit.__struct_fields__, "by", "action", "reason"], sa.select(*_AUDIT.c, *_BY))
)
LISTED: Final = Statement(
    sa.select(A.at, A.by, A.action, A.reason, A.kind, A.subject_id, A.result, A.before, A.after)
    .where(matches(A.kind, "kind"), matches(A.subject_id, "subject_id"), not_before(A.at, "since"))
    .order_by(A.id.desc())
    .limit(sa.bindparam("limit", type_=sa.Integer))
)


async def record(tx: Connection, rows: Sequence[Audit], *, by: str, action: str, reason: str) -> None:
    """Record changes of declared objects."""
    for start in range(0, len(rows), CHUNK):
        await tx.execute(RECORD.text, *RECORD.rows(rows[start : start + CHUNK], by=by, action=action, reason=reason))


async def command(tx: Connection, kind: str, subject_id: str, action: str, *, by: str, **after: Any) -> None:
    """Record a command on a declared object, such as a pause; `after` are the fields that it has set."""
    row = Audit(kind=kind, subject_id=subject_id, result="updated", before=None, after=after)
    await record(tx, [row], by=by, action=action, reason=after["reason"])


async def listed(
    db: Connection, *, kind: str | None, subject_id: str | None, since: datetime | None, limit: int
) -> list[dict[str, Any]]:
    """Newest changes first, of all objects or of one."""
    arguments = LISTED.arguments(kind=kind, subject_id=subject_id, since=since, limit=limit)
    return [dict(row) for row in await db.fetch(LISTED.text, *arguments)]
