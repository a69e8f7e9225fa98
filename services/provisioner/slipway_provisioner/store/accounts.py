"""Provider accounts and their state of reaping."""

from typing import Final

from slipway_common.database.postgres import Connection
from slipway_provisioner.domain.cloud import Account

NAMES: Final = "id, provider, region, identity, lease_pool_id, settings"
DUE: Final = f"""
UPDATE account SET reaped_at = slipway_clock() WHERE id = (
    SELECT id FROM account WHERE reaped_at IS NULL OR reaped_at < slipway_clock() - $1 * interval '1 s'
    ORDER BY reaped_at NULLS FIRST LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING {NAMES}"""
SET_LISTING_PROBLEM: Final = (
    "UPDATE account SET listing_problem = $2 WHERE id = $1 AND listing_problem <> $2 RETURNING true"
)


async def get(db: Connection, account_id: str) -> Account:
    return Account(**await db.fetchrow(f"SELECT {NAMES} FROM account WHERE id = $1", account_id))


async def record_listing_problem(tx: Connection, account_id: str, problem: str) -> bool:
    """Store why the account's listing is implausible, empty if it is plausible; True if that has changed."""
    changed: bool | None = await tx.fetchval(SET_LISTING_PROBLEM, account_id, problem)
    return bool(changed)


async def due_for_reaping(db: Connection, every_seconds: float) -> Account | None:
    """Take the account whose last pass is longest ago; None if none is due."""
    row = await db.fetchrow(DUE, every_seconds)
    return None if row is None else Account(**row)
