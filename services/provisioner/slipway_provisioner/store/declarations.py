"""Declared rows: accounts, pools, launch configs and the shares between configs, with the events of their changes.

Columns are passed by name; a row that is declared is inserted or updated as a whole.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert, insert

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, names, seconds
from slipway_common.events import launch_config as config_events
from slipway_common.events import pool as pool_events
from slipway_common.events.lifecycle import ENDED
from slipway_common.messaging import outbox
from slipway_provisioner.domain.declaration import BODY
from slipway_provisioner.store import configs, marks, tables
from slipway_provisioner.store.tables import in_states, launch_config_outcomes, shared_window, worker

A: Final = tables.account.c
P: Final = tables.worker_pool.c
C: Final = tables.launch_config.c

JUDGED: Final = ("profile", "boot_evidence", "claim_evidence", "on_bad_image", "freeze_after")
ACCOUNT: Final = A["id", "provider", "region", "identity", "lease_pool_id", "settings"]
POOL: Final = P["id", "min_capacity", "max_capacity", "scaling_ratio", "mode", *JUDGED, "deleted"]
CONFIG: Final = C["id", *BODY, "base_weight", "price_factor", *JUDGED]
# As carried by the events of the compacted topic.
POOL_STATE: Final = (
    P.id.label("pool_id"),
    *(P[name] for name in pool_events.PoolState.__struct_fields__ if name != "pool_id"),
)


def _inserted(table: sa.Table, fields: Iterable[sa.Column[Any]]) -> Insert:
    """One row with these columns, each bound under its name."""
    return insert(table).values({field.name: sa.bindparam(field.name) for field in fields})


def _excluded(new: Insert, fields: Iterable[sa.Column[Any]], *, fixed: Collection[str] = ()) -> dict[str, Any]:
    """New values of a row that exists, for all columns but its id and the `fixed` ones."""
    return {field.name: new.excluded[field.name] for field in fields if field.name not in ("id", *fixed)}


ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(hashtext('slipway.apply'), hashtext(current_schema()))"
LOCK_POOLS: Final = Statement(sa.select().select_from(tables.worker_pool).order_by(P.id).with_for_update())
SHARE: Final = shared_window.c["key", "stage", "size"]
# One statement, in the common lock order.
SHARED: Final = f"""
INSERT INTO shared_window ({names(SHARE)})
SELECT DISTINCT {names(SHARE, "k.")} FROM launch_config c CROSS JOIN LATERAL shared_keys(c) AS k
WHERE c.state <> 'archived' ORDER BY 1, 2 ON CONFLICT DO NOTHING"""
# The weight-calculator forgets an archived config after the same time, and then shares without other configs. Both
# services then count from zero, and a share that is tripped at that time would never recover.
DELETE_OUTCOMES: Final = Statement(
    sa.delete(launch_config_outcomes).where(
        launch_config_outcomes.c.launch_config_id.in_(
            sa.select(C.id).where(C.archived_at < sa.func.slipway_clock() - seconds("after"))
        )
    )
)
DELETE_SHARED: Final = """
DELETE FROM shared_window WHERE (key, stage) IN (
    SELECT key, stage FROM shared_window WHERE key NOT IN (
        SELECT unnest(ARRAY[image_key, quota_key, credential_key]) FROM launch_config
        WHERE archived_at IS NULL OR archived_at >= slipway_clock() - $1 * interval '1 s')
    ORDER BY key, stage FOR UPDATE)"""

GET_ACCOUNT: Final = Statement(sa.select(*ACCOUNT).where(A.id == sa.bindparam("id")))
_ACCOUNT: Final = _inserted(tables.account, ACCOUNT)
PUT_ACCOUNT: Final = Statement(_ACCOUNT.on_conflict_do_update(index_elements=[A.id], set_=_excluded(_ACCOUNT, ACCOUNT)))
DELETE_ACCOUNTS: Final = Statement(
    sa.delete(tables.account)
    .where(
        A.id != sa.all_(array("ids", A.id)),
        ~sa.exists().where(C.account_id == A.id),
        ~sa.exists().where(worker.c.account_id == A.id, ~in_states(ENDED)),
    )
    .returning(A.id)
)

GET_POOL: Final = Statement(sa.select(*POOL).where(P.id == sa.bindparam("id")))
_POOL: Final = _inserted(tables.worker_pool, POOL)
PUT_POOL: Final = Statement(
    _POOL.on_conflict_do_update(
        index_elements=[P.id], set_=_excluded(_POOL, POOL) | {"revision": P.revision + 1}
    ).returning(*POOL_STATE)
)
# A freeze for a bad image ends with the pool: a pool that is declared again starts without one.
_REMOVED: Final = (
    sa.select(P.id, (P.frozen & (P.frozen_by == sa.bindparam("frozen_by"))).label("unfrozen"))
    .where(P.id != sa.all_(array("ids", P.id)), ~P.deleted)
    .cte("removed")
)
DELETE_POOLS: Final = Statement(
    sa.update(tables.worker_pool)
    .where(P.id == _REMOVED.c.id)
    .values(
        deleted=True,
        min_capacity=0,
        max_capacity=0,
        revision=P.revision + 1,
        frozen=P.frozen & ~_REMOVED.c.unfrozen,
        frozen_reason=sa.case((_REMOVED.c.unfrozen, ""), else_=P.frozen_reason),
        frozen_by=sa.case((_REMOVED.c.unfrozen, ""), else_=P.frozen_by),
    )
    .returning(_REMOVED.c.unfrozen, *POOL_STATE)
)

GET_CONFIG: Final = Statement(sa.select(*CONFIG, C.state).where(C.id == sa.bindparam("id")))
_CONFIG: Final = _inserted(tables.launch_config, CONFIG).values(state="active")
_ARCHIVED: Final = C.state == "archived"
PUT_CONFIG: Final = Statement(
    _CONFIG.on_conflict_do_update(
        index_elements=[C.id],
        set_=_excluded(_CONFIG, CONFIG, fixed=BODY)
        | {
            "revision": C.revision + 1,
            "state": sa.case((_ARCHIVED, "active"), else_=C.state),
            "declared_at": sa.case((_ARCHIVED, sa.func.slipway_clock()), else_=C.declared_at),
            "archived_at": sa.null(),
        },
    ).returning(*configs.FIELDS)
)
ARCHIVE_CONFIGS: Final = Statement(
    sa.update(tables.launch_config)
    .where(C.id != sa.all_(array("ids", C.id)), C.state != "archived")
    .values(state="archived", archived_at=sa.func.slipway_clock(), revision=C.revision + 1)
    .returning(*configs.FIELDS)
)

NEXT_TO_SWEEP: Final = """
UPDATE worker_pool SET swept_at = slipway_clock() WHERE id = (
    SELECT id FROM worker_pool WHERE swept_at < slipway_clock() - $1 * interval '1 s' AND NOT deleted
    ORDER BY swept_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id"""
STATE_OF_POOL: Final = Statement(sa.select(*POOL_STATE).where(P.id == sa.bindparam("pool_id")))
# FOR SHARE: otherwise the older state could be published after a pause that commits meanwhile.
CONFIGS_OF: Final = Statement(
    sa.select(*configs.FIELDS)
    .where(C.pool_id == sa.bindparam("pool_id"), C.state != "archived")
    .order_by(C.id)
    .with_for_update(read=True)
)


async def lock(tx: Connection) -> None:
    """Exclude other declarations, then lock every pool and config."""
    await tx.execute(ONE_AT_A_TIME)
    await tx.execute(LOCK_POOLS.text)
    await tx.execute(configs.LOCK_ALL.text)


async def forget_archived(tx: Connection, after_seconds: float) -> None:
    """Delete outcomes of configs archived for `after_seconds`, and shares that only such configs used."""
    await tx.execute(DELETE_OUTCOMES.text, *DELETE_OUTCOMES.arguments(after=after_seconds))
    await tx.execute(DELETE_SHARED, after_seconds)


async def insert_shares(tx: Connection) -> None:
    """Add the shares of all configs that have none yet."""
    await tx.execute(SHARED)


async def account(tx: Connection, account_id: str) -> dict[str, Any] | None:
    return await _row(tx, GET_ACCOUNT, account_id)


async def put_account(tx: Connection, account_id: str, values: Mapping[str, Any]) -> None:
    await tx.execute(PUT_ACCOUNT.text, *PUT_ACCOUNT.arguments(id=account_id, **values))


async def delete_other_accounts(tx: Connection, account_ids: Sequence[str]) -> list[str]:
    """Delete accounts without configs and instances, except the given ones; returns their ids."""
    rows = await tx.fetch(DELETE_ACCOUNTS.text, *DELETE_ACCOUNTS.arguments(ids=account_ids))
    return [row["id"] for row in rows]


async def pool(tx: Connection, pool_id: str) -> dict[str, Any] | None:
    return await _row(tx, GET_POOL, pool_id)


async def put_pool(tx: Connection, pool_id: str, values: Mapping[str, Any], *, new: bool) -> None:
    """Insert a `new` pool or one that was deleted, or update a pool."""
    row = await tx.fetchrow(PUT_POOL.text, *PUT_POOL.arguments(id=pool_id, **values))
    event = pool_events.PoolCreated if new else pool_events.PoolUpdated
    await outbox.enqueue(tx, [event(**row)])
    await marks.dirty(tx, {pool_id}, reason="declared")


async def delete_other_pools(tx: Connection, pool_ids: Sequence[str], *, frozen_by: str) -> dict[str, bool]:
    """Delete pools except the given ones, and unfreeze those that are `frozen_by` this; returns the ids of all, with
    True for the unfrozen ones."""
    deleted = {}
    for row in await tx.fetch(DELETE_POOLS.text, *DELETE_POOLS.arguments(ids=pool_ids, frozen_by=frozen_by)):
        state = dict(row)
        unfrozen, pool_id = state.pop("unfrozen"), state["pool_id"]
        await outbox.enqueue(tx, [pool_events.PoolDeleted(**state)])
        await marks.dirty(tx, {pool_id}, reason="deleted")
        deleted[pool_id] = unfrozen
    return deleted


async def config(tx: Connection, config_id: str) -> dict[str, Any] | None:
    return await _row(tx, GET_CONFIG, config_id)


async def put_config(tx: Connection, config_id: str, values: Mapping[str, Any], *, new: bool) -> None:
    """Insert a `new` config or one that was archived, or update a config without its body."""
    row = await tx.fetchrow(PUT_CONFIG.text, *PUT_CONFIG.arguments(id=config_id, **values))
    event = config_events.LaunchConfigCreated if new else config_events.LaunchConfigUpdated
    await outbox.enqueue(tx, [event(**configs.state(row))])
    await marks.dirty(tx, {row["pool_id"]}, reason="declared")


async def archive_others(tx: Connection, config_ids: Sequence[str]) -> list[str]:
    """Archive configs except the given ones; returns their ids."""
    rows = await tx.fetch(ARCHIVE_CONFIGS.text, *ARCHIVE_CONFIGS.arguments(ids=config_ids))
    for row in rows:
        await outbox.enqueue(tx, [config_events.LaunchConfigArchived(**configs.state(row))])
        await marks.dirty(tx, {row["pool_id"]}, reason="archived")
    return [row["id"] for row in rows]


async def next_to_sweep(tx: Connection, every_seconds: float) -> str | None:
    """Take the pool that was swept longest ago; None if none is due."""
    pool_id: str | None = await tx.fetchval(NEXT_TO_SWEEP, every_seconds)
    return pool_id


async def republish(tx: Connection, pool_id: str) -> None:
    """Publish the states of a pool and its configs again, unchanged."""
    rows = await tx.fetch(CONFIGS_OF.text, *CONFIGS_OF.arguments(pool_id=pool_id))
    pool = await tx.fetchrow(STATE_OF_POOL.text, *STATE_OF_POOL.arguments(pool_id=pool_id))
    states = [config_events.LaunchConfigUpdated(**configs.state(row)) for row in rows]
    await outbox.enqueue(tx, [pool_events.PoolUpdated(**pool), *states])


async def _row(tx: Connection, statement: Statement, id_: str) -> dict[str, Any] | None:
    row = await tx.fetchrow(statement.text, *statement.arguments(id=id_))
    return None if row is None else dict(row)
