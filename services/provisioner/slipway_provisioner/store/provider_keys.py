"""Keys of revisions of launch configs that their providers give: of their capacity and of their quotas."""

from collections.abc import Iterable, Sequence
from typing import Final

import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, given
from slipway_common.events.launch_config import LaunchConfigUpdated
from slipway_common.messaging import outbox
from slipway_provisioner.domain.revisions import RevisionKeys, StoredKeys, StoredUser
from slipway_provisioner.store import configs, declarations, marks, roll_outs
from slipway_provisioner.store.configs import OF_NAME
from slipway_provisioner.store.tables import launch_config, launch_config_name

C: Final = launch_config.c
_STORED: Final = [C[name] for name in StoredKeys.__struct_fields__]
OF_POOL: Final = Statement(
    sa.select(*_STORED).where(C.pool_id == sa.bindparam("pool_id"), C.state != "archived").order_by(C.name, C.id)
)
OF_ACCOUNTS: Final = Statement(
    sa.select(*(C[name] for name in StoredUser.__struct_fields__))
    .join(launch_config_name, sa.and_(OF_NAME, launch_config_name.c.current_id == C.id))
    .where(C.account_id == sa.any_(array("ids", C.account_id)), launch_config_name.c.declared)
    .order_by(C.pool_id, C.name)
)
CAPACITY_OF: Final = Statement(sa.select(configs.CAPACITY).where(C.id == sa.bindparam("config_id")))
_GIVEN: Final = given(*(C[name] for name in RevisionKeys.__struct_fields__))
_CHANGED: Final = [C[name] != _GIVEN.c[name] for name in RevisionKeys.__struct_fields__ if name != "id"]
SET: Final = Statement(
    sa.update(launch_config)
    .where(C.id == _GIVEN.c.id, C.state != "archived", OF_NAME, sa.or_(*_CHANGED))
    .values({name: _GIVEN.c[name] for name in RevisionKeys.__struct_fields__ if name != "id"})
    .values(revision=C.revision + 1)
    .returning(*configs.FIELDS)
)


async def of_pool(db: Connection, pool_id: str) -> list[StoredKeys]:
    """Revisions of a pool that are not archived, with what their keys are derived from."""
    return [StoredKeys(**row) for row in await db.fetch(OF_POOL.text, *OF_POOL.arguments(pool_id=pool_id))]


async def of_accounts(db: Connection, ids: Iterable[str]) -> list[StoredUser]:
    """Declared launch configs that launch in these accounts."""
    return [StoredUser(**row) for row in await db.fetch(OF_ACCOUNTS.text, *OF_ACCOUNTS.arguments(ids=sorted(ids)))]


async def capacity_of(db: Connection, config_id: str) -> str:
    """Id of the capacity that a revision launches from."""
    capacity: str = await db.fetchval(CAPACITY_OF.text, *CAPACITY_OF.arguments(config_id=config_id))
    return capacity


async def put(tx: Connection, name: roll_outs.Name, keys: Sequence[RevisionKeys]) -> None:
    """Change keys of revisions of one launch config, and publish those that changed.

    The pool is locked, so that a plan of it locks and counts the same shares.
    """
    await roll_outs.lock(tx, name)
    rows = await tx.fetch(SET.text, *SET.rows(sorted(keys, key=lambda each: each.id)))
    await declarations.add_shares(tx, [row["id"] for row in rows])
    await outbox.enqueue(tx, [LaunchConfigUpdated(**configs.state(row)) for row in rows])
    if rows:
        await marks.dirty(tx, {name.pool_id}, reason="keys")
