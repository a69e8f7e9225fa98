"""The weights as this service sees them: a view that upserts rows, so that plans read rows, and wakes planners."""

from collections.abc import Sequence
from typing import Final

import msgspec

from slipway_common.consume import Received
from slipway_common.postgres import Pool
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


class WeightView:
    """Reads weights whole at each start; a record of no higher revision changes nothing."""

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
                    UPSERT, [r.event.launch_config_id for r in live], [r.revision or 0 for r in live],
                    [msgspec.to_builtins(r.event) for r in live],
                )  # fmt: skip
                await marks.dirty(db, {row["pool_id"] for row in rows}, because="weight")
