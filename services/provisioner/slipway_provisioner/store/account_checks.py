"""Checks of provider accounts: which is due, what its launch configs need, and the findings of its newest check."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, names
from slipway_provisioner.domain.account_check import CheckState, Finding
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.store import accounts
from slipway_provisioner.store.clock import overdue
from slipway_provisioner.store.tables import account, launch_config

A: Final = account.c
C: Final = launch_config.c
_ID: Final = A.id == sa.bindparam("account_id")
_BEGUN: Final = f"RETURNING {names(accounts.COLUMNS)}, (SELECT id FROM deployment) AS deployment, check_began_at"
_CHECKED: Final = "NOT (retired OR removed OR unreachable)"
# A check in the future began before the clock was set back. One that began before a launch config was declared has not
# seen it: those that were declared since the oldest check are read, by a range, as `clock.overdue` says.
DUE: Final = f"""
WITH declared AS MATERIALIZED (
    SELECT account_id, max(declared_at) AS at FROM launch_config
    WHERE state = 'active' AND declared_at <= 'infinity'
        AND declared_at > (SELECT min(check_began_at) FROM account WHERE {_CHECKED})
    GROUP BY account_id)
UPDATE account SET check_began_at = slipway_clock() WHERE id = (
    SELECT a.id FROM account a LEFT JOIN declared d ON d.account_id = a.id
    WHERE {_CHECKED}
        AND (a.check_began_at IS NULL OR d.at > a.check_began_at OR {overdue("a.check_began_at", "$1")})
    ORDER BY a.check_began_at NULLS FIRST LIMIT 1 FOR UPDATE OF a SKIP LOCKED)
{_BEGUN}"""
# Not again after a check has found the problem: each failed run would make another one due.
MAKE_DUE: Final = f"""
UPDATE account SET check_began_at = NULL
WHERE id = $1 AND NOT findings @> jsonb_build_array(
    jsonb_build_object('kind', $2::text, 'subject', $3::text, 'state', '{CheckState.PROBLEM}'))"""
BEGIN: Final = f"UPDATE account SET check_began_at = slipway_clock() WHERE id = $1 AND NOT retired {_BEGUN}"
USERS: Final = Statement(
    sa.select(C.id, C.name, C.zone, C.instance_type, C.image_revision.label("image"), C.settings)
    .where(C.account_id == sa.bindparam("account_id"), C.state == "active")
    .order_by(C.name, C.id)
)
ENDED: Final = Statement(
    sa.select(A.id)
    .where(A.retired | A.removed, A.findings != sa.text("'[]'"))
    .order_by(A.id)
    .limit(1)
    .with_for_update(skip_locked=True)
)
FINDINGS: Final = Statement(sa.select(A.findings).where(_ID))
# A check that began later may have been recorded meanwhile.
LOCK: Final = Statement(
    sa.select(A.findings)
    .where(
        _ID,
        sa.or_(
            A.checked_at.is_(None),
            A.checked_at <= sa.bindparam("began_at"),
            A.checked_at > sa.func.slipway_clock(),
        ),
    )
    .with_for_update()
)
RECORD: Final = Statement(
    sa.update(account).where(_ID).values(findings=sa.bindparam("findings"), checked_at=sa.bindparam("began_at"))
)


class Begun(msgspec.Struct, frozen=True):
    """A check that has begun, at a time of the database, and the launch configs that it is about."""

    account: Account
    began_at: datetime
    configs: Sequence[dict[str, Any]]


async def due(db: Connection, every_seconds: float) -> Begun | None:
    """Begin the check of the account whose last one is longest ago; None if none is due."""
    return await _begun(db, await db.fetchrow(DUE, every_seconds))


async def make_due(db: Connection, account_id: str, kind: str, subject: str) -> None:
    """Make the check of an account due, unless its last one found a problem of this kind and subject."""
    await db.execute(MAKE_DUE, account_id, kind, subject)


async def begin(db: Connection, account_id: str) -> Begun | None:
    """Begin the check of an account; None if there is none, or if it is retired."""
    return await _begun(db, await db.fetchrow(BEGIN, account_id))


async def ended(tx: Connection) -> str | None:
    """Lock an account that is checked no more, and still has findings; None if there is none."""
    account_id: str | None = await tx.fetchval(ENDED.text, *ENDED.arguments())
    return account_id


async def findings(db: Connection, account_id: str) -> list[Finding]:
    """Findings of the newest check of an account."""
    return _findings(await db.fetchval(FINDINGS.text, *FINDINGS.arguments(account_id=account_id)))


async def lock(tx: Connection, account_id: str, began_at: datetime) -> list[Finding] | None:
    """Lock the findings of an account; None if a check that began later has been recorded."""
    stored = await tx.fetchval(LOCK.text, *LOCK.arguments(account_id=account_id, began_at=began_at))
    return None if stored is None else _findings(stored)


async def record(tx: Connection, account_id: str, found: Sequence[Finding], began_at: datetime | None) -> None:
    """Store the findings of a check. They are locked."""
    arguments = RECORD.arguments(account_id=account_id, findings=msgspec.to_builtins(found), began_at=began_at)
    await tx.execute(RECORD.text, *arguments)


async def _begun(db: Connection, row: Any) -> Begun | None:
    if row is None:
        return None
    fields = dict(row)
    began_at = fields.pop("check_began_at")
    account = Account(**fields)
    users = await db.fetch(USERS.text, *USERS.arguments(account_id=account.id))
    return Begun(account, began_at, [dict(user) for user in users])


def _findings(stored: Any) -> list[Finding]:
    return msgspec.convert(stored or [], list[Finding])
