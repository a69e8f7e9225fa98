"""History: one row per decision with its reason. Append-only, and pruned by age."""

from collections.abc import Sequence
from typing import Final

from slipway_common.database.postgres import Connection
from slipway_lease_broker.domain.ledger import Entry
from slipway_lease_broker.store.rows import columns, structs

FIELDS: Final = Entry.__struct_fields__
ADD: Final = f"""
INSERT INTO history ({", ".join(FIELDS)})
SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[],
    $8::text[])"""
OF_POOL: Final = f"""
SELECT {", ".join(FIELDS)} FROM history WHERE lease_pool_id = $1 AND ($2::timestamptz IS NULL OR at >= $2)
ORDER BY id DESC LIMIT $3"""
OF_LEASE: Final = f"SELECT {', '.join(FIELDS)} FROM history WHERE lease_id = $1 ORDER BY id"
PRUNE: Final = "DELETE FROM history WHERE lease_pool_id = $1 AND at < slipway_clock() - make_interval(secs => $2)"


async def add(tx: Connection, entries: Sequence[Entry]) -> None:
    if entries:
        await tx.execute(ADD, *columns(entries, *FIELDS))


async def of_pool(db: Connection, lease_pool_id: str, *, since: object = None, limit: int = 1_000) -> list[Entry]:
    """Entries of a lease pool, newest first."""
    return structs(await db.fetch(OF_POOL, lease_pool_id, since, limit), Entry)


async def of_lease(db: Connection, lease_id: str) -> list[Entry]:
    """Entries of a lease, oldest first."""
    return structs(await db.fetch(OF_LEASE, lease_id), Entry)


async def prune(tx: Connection, lease_pool_id: str, *, older_than_seconds: float) -> None:
    await tx.execute(PRUNE, lease_pool_id, older_than_seconds)
