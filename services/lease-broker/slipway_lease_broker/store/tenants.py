"""State of fairness and backoff per tenant. Written only under the lock of their pool."""

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import any_, func, literal_column, select, true, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, given
from slipway_lease_broker.domain.ledger import Tenant
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import tenant

FIELDS: Final = tenant.c[Tenant.__struct_fields__]
KEYS: Final = tenant.c["lease_pool_id", "tenant"]
_KEY: Final = given(*KEYS)
# A row for each key by the primary key: a join could read the tenants of all pools where these are few.
_ROW: Final = (
    select(*FIELDS)
    .where(tenant.c.lease_pool_id == _KEY.c.lease_pool_id, tenant.c.tenant == _KEY.c.tenant)
    .limit(literal_column("1"))
    .lateral("named")
)
NAMED: Final = Statement(select(*_ROW.c).select_from(_KEY.join(_ROW, true())))
NAMED_BY: Final = Statement(
    select(tenant.c.lease_pool_id, tenant.c.owner, func.count().label("tenants"))
    .where(tuple_(tenant.c.lease_pool_id, tenant.c.owner).in_(select(given(*tenant.c["lease_pool_id", "owner"]))))
    .group_by(tenant.c.lease_pool_id, tenant.c.owner)
)
ADD: Final = insert(tenant).from_select(FIELDS.keys(), select(given(*FIELDS)))
SAVE: Final = Statement(
    ADD.on_conflict_do_update(
        index_elements=KEYS,
        set_={field.name: ADD.excluded[field.name] for field in FIELDS if field.name not in KEYS},
    )
)


END_BACKOFFS: Final = Statement(
    update(tenant)
    .where(tenant.c.lease_pool_id == any_(array("pools", tenant.c.lease_pool_id)), tenant.c.failures > 0)
    .values(failures=0, backoff_until=None)
)


async def named(tx: Connection, keys: Collection[tuple[str, str]]) -> list[Tenant]:
    """Tenants by (lease pool id, tenant); unknown ones are left out."""
    if not keys:
        return []
    pools, names = zip(*sorted(keys), strict=True)
    return structs(await tx.fetch(NAMED.text, *NAMED.arguments(lease_pool_id=pools, tenant=names)), Tenant)


async def save(tx: Connection, tenants: Sequence[Tenant]) -> None:
    if tenants:
        await tx.execute(SAVE.text, *SAVE.rows(tenants))


async def end_backoffs(tx: Connection, lease_pool_ids: Collection[str]) -> None:
    """End the backoffs that run in these pools."""
    if lease_pool_ids:
        await tx.execute(END_BACKOFFS.text, *END_BACKOFFS.arguments(pools=list(lease_pool_ids)))


async def named_by(tx: Connection, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Number of tenants that owners named beside their own, by (lease pool id, owner)."""
    if not keys:
        return {}
    pools, owners = zip(*sorted(keys), strict=True)
    rows = await tx.fetch(NAMED_BY.text, *NAMED_BY.arguments(lease_pool_id=pools, owner=owners))
    return {(row["lease_pool_id"], row["owner"]): row["tenants"] for row in rows}
