"""The weights as this service sees them: a view that upserts rows, so that plans read rows, and wakes planners."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from slipway_common.events.weight import SharedWindow
from slipway_common.postgres import Connection, Pool
from slipway_common.records import Received
from slipway_common.topics import LAUNCH_CONFIG_WEIGHT, Topic
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


# What is not newer than its row is left out before the row is locked: every record of a scope repeats it.
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
# A success came between: what has failed since is news, also once it is as much as was forgiven.
REMEMBER: Final = """
DELETE FROM forgiven f USING shared_window s
WHERE (s.key, s.stage) = (f.key, f.stage) AND s.key = ANY($1::text[]) AND s.unconfirmed < f.unconfirmed"""
POOLS_OF: Final = """
SELECT DISTINCT pool_id FROM launch_config WHERE state <> 'archived'
    AND (image_key = ANY($1::text[]) OR quota_key = ANY($1::text[]) OR credential_key = ANY($1::text[]))"""


class WeightView:
    """Reads weights whole at each start; a record of no higher revision changes nothing, nor does what it says of a
    share that is known by a higher version. A record that is withdrawn takes back nothing that others share."""

    topic: Topic = LAUNCH_CONFIG_WEIGHT

    async def apply(self, pool: Pool, records: Sequence[Received]) -> None:
        newest: dict[str, Received] = {r.subject: r for r in records}  # the last record of a key wins
        gone = [subject for subject, r in newest.items() if r.event is None]
        live = [r for r in newest.values() if r.event is not None]
        async with pool.acquire() as db:
            if gone:
                await db.execute(DELETE, sorted(gone))
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
                keys = await _share(db, (shared for r in live for shared in r.event.shared))
                if keys:
                    await db.execute(REMEMBER, keys)
                    touched |= {row["pool_id"] for row in await db.fetch(POOLS_OF, keys)}
                await marks.dirty(db, touched, because="weight")


async def _share(db: Connection, told: Iterable[SharedWindow]) -> list[str]:
    """Keep the newest version of each share; returns the keys of those that changed."""
    newest: dict[tuple[str, str], SharedWindow] = {}
    for shared in told:
        place = shared.key, shared.stage
        if place not in newest or newest[place].version < shared.version:
            newest[place] = shared
    if not newest:
        return []
    columns = zip(
        *((s.key, s.stage, s.version, s.window, s.state, s.unconfirmed, s.reason) for s in newest.values()), strict=True
    )
    return sorted({row["key"] for row in await db.fetch(UPSERT_SHARED, *map(list, columns))})
