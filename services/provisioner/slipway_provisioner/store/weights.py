"""Weight records and the shared windows that they carry, as rows for planning."""

from collections.abc import Sequence
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.events.weight import SharedWindow, WeightChanged

UPSERT: Final = """
INSERT INTO weight AS w (launch_config_id, revision, record, received_at)
SELECT id, revision, record, slipway_clock()
FROM unnest($1::text[], $2::bigint[], $3::jsonb[]) AS u (id, revision, record)
ORDER BY id
ON CONFLICT (launch_config_id) DO UPDATE SET revision = excluded.revision, record = excluded.record,
    received_at = excluded.received_at
WHERE w.revision < excluded.revision
RETURNING (record ->> 'pool_id') AS pool_id"""
DELETE: Final = """
DELETE FROM weight WHERE launch_config_id IN (
    SELECT launch_config_id FROM weight WHERE launch_config_id = ANY($1::text[]) ORDER BY 1 FOR UPDATE)"""
# Versions that are not newer are dropped before rows are locked, since every record of a scope repeats the share.
UPSERT_SHARED: Final = """
INSERT INTO shared_window AS s (key, stage, version, size, state, unconfirmed, reason)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::integer[], $5::text[], $6::integer[], $7::text[])
    AS u (key, stage, version, size, state, unconfirmed, reason)
WHERE NOT EXISTS (SELECT FROM shared_window k WHERE (k.key, k.stage) = (u.key, u.stage) AND k.version >= u.version)
ORDER BY key, stage
ON CONFLICT (key, stage) DO UPDATE SET version = excluded.version, size = excluded.size, state = excluded.state,
    unconfirmed = excluded.unconfirmed, reason = excluded.reason
WHERE s.version < excluded.version
RETURNING key"""
# A success came between, so all failures since then count, even once there are as many as were forgiven.
DELETE_FORGIVEN: Final = """
DELETE FROM forgiven f USING shared_window s
WHERE (s.key, s.stage) = (f.key, f.stage) AND s.key = ANY($1::text[]) AND s.unconfirmed < f.unconfirmed"""
POOLS_OF: Final = """
SELECT DISTINCT pool_id FROM launch_config WHERE state <> 'archived'
    AND (image_key = ANY($1::text[]) OR quota_key = ANY($1::text[]) OR credential_key = ANY($1::text[]))"""


async def upsert(tx: Connection, records: Sequence[tuple[int, WeightChanged]]) -> set[str]:
    """Store (revision, record) pairs that are newer than their rows; returns the pools of those."""
    ids = [record.launch_config_id for _, record in records]
    bodies = [msgspec.to_builtins(record) for _, record in records]
    rows = await tx.fetch(UPSERT, ids, [revision for revision, _ in records], bodies)
    return {row["pool_id"] for row in rows}


async def delete(db: Connection, config_ids: Sequence[str]) -> None:
    await db.execute(DELETE, sorted(config_ids))


async def upsert_shared(tx: Connection, windows: Sequence[SharedWindow]) -> list[str]:
    """Store shared windows that are newer than their rows, each given once; returns the keys of those."""
    if not windows:
        return []
    columns = zip(
        *((s.key, s.stage, s.version, s.window, s.state, s.unconfirmed, s.reason) for s in windows), strict=True
    )
    return sorted({row["key"] for row in await tx.fetch(UPSERT_SHARED, *map(list, columns))})


async def delete_outdated_forgiveness(tx: Connection, keys: Sequence[str]) -> None:
    """Delete the allowances after an unfreeze that a success of the same key has ended."""
    await tx.execute(DELETE_FORGIVEN, keys)


async def pools_of(db: Connection, keys: Sequence[str]) -> set[str]:
    """Pools with a config that uses one of the shared keys."""
    return {row["pool_id"] for row in await db.fetch(POOLS_OF, keys)}
