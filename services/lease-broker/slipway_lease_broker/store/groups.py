"""Groups of requests that start spread over a time. Written only under the lock of their pool."""

from collections.abc import Collection, Sequence
from typing import Final

from slipway_common.database.postgres import Connection
from slipway_lease_broker.domain.ledger import Group
from slipway_lease_broker.store.rows import columns, structs

FIELDS: Final = Group.__struct_fields__
NAMED: Final = f"""
SELECT {", ".join(FIELDS)} FROM groups WHERE (lease_pool_id, name) IN (SELECT * FROM unnest($1::text[], $2::text[]))"""
SAVE: Final = f"""
INSERT INTO groups ({", ".join(FIELDS)})
SELECT * FROM unnest($1::text[], $2::text[], $3::integer[], $4::float8[], $5::integer[], $6::timestamptz[],
    $7::timestamptz[])
ON CONFLICT (lease_pool_id, name) DO UPDATE SET size = excluded.size, spread_seconds = excluded.spread_seconds,
    members = excluded.members, first_at = excluded.first_at, last_start_at = excluded.last_start_at"""

# A group is needed while its spread lasts, and after its last start: both decide when its next member may start.
PRUNE: Final = """
DELETE FROM groups AS g WHERE lease_pool_id = $1
    AND greatest(first_at, last_start_at) < slipway_clock() - make_interval(secs => greatest(spread_seconds, $2))
    AND NOT EXISTS (SELECT FROM requests
        WHERE lease_pool_id = g.lease_pool_id AND group_name = g.name AND waiting_units > 0 AND NOT lapsed)"""


async def named(tx: Connection, keys: Collection[tuple[str, str]]) -> list[Group]:
    """Groups by (lease pool id, name)."""
    if not keys:
        return []
    pools, names = zip(*sorted(keys), strict=True)
    return structs(await tx.fetch(NAMED, list(pools), list(names)), Group)


async def save(tx: Connection, groups: Sequence[Group]) -> None:
    if groups:
        await tx.execute(SAVE, *columns(groups, *FIELDS))


async def prune(tx: Connection, lease_pool_id: str, *, over_for_seconds: float) -> None:
    """Delete groups whose spread is over, that started nothing for so long and have no waiting request: the next
    request starts them anew either way."""
    await tx.execute(PRUNE, lease_pool_id, over_for_seconds)
