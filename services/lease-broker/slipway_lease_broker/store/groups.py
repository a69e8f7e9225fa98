"""Groups of requests that start spread over a time. Written only under the lock of their pool."""

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import select, tuple_
from sqlalchemy.dialects.postgresql import insert

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, given
from slipway_lease_broker.domain.ledger import Group
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import group

FIELDS: Final = group.c[Group.__struct_fields__]
KEYS: Final = group.c["lease_pool_id", "name"]
NAMED: Final = Statement(select(*FIELDS).where(tuple_(*KEYS).in_(select(given(*KEYS)))))
ADD: Final = insert(group).from_select(FIELDS.keys(), select(given(*FIELDS)))
SAVE: Final = Statement(
    ADD.on_conflict_do_update(
        index_elements=KEYS,
        set_={field.name: ADD.excluded[field.name] for field in FIELDS if field.name not in KEYS},
    )
)


async def named(tx: Connection, keys: Collection[tuple[str, str]]) -> list[Group]:
    """Groups by (lease pool id, name)."""
    if not keys:
        return []
    pools, names = zip(*sorted(keys), strict=True)
    return structs(await tx.fetch(NAMED.text, *NAMED.arguments(lease_pool_id=pools, name=names)), Group)


async def save(tx: Connection, groups: Sequence[Group]) -> None:
    if groups:
        await tx.execute(SAVE.text, *SAVE.rows(groups))
