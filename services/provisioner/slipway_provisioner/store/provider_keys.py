"""Keys of revisions of launch configs that their providers give: of their capacity, quotas and image."""

from collections.abc import Iterable, Sequence
from typing import Final

import sqlalchemy as sa

from slipway_api.events.launch_config import LaunchConfigUpdated
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, given
from slipway_common.messaging import outbox
from slipway_provisioner.domain.revisions import RevisionKeys, StoredKeys, StoredUser
from slipway_provisioner.store import configs, declarations, marks, roll_outs, usage
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


# A key of an image that no record of the calculator is about yet takes over what is known of the former one, so that a
# tripped image stays so until its row there has moved, too. Windows of a pool's former key stay with its other users.
_IMAGE_KEY: Final = "'image/' || percent_encoded(CASE WHEN g.image <> '' THEN g.image ELSE c.image_revision END)"
_MOVED: Final = f"""
    FROM unnest($1::text[], $2::text[]) AS g (id, image) JOIN launch_config c ON c.id = g.id AND c.state <> 'archived'
    CROSS JOIN LATERAL (SELECT {_IMAGE_KEY} AS key) AS k WHERE k.key <> c.image_key"""
MOVE_WINDOWS: Final = f"""
INSERT INTO shared_window AS s (key, stage, size, state, unconfirmed, reason)
SELECT DISTINCT ON (m.key, o.stage) m.key, o.stage, o.size, o.state, o.unconfirmed, o.reason
FROM (SELECT k.key, c.image_key AS old {_MOVED}) AS m JOIN shared_window o ON o.key = m.old
ORDER BY m.key, o.stage, o.state DESC
ON CONFLICT (key, stage) DO UPDATE SET size = excluded.size, state = excluded.state,
    unconfirmed = excluded.unconfirmed, reason = excluded.reason WHERE s.version = 0 AND s.state = 'healthy'"""
MOVE_FORGIVEN: Final = f"""
INSERT INTO forgiven (pool_id, key, stage, unconfirmed)
SELECT DISTINCT ON (m.pool_id, m.key, f.stage) m.pool_id, m.key, f.stage, f.unconfirmed
FROM (SELECT c.pool_id, k.key, c.image_key AS old {_MOVED}) AS m
JOIN forgiven f ON f.pool_id = m.pool_id AND f.key = m.old
ORDER BY m.pool_id, m.key, f.stage, f.unconfirmed DESC
ON CONFLICT DO NOTHING"""


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
    """Change keys of revisions of one launch config, and publish those that changed. An image keeps its health under
    another key.

    The pool is locked, so that a plan of it locks and counts the same shares.
    """
    await roll_outs.lock(tx, name)
    images = [each.id for each in keys], [each.image for each in keys]
    for statement in (MOVE_WINDOWS, MOVE_FORGIVEN):
        await tx.execute(statement, *images)
    rows = await tx.fetch(SET.text, *SET.rows(sorted(keys, key=lambda each: each.id)))
    changed = [row["id"] for row in rows]
    await declarations.add_shares(tx, changed)
    await usage.copy(tx, changed)
    await outbox.enqueue(tx, [LaunchConfigUpdated(**configs.state(row)) for row in rows])
    if rows:
        await marks.dirty(tx, {name.pool_id}, reason="keys")
