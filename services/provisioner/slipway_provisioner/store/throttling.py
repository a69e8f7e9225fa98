"""Throttled calls of accounts."""

from typing import Final

import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_provisioner.domain.throttling import Throttling
from slipway_provisioner.store.tables import account

A: Final = account.c
_GOES_ON: Final = "throttled_at > slipway_clock() - make_interval(secs => $2)"
RECORD: Final = f"""
UPDATE account SET throttled_at = slipway_clock(),
    throttled_since = CASE WHEN {_GOES_ON} THEN throttled_since ELSE slipway_clock() END,
    throttled_calls = CASE WHEN {_GOES_ON} THEN throttled_calls + 1 ELSE 1 END
WHERE id = $1"""
THROTTLED: Final = """
SELECT id AS account_id, lease_pool_id, throttled, throttled_calls AS calls, throttled_since AS since,
    extract(epoch FROM slipway_clock() - throttled_since)::float8 AS lasted_seconds,
    extract(epoch FROM slipway_clock() - throttled_at)::float8 AS quiet_seconds
FROM account
WHERE throttled OR throttled_at > slipway_clock() - make_interval(secs => $1)
ORDER BY id"""
SET: Final = Statement(
    sa.update(account)
    .where(A.id == sa.bindparam("account_id"), A.throttled != sa.bindparam("throttled"))
    .values(throttled=sa.bindparam("throttled"))
    .returning(sa.true())
)


async def record(tx: Connection, account_id: str, *, within_seconds: float) -> None:
    """Count a throttled call. One that follows the last within a time continues it; any other begins anew."""
    await tx.execute(RECORD, account_id, within_seconds)


async def throttled(db: Connection, *, within_seconds: float) -> list[Throttling]:
    """Accounts of which calls were throttled within a time, and those that count as throttled."""
    return [Throttling(**row) for row in await db.fetch(THROTTLED, within_seconds)]


async def set_throttled(tx: Connection, account_id: str, *, throttled: bool) -> bool:
    """Store whether a notice says that an account throttles calls; True if that has changed."""
    return await tx.fetchval(SET.text, *SET.arguments(account_id=account_id, throttled=throttled)) is not None
