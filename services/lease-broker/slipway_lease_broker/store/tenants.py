"""State of fairness and backoff per tenant. Written only under the lock of their pool."""

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import select, tuple_
from sqlalchemy.dialects.postgresql import insert

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, given
from slipway_lease_broker.domain.ledger import Tenant
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import WAITING, condition, tenant

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
PRUNE: Final = f"""
DELETE FROM tenants AS t WHERE lease_pool_id = $1
    AND (failures = 0 OR backoff_until < slipway_clock() - make_interval(secs => $2))
    AND NOT EXISTS (SELECT FROM requests
        WHERE lease_pool_id = t.lease_pool_id AND tenant = t.tenant AND {condition(WAITING)})"""


async def named(tx: Connection, keys: Collection[tuple[str, str]]) -> list[Tenant]:
    """Tenants by (lease pool id, tenant); unknown ones are left out."""
    if not keys:
        return []
    pools, names = zip(*sorted(keys), strict=True)
    return structs(await tx.fetch(NAMED.text, *NAMED.arguments(lease_pool_id=pools, tenant=names)), Tenant)


async def save(tx: Connection, tenants: Sequence[Tenant]) -> None:
    if tenants:
        await tx.execute(SAVE.text, *SAVE.rows(tenants))


async def prune(tx: Connection, lease_pool_id: str, *, backed_off_for_seconds: float) -> None:
    """Delete tenants without waiting requests whose last backoff ended that long ago. Their service beyond virtual time
    is lost with them: at most their last grant, since that started at virtual time, which never decreases."""
    await tx.execute(PRUNE, lease_pool_id, backed_off_for_seconds)
