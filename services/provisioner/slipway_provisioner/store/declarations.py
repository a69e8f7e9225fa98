"""Declared rows: accounts, pools, launch configs and the shares between configs, with the events of their changes.

Columns are passed by name; a row that is declared is inserted or updated as a whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from slipway_common.database.postgres import Connection
from slipway_common.events import launch_config as config_events
from slipway_common.events import pool as pool_events
from slipway_common.events.lifecycle import ENDED
from slipway_common.messaging import outbox
from slipway_provisioner.domain import freezing
from slipway_provisioner.domain.declaring import BODY
from slipway_provisioner.store import configs, marks
from slipway_provisioner.store.tables import states

# As carried by the events of the compacted topic.
POOL_STATE: Final = (
    "p.id AS pool_id, p.min_capacity, p.max_capacity, p.scaling_ratio, p.mode, p.paused, p.frozen, p.revision"
)
ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(hashtext('slipway.apply'), hashtext(current_schema()))"
LOCK_POOLS: Final = "SELECT FROM worker_pool ORDER BY id FOR UPDATE"
# One statement, in the common lock order.
SHARED: Final = """
INSERT INTO shared_window (key, stage, size)
SELECT DISTINCT k.key, k.stage, k.size FROM launch_config c CROSS JOIN LATERAL shared_keys(c) AS k
WHERE c.state <> 'archived' ORDER BY 1, 2 ON CONFLICT DO NOTHING"""
# The weight-calculator forgets an archived config after the same time, and then shares without other configs. Both
# services then count from zero, and a share that is tripped at that time would never recover.
DELETE_OUTCOMES: Final = """
DELETE FROM launch_config_outcomes WHERE launch_config_id IN (
    SELECT id FROM launch_config WHERE archived_at < slipway_clock() - $1 * interval '1 s')"""
DELETE_SHARED: Final = """
DELETE FROM shared_window WHERE (key, stage) IN (
    SELECT key, stage FROM shared_window WHERE key NOT IN (
        SELECT unnest(ARRAY[image_key, quota_key, credential_key]) FROM launch_config
        WHERE archived_at IS NULL OR archived_at >= slipway_clock() - $1 * interval '1 s')
    ORDER BY key, stage FOR UPDATE)"""


def _names(columns: Sequence[str]) -> str:
    return ", ".join(columns)


def _places(columns: Sequence[str]) -> str:
    """Placeholders of the columns behind the id, which is $1."""
    return ", ".join(f"${place}" for place, _ in enumerate(columns, 2))


def _excluded(columns: Sequence[str]) -> str:
    return ", ".join(f"{name} = excluded.{name}" for name in columns)


JUDGED: Final = ("profile", "boot_evidence", "claim_evidence", "on_bad_image", "freeze_after")
ACCOUNT: Final = ("provider", "region", "identity", "lease_pool_id", "settings")
POOL: Final = ("min_capacity", "max_capacity", "scaling_ratio", "mode", *JUDGED, "deleted")
CONFIG: Final = (*BODY, "base_weight", "price_factor", *JUDGED)

GET_ACCOUNT: Final = f"SELECT {_names(ACCOUNT)} FROM account WHERE id = $1"
PUT_ACCOUNT: Final = f"""
INSERT INTO account (id, {_names(ACCOUNT)}) VALUES ($1, {_places(ACCOUNT)})
ON CONFLICT (id) DO UPDATE SET {_excluded(ACCOUNT)}"""
DELETE_ACCOUNTS: Final = f"""
DELETE FROM account a WHERE id <> ALL($1::text[])
    AND NOT EXISTS (SELECT FROM launch_config c WHERE c.account_id = a.id)
    AND NOT EXISTS (SELECT FROM worker w WHERE w.account_id = a.id AND w.state NOT IN ({states(ENDED)}))
RETURNING id"""
GET_POOL: Final = f"SELECT {_names(POOL)} FROM worker_pool WHERE id = $1"
PUT_POOL: Final = f"""
INSERT INTO worker_pool AS p (id, {_names(POOL)}) VALUES ($1, {_places(POOL)})
ON CONFLICT (id) DO UPDATE SET {_excluded(POOL)}, revision = p.revision + 1 RETURNING {POOL_STATE}"""
# A freeze for a bad image ends with the pool: a pool that is declared again is judged anew.
DELETE_POOLS: Final = f"""
WITH removed AS (
    SELECT id, frozen AND frozen_by = $2 AS was_frozen FROM worker_pool WHERE id <> ALL($1::text[]) AND NOT deleted)
UPDATE worker_pool p SET deleted = true, min_capacity = 0, max_capacity = 0, revision = revision + 1,
    frozen = frozen AND NOT was_frozen, frozen_reason = CASE WHEN was_frozen THEN '' ELSE frozen_reason END,
    frozen_by = CASE WHEN was_frozen THEN '' ELSE frozen_by END
FROM removed r WHERE p.id = r.id RETURNING r.was_frozen, {POOL_STATE}"""
GET_CONFIG: Final = f"SELECT {_names(CONFIG)}, state FROM launch_config WHERE id = $1"
PUT_CONFIG: Final = f"""
INSERT INTO launch_config AS c (id, {_names(CONFIG)}, state) VALUES ($1, {_places(CONFIG)}, 'active')
ON CONFLICT (id) DO UPDATE SET {_excluded(CONFIG[len(BODY) :])}, revision = c.revision + 1,
    state = CASE c.state WHEN 'archived' THEN 'active' ELSE c.state END,
    declared_at = CASE c.state WHEN 'archived' THEN slipway_clock() ELSE c.declared_at END, archived_at = NULL
