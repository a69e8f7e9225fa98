"""View of the weight records: upserts them as rows for planning, and marks the affected pools dirty."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection, Database
from slipway_common.events.topics import LAUNCH_CONFIG_WEIGHT, Topic
from slipway_common.events.weight import SharedWindow
from slipway_common.messaging.records import Received
from slipway_provisioner.store import marks

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


class WeightView:
    """View that reads the whole weight topic at each start. Records and shares without a higher revision or version
    change nothing. A tombstone deletes the record but not the state of shares."""

    topic: Topic = LAUNCH_CONFIG_WEIGHT

    async def apply(self, database: Database, records: Sequence[Received]) -> None:
        newest: dict[str, Received] = {r.subject: r for r in records}  # the last record of a key wins
        deleted = [subject for subject, r in newest.items() if r.event is None]
        live = [r for r in newest.values() if r.event is not None]
        async with database.acquire() as db:
            if deleted:
                await db.execute(DELETE, sorted(deleted))
            if not live:
                return
            async with db.transaction():
                rows = await db.fetch(
                    UPSERT,
                    [r.event.launch_config_id for r in live],
                    [r.revision or 0 for r in live],
                    [msgspec.to_builtins(r.event) for r in live],
                )
                touched = {row["pool_id"] for row in rows}
                keys = await _store_shared(db, (shared for r in live for shared in r.event.shared))
                if keys:
                    await db.execute(DELETE_FORGIVEN, keys)
                    touched |= {row["pool_id"] for row in await db.fetch(POOLS_OF, keys)}
                await marks.dirty(db, touched, reason="weight")


async def _store_shared(db: Connection, windows: Iterable[SharedWindow]) -> list[str]:
    """Store the newest version of each share; returns the keys of those that changed."""
    newest: dict[tuple[str, str], SharedWindow] = {}
    for shared in windows:
        place = shared.key, shared.stage
        if place not in newest or newest[place].version < shared.version:
            newest[place] = shared
    if not newest:
        return []
    columns = zip(
        *((s.key, s.stage, s.version, s.window, s.state, s.unconfirmed, s.reason) for s in newest.values()), strict=True
    )
    return sorted({row["key"] for row in await db.fetch(UPSERT_SHARED, *map(list, columns))})
