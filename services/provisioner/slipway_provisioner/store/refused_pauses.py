"""Sources whose pause requests exceeded their share of a pool, until the refused pauses would have ended."""

from collections.abc import Sequence
from typing import Final

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import arrays, columns, names
from slipway_common.messaging import outbox
from slipway_provisioner.domain.pauses import RefusedPause, raised, resolved
from slipway_provisioner.store import tables

COLUMNS: Final = tables.refused_pause.c["pool_id", "holder", "until"]
# A row that was inserted, and not updated, has no xmax.
RECORD: Final = f"""
INSERT INTO refused_pause AS r ({names(COLUMNS)})
SELECT pool_id, holder, max(until) FROM unnest({arrays(COLUMNS)}) AS u ({names(COLUMNS)})
GROUP BY pool_id, holder ORDER BY pool_id, holder
ON CONFLICT (pool_id, holder) DO UPDATE SET until = greatest(r.until, excluded.until)
RETURNING pool_id, holder, xmax = 0 AS is_new"""
# One that a request extends now is left.
DELETE_OVER: Final = """
DELETE FROM refused_pause WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM refused_pause WHERE until <= slipway_clock() LIMIT 200 FOR UPDATE SKIP LOCKED))
RETURNING pool_id, holder"""


async def record(tx: Connection, refused: Sequence[RefusedPause]) -> None:
    """Record refused requests, and raise an alert on each source and pool that has none yet."""
    if not refused:
        return
    rows = await tx.fetch(RECORD, *columns(refused, [field.name for field in COLUMNS]).values())
    first = {(one.pool_id, one.holder): one for one in reversed(refused)}
    await outbox.enqueue(tx, [raised(first[row["pool_id"], row["holder"]]) for row in rows if row["is_new"]])


async def settle(tx: Connection) -> bool:
    """Delete those that are over and resolve their alerts; False if there are none."""
    rows = await tx.fetch(DELETE_OVER)
    await outbox.enqueue(tx, [resolved(row["pool_id"], row["holder"]) for row in rows])
    return bool(rows)
