"""Audit: one row for each write of a person or a pipeline, in the transaction of the write.

Reports of workers, monitors and holders of leases have no row: they are in the tables that they change.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Integer, MetaData, Text, bindparam, insert, select

from slipway_api.http.service import AuditEntry
from slipway_common.base.audited import AuditedChange, AuditedKind
from slipway_common.database import tables
from slipway_common.database.places import LAST_NUMBER
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, beyond, given, matches, not_before

CHUNK_ROWS: Final = 100
_origin: ContextVar[str] = ContextVar("origin", default="")


AUDIT: Final = tables.audit(MetaData())
A: Final = AUDIT.c
_ACT: Final = ("by", "origin", "action", "reason")
_CHANGES: Final = given(*(A[name] for name in AuditedChange._fields))
RECORD: Final = Statement(
    insert(AUDIT).from_select(
        [*AuditedChange._fields, *_ACT],
        select(*given(*(A[name] for name in AuditedChange._fields)).c, *(bindparam(n, type_=Text) for n in _ACT)),
    )
)
SELECT: Final = Statement(
    select(*(A[name] for name in AuditEntry.__struct_fields__))
    .where(
        matches(A.kind, "kind"),
        matches(A.subject_id, "subject_id"),
        matches(A.by, "by"),
        not_before(A.at, "since"),
        beyond({"after": A.id}, descending=True),
    )
    .order_by(A.id.desc())
    .limit(bindparam("limit", type_=Integer))
)


@contextmanager
def requested_from(address: str) -> Iterator[None]:
    """Set the address that rows recorded in the block name as their origin."""
    token = _origin.set(address)
    try:
        yield
    finally:
        _origin.reset(token)


async def record(tx: Connection, changes: Sequence[AuditedChange], *, by: str, action: str, reason: str) -> None:
    """Record the changes that one action of `by` has made."""
    act = {"by": by, "origin": _origin.get(), "action": action, "reason": reason}
    for start in range(0, len(changes), CHUNK_ROWS):
        await tx.execute(RECORD.text, *RECORD.rows(changes[start : start + CHUNK_ROWS], **act))


async def record_command(
    tx: Connection,
    kind: AuditedKind,
    subject_id: str,
    action: str,
    *,
    by: str,
    reason: str = "",
    before: dict[str, Any] | None = None,
    **after: Any,
) -> None:
    """Record a command on one thing, such as a pause; `after` are the fields that it has set."""
    change = AuditedChange(kind=kind, subject_id=subject_id, before=before, after=after or None)
    await record(tx, [change], by=by, action=action, reason=reason)


async def fetch(
    db: Connection,
    *,
    kind: AuditedKind | None = None,
    subject_id: str | None = None,
    by: str | None = None,
    since: datetime | None = None,
    after: int = LAST_NUMBER,
    limit: int,
) -> list[AuditEntry]:
    """Newest changes first, of all things or of those that match, from the one before the row `after`."""
    arguments = SELECT.arguments(kind=kind, subject_id=subject_id, by=by, since=since, after=after, limit=limit)
    return [AuditEntry(**row) for row in await db.fetch(SELECT.text, *arguments)]
