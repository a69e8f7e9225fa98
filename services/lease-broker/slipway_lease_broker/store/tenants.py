"""State of fairness and backoff per tenant. Written only under the lock of their pool."""

from collections.abc import Collection, Sequence
from typing import Final

from slipway_common.database.postgres import Connection
from slipway_lease_broker.domain.ledger import Tenant
from slipway_lease_broker.store.rows import columns, structs

FIELDS: Final = Tenant.__struct_fields__
NAMED: Final = f"""
SELECT {", ".join(FIELDS)} FROM tenants
WHERE (lease_pool_id, tenant) IN (SELECT * FROM unnest($1::text[], $2::text[]))"""
SAVE: Final = f"""
INSERT INTO tenants ({", ".join(FIELDS)})
SELECT * FROM unnest($1::text[], $2::text[], $3::float8[], $4::integer[], $5::timestamptz[])
ON CONFLICT (lease_pool_id, tenant) DO UPDATE SET virtual_finish = excluded.virtual_finish,
    failures = excluded.failures, backoff_until = excluded.backoff_until"""

PRUNE: Final = """
DELETE FROM tenants AS t WHERE lease_pool_id = $1
    AND (failures = 0 OR backoff_until < slipway_clock() - make_interval(secs => $2))
    AND NOT EXISTS (SELECT FROM requests
        WHERE lease_pool_id = t.lease_pool_id AND tenant = t.tenant AND waiting_units > 0 AND NOT lapsed)"""


async def named(tx: Connection, keys: Collection[tuple[str, str]]) -> list[Tenant]:
    """Tenants by (lease pool id, tenant); unknown ones are left out."""
    if not keys:
        return []
    pools, names = zip(*sorted(keys), strict=True)
    return structs(await tx.fetch(NAMED, list(pools), list(names)), Tenant)


async def save(tx: Connection, tenants: Sequence[Tenant]) -> None:
    if tenants:
        await tx.execute(SAVE, *columns(tenants, *FIELDS))


async def prune(tx: Connection, lease_pool_id: str, *, backed_off_for_seconds: float) -> None:
    """Delete tenants without waiting requests whose last backoff ended that long ago. Their service beyond virtual time
    is lost with them: at most their last grant, since that started at virtual time, which never decreases."""
    await tx.execute(PRUNE, lease_pool_id, backed_off_for_seconds)
