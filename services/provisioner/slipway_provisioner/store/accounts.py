"""Provider accounts and their state of reaping."""

from typing import Final

import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, names
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.store.tables import account, deployment

_COLUMNS: Final = tuple(account.c[name] for name in Account.__struct_fields__ if name != "deployment")
_DEPLOYMENT: Final = sa.select(deployment.c.id).scalar_subquery().label("deployment")
FIELDS: Final = (*_COLUMNS, _DEPLOYMENT)
GET: Final = Statement(sa.select(*FIELDS).where(account.c.id == sa.bindparam("id")))
# A pass in the future was recorded before the clock was set back.
DUE: Final = f"""
UPDATE account SET reaped_at = slipway_clock() WHERE id = (
    SELECT id FROM account
    WHERE NOT retired AND (reaped_at IS NULL
        OR reaped_at NOT BETWEEN slipway_clock() - $1 * interval '1 s' AND slipway_clock())
    ORDER BY reaped_at NULLS FIRST LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING {names(_COLUMNS)}, (SELECT id FROM deployment) AS deployment"""
SET_LISTING_PROBLEM: Final = Statement(
    sa.update(account)
    .where(account.c.id == sa.bindparam("account_id"), account.c.listing_problem != sa.bindparam("problem"))
    .values(listing_problem=sa.bindparam("problem"))
    .returning(sa.true())
)
SET_SILENT: Final = Statement(
    sa.update(account)
    .where(account.c.id == sa.bindparam("account_id"), account.c.silent != sa.bindparam("silent"))
    .values(silent=sa.bindparam("silent"))
    .returning(sa.true())
)
PASSED: Final = Statement(
    sa.update(account)
    .where(account.c.id == sa.bindparam("account_id"))
    .values(passes=account.c.passes + 1, passed_at=sa.func.slipway_clock())
)


def unreachable(alias: str) -> str:
    """Condition that the account of a row is not called, since it does not answer or is retired."""
    return f"(SELECT a.unreachable OR a.retired FROM account a WHERE a.id = {alias}.account_id)"


async def get(db: Connection, account_id: str) -> Account:
    return Account(**await db.fetchrow(GET.text, *GET.arguments(id=account_id)))


async def record_listing_problem(tx: Connection, account_id: str, problem: str) -> bool:
    """Store why the account's listing is implausible, empty if it is plausible; True if that has changed."""
    arguments = SET_LISTING_PROBLEM.arguments(account_id=account_id, problem=problem)
    return await tx.fetchval(SET_LISTING_PROBLEM.text, *arguments) is not None


async def record_silence(tx: Connection, account_id: str, *, silent: bool) -> bool:
    """Store whether the account's unresponsive workers are kept; True if that has changed."""
    arguments = SET_SILENT.arguments(account_id=account_id, silent=silent)
    return await tx.fetchval(SET_SILENT.text, *arguments) is not None


async def due_for_reaping(db: Connection, every_seconds: float) -> Account | None:
    """Take the account whose last pass is longest ago; None if none is due. Retired ones are left alone."""
    row = await db.fetchrow(DUE, every_seconds)
    return None if row is None else Account(**row)


async def count_pass(db: Connection, account_id: str) -> None:
    """Count a completed pass of the instance reaper."""
    await db.execute(PASSED.text, *PASSED.arguments(account_id=account_id))
