"""Accounts: where provider calls go."""

from typing import Final

from slipway_common.postgres import Connection
from slipway_provisioner.domain.cloud import Account

NAMES: Final = "id, provider, region, identity, lease_pool_id, settings"
DUE: Final = f"""
UPDATE account SET reaped_at = slipway_clock() WHERE id = (
    SELECT id FROM account WHERE reaped_at IS NULL OR reaped_at < slipway_clock() - $1 * interval '1 s'
    ORDER BY reaped_at NULLS FIRST LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING {NAMES}"""
DOUBT: Final = "UPDATE account SET doubt = $2 WHERE id = $1 AND doubt <> $2 RETURNING true"


async def get(db: Connection, account_id: str) -> Account:
    return Account(**await db.fetchrow(f"SELECT {NAMES} FROM account WHERE id = $1", account_id))


async def doubt(tx: Connection, account_id: str, why: str) -> bool:
    """Keep why the account's listing cannot be believed, empty when it can; True when that has changed."""
    changed: bool | None = await tx.fetchval(DOUBT, account_id, why)
    return bool(changed)


async def due_for_reaping(db: Connection, every_seconds: float) -> Account | None:
    """Take the account whose last pass is longest ago; None when none is due."""
    row = await db.fetchrow(DUE, every_seconds)
    return None if row is None else Account(**row)
