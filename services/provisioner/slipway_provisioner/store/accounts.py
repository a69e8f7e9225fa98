"""Provider accounts and their state of reaping."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, names
from slipway_provisioner.domain.cloud import Account, Protected
from slipway_provisioner.store.tables import account, deployment

COLUMNS: Final = tuple(account.c[name] for name in Account.__struct_fields__ if name != "deployment")
_DEPLOYMENT: Final = sa.select(deployment.c.id).scalar_subquery().label("deployment")
FIELDS: Final = (*COLUMNS, _DEPLOYMENT)
GET: Final = Statement(sa.select(*FIELDS).where(account.c.id == sa.bindparam("id")))
# A pass in the future was recorded before the clock was set back.
DUE: Final = f"""
UPDATE account SET reaped_at = slipway_clock() WHERE id = (
    SELECT id FROM account
    WHERE NOT retired AND (reaped_at IS NULL
        OR reaped_at NOT BETWEEN slipway_clock() - $1 * interval '1 s' AND slipway_clock())
    ORDER BY reaped_at NULLS FIRST LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING {names(COLUMNS)}, (SELECT id FROM deployment) AS deployment"""
SET_LISTING_PROBLEM: Final = Statement(
    sa.update(account)
    .where(account.c.id == sa.bindparam("account_id"), account.c.listing_problem != sa.bindparam("problem"))
    .values(listing_problem=sa.bindparam("problem"))
    .returning(sa.true())
)
SET_MASS_UNRESPONSIVE: Final = Statement(
    sa.update(account)
    .where(account.c.id == sa.bindparam("account_id"), account.c.mass_unresponsive != sa.bindparam("mass_unresponsive"))
    .values(mass_unresponsive=sa.bindparam("mass_unresponsive"))
    .returning(sa.true())
)
# Each is one statement that changes the newest value, since a replica may record others at the same time.
PROTECT: Final = """
UPDATE account SET protected = protected || $2::jsonb
WHERE id = $1 AND NOT protected ?& ARRAY(SELECT jsonb_object_keys($2::jsonb)) RETURNING protected"""
PROTECTED: Final = Statement(sa.select(account.c.protected).where(account.c.id == sa.bindparam("account_id")))
UNPROTECT: Final = """
UPDATE account SET protected = protected - $2::text[] WHERE id = $1 AND protected ?| $2::text[] RETURNING protected"""
PASSED: Final = Statement(
    sa.update(account)
    .where(account.c.id == sa.bindparam("account_id"))
    .values(
        passes=account.c.passes + 1,
        passed_at=sa.func.slipway_clock(),
        listed_at=sa.func.coalesce(sa.bindparam("listed_at", type_=account.c.listed_at.type), account.c.listed_at),
        settled_seconds=sa.bindparam("settled_seconds"),
    )
)
# A pass that lasts is not begun again by another replica.
LASTS: Final = Statement(
    sa.update(account).where(account.c.id == sa.bindparam("account_id")).values(reaped_at=sa.func.slipway_clock())
)


def unreachable(alias: str) -> str:
    """Condition that the account of a row is not called, since it does not answer or is retired."""
    return f"(SELECT a.unreachable OR a.retired FROM account a WHERE a.id = {alias}.account_id)"


def refuses_terminations(alias: str) -> str:
    """Condition that the account of a row refuses to terminate its instances, so that nothing starts there."""
    return f"(SELECT a.refuses_terminations FROM account a WHERE a.id = {alias}.account_id)"


async def get(db: Connection, account_id: str) -> Account:
    return Account(**await db.fetchrow(GET.text, *GET.arguments(id=account_id)))


async def find(db: Connection, account_id: str) -> Account | None:
    row = await db.fetchrow(GET.text, *GET.arguments(id=account_id))
    return None if row is None else Account(**row)


async def record_listing_problem(tx: Connection, account_id: str, problem: str) -> bool:
    """Store why the account's listing is implausible, empty if it is plausible; True if that has changed."""
    arguments = SET_LISTING_PROBLEM.arguments(account_id=account_id, problem=problem)
    return await tx.fetchval(SET_LISTING_PROBLEM.text, *arguments) is not None


async def record_mass_unresponsive(tx: Connection, account_id: str, *, mass_unresponsive: bool) -> bool:
    """Store whether the account's unresponsive workers are kept; True if that has changed."""
    arguments = SET_MASS_UNRESPONSIVE.arguments(account_id=account_id, mass_unresponsive=mass_unresponsive)
    return await tx.fetchval(SET_MASS_UNRESPONSIVE.text, *arguments) is not None


async def protect(tx: Connection, account_id: str, instances: Mapping[str, Protected]) -> dict[str, Protected] | None:
    """Store instances that the account refuses to terminate. All of them then, or None if these were known."""
    return _protected(await tx.fetchval(PROTECT, account_id, msgspec.to_builtins(instances)))


async def protected(db: Connection, account_id: str) -> dict[str, Protected]:
    """Instances that the account has refused to terminate, as far as they are not gone."""
    found = await db.fetchval(PROTECTED.text, *PROTECTED.arguments(account_id=account_id))
    return _protected(found) or {}


async def unprotect(tx: Connection, account_id: str, instance_ids: Sequence[str]) -> dict[str, Protected] | None:
    """Forget instances that are gone. Those that are left, or None if none of these was stored."""
    return _protected(await tx.fetchval(UNPROTECT, account_id, sorted(instance_ids)))


def _protected(stored: Any) -> dict[str, Protected] | None:
    return None if stored is None else msgspec.convert(stored, dict[str, Protected])


async def due_for_reaping(db: Connection, every_seconds: float) -> Account | None:
    """Take the account whose last pass is longest ago; None if none is due. Retired ones are left alone."""
    row = await db.fetchrow(DUE, every_seconds)
    return None if row is None else Account(**row)


async def pass_lasts(db: Connection, account_id: str) -> None:
    """Record that a pass over an account goes on: the next one is due as if it had begun now."""
    await db.execute(LASTS.text, *LASTS.arguments(account_id=account_id))


async def count_pass(db: Connection, account_id: str, *, listed_at: datetime | None, settled_seconds: float) -> None:
    """Count a completed pass of the instance reaper. Its listing began at `listed_at`, and has every instance that was
    called for `settled_seconds` before; None if the listing was that of another account."""
    arguments = PASSED.arguments(account_id=account_id, listed_at=listed_at, settled_seconds=settled_seconds)
    await db.execute(PASSED.text, *arguments)
