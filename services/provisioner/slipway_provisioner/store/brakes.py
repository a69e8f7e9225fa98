"""Brakes: stop launching everywhere, in an account or in a pool, until a time or until released."""

from datetime import datetime
from typing import Final

from slipway_common.postgres import Connection

# Excludes every start statement, which shares this row: what starts after us sees the brake.
EXCLUDE_STARTS: Final = "SELECT FROM brake_guard FOR UPDATE"
MARK: Final = """
INSERT INTO dirty_pool (pool_id, because) SELECT id, 'brake' FROM worker_pool WHERE NOT deleted ORDER BY id"""


async def pull(
    tx: Connection, scope: str, scope_id: str, *, reason: str, by: str, until: datetime | None
) -> None:
    """Set a brake, or renew it with another reason."""
    await tx.execute(EXCLUDE_STARTS)
    await tx.execute(
        "INSERT INTO brake (scope, scope_id, reason, by, until, at) VALUES ($1, $2, $3, $4, $5, slipway_clock()) "
        "ON CONFLICT (scope, scope_id) DO UPDATE SET reason = $3, by = $4, until = $5, at = slipway_clock()",
        scope, scope_id, reason, by, until,
    )  # fmt: skip
    await tx.execute(MARK)


async def release(tx: Connection, scope: str, scope_id: str) -> bool:
    """Release a brake; False when it was not set."""
    await tx.execute(EXCLUDE_STARTS)
    gone: str = await tx.execute("DELETE FROM brake WHERE scope = $1 AND scope_id = $2", scope, scope_id)
    await tx.execute(MARK)
    return gone != "DELETE 0"
