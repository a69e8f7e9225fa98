"""Owners of what tokens may be limited to."""

from typing import Final

from slipway_common.database.postgres import Connection

OWNER: Final = {
    "pool": "SELECT owner FROM worker_pool WHERE id = $1",
    "account": "SELECT owner FROM account WHERE id = $1",
    "config": """
SELECT p.owner FROM worker_pool p
WHERE p.id = coalesce(
    (SELECT pool_id FROM launch_config_name WHERE name = $1), (SELECT pool_id FROM launch_config WHERE id = $1))""",
    "worker": "SELECT p.owner FROM worker w JOIN worker_pool p ON p.id = w.pool_id WHERE w.id::text = $1",
}


async def of(db: Connection, kind: str, id_: str) -> str | None:
    """Owner of a pool, an account, a launch config or a worker, empty if nobody owns it; None if there is none."""
    owner: str | None = await db.fetchval(OWNER[kind], id_)
    return owner
