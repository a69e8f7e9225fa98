"""State of fairness and backoff per tenant. Written only under the lock of their pool."""

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import select, tuple_
from sqlalchemy.dialects.postgresql import insert

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, given
from slipway_lease_broker.domain.ledger import Tenant
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import tenant

FIELDS: Final = tenant.c[Tenant.__struct_fields__]
KEYS: Final = tenant.c["lease_pool_id", "tenant"]
NAMED: Final = Statement(select(*FIELDS).where(tuple_(*KEYS).in_(select(given(*KEYS)))))
ADD: Final = insert(tenant).from_select(FIELDS.keys(), select(given(*FIELDS)))
SAVE: Final = Statement(
    ADD.on_conflict_do_update(
        index_elements=KEYS,
        set_={field.name: ADD.excluded[field.name] for field in FIELDS if field.name not in KEYS},
    )
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