RETURNING {configs.COLUMNS}"""
ARCHIVE_CONFIGS: Final = f"""
UPDATE launch_config SET state = 'archived', archived_at = slipway_clock(), revision = revision + 1
WHERE id <> ALL($1::text[]) AND state <> 'archived' RETURNING {configs.COLUMNS}"""

NEXT_TO_SWEEP: Final = """
UPDATE worker_pool SET swept_at = slipway_clock() WHERE id = (
    SELECT id FROM worker_pool WHERE swept_at < slipway_clock() - $1 * interval '1 s' AND NOT deleted
    ORDER BY swept_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id"""
# FOR SHARE: otherwise the older state could be published after a pause that commits meanwhile.
CONFIGS_OF: Final = f"""
SELECT {configs.COLUMNS} FROM launch_config WHERE pool_id = $1 AND state <> 'archived' ORDER BY id FOR SHARE"""


async def lock(tx: Connection) -> None:
    """Exclude other declarations, then lock every pool and config."""
    await tx.execute(ONE_AT_A_TIME)
    await tx.execute(LOCK_POOLS)
    await tx.execute(configs.LOCK_ALL)


async def forget_archived(tx: Connection, after_seconds: float) -> None:
    """Delete outcomes of configs that were archived so long ago, and shares that only such configs used."""
    await tx.execute(DELETE_OUTCOMES, after_seconds)
    await tx.execute(DELETE_SHARED, after_seconds)


async def insert_shares(tx: Connection) -> None:
    """Add the shares of all configs that have none yet."""
    await tx.execute(SHARED)


async def account(tx: Connection, account_id: str) -> dict[str, Any] | None:
    return _values(await tx.fetchrow(GET_ACCOUNT, account_id))


async def put_account(tx: Connection, account_id: str, values: Mapping[str, Any]) -> None:
    await tx.execute(PUT_ACCOUNT, account_id, *(values[name] for name in ACCOUNT))


async def delete_other_accounts(tx: Connection, account_ids: Sequence[str]) -> list[str]:
    """Delete accounts without configs and instances, except the given ones; returns their ids."""
    return [row["id"] for row in await tx.fetch(DELETE_ACCOUNTS, account_ids)]


async def pool(tx: Connection, pool_id: str) -> dict[str, Any] | None:
    return _values(await tx.fetchrow(GET_POOL, pool_id))


async def put_pool(tx: Connection, pool_id: str, values: Mapping[str, Any], *, new: bool) -> None:
    """Insert a `new` pool or one that was deleted, or update a pool."""
    row = await tx.fetchrow(PUT_POOL, pool_id, *(values[name] for name in POOL))
    event = pool_events.PoolCreated if new else pool_events.PoolUpdated
    await outbox.enqueue(tx, [event(**row)])
    await marks.dirty(tx, {pool_id}, reason="declared")


async def delete_other_pools(tx: Connection, pool_ids: Sequence[str]) -> list[str]:
    """Delete pools except the given ones; returns their ids."""
    deleted = []
    for row in await tx.fetch(DELETE_POOLS, pool_ids, freezing.BY):
        state = dict(row)
        was_frozen, pool_id = state.pop("was_frozen"), state["pool_id"]
        events: list[Any] = [pool_events.PoolDeleted(**state)]
        if was_frozen:
            events.append(freezing.resolved(pool_id, f"pool {pool_id} is deleted"))
        await outbox.enqueue(tx, events)
        await marks.dirty(tx, {pool_id}, reason="deleted")
        deleted.append(pool_id)
    return deleted


async def config(tx: Connection, config_id: str) -> dict[str, Any] | None:
    return _values(await tx.fetchrow(GET_CONFIG, config_id))


async def put_config(tx: Connection, config_id: str, values: Mapping[str, Any], *, new: bool) -> None:
    """Insert a `new` config or one that was archived, or update a config without its body."""
    row = await tx.fetchrow(PUT_CONFIG, config_id, *(values[name] for name in CONFIG))
    event = config_events.LaunchConfigCreated if new else config_events.LaunchConfigUpdated
    await outbox.enqueue(tx, [event(**configs.state(row))])
    await marks.dirty(tx, {row["pool_id"]}, reason="declared")


async def archive_others(tx: Connection, config_ids: Sequence[str]) -> list[str]:
    """Archive configs except the given ones; returns their ids."""
    rows = await tx.fetch(ARCHIVE_CONFIGS, config_ids)
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
    states = [config_events.LaunchConfigUpdated(**configs.state(row)) for row in await tx.fetch(CONFIGS_OF, pool_id)]
    row = await tx.fetchrow(f"SELECT {POOL_STATE} FROM worker_pool p WHERE p.id = $1", pool_id)
    await outbox.enqueue(tx, [pool_events.PoolUpdated(**row), *states])


def _values(row: Any) -> dict[str, Any] | None:
    return None if row is None else dict(row)
