"""Deletion of rows that nothing but a person's question needs, once they are old enough."""

from typing import Final

from slipway_common.database.postgres import Connection
from slipway_common.events.lifecycle import ENDED
from slipway_provisioner.store.tables import states

DELETE_OLD: Final = (
    "DELETE FROM claim WHERE ended_at < slipway_clock() - interval '1 day'",
    "DELETE FROM decision WHERE last_at < slipway_clock() - interval '7 days'",
    f"DELETE FROM worker WHERE state IN ({states(ENDED)}) AND ended_at < slipway_clock() - interval '14 days'",
    "DELETE FROM launch_batch WHERE state = 'known' AND known_at < slipway_clock() - interval '14 days'",
    "DELETE FROM lease WHERE state = 'ended' AND renewed_at < slipway_clock() - interval '14 days'",
)


async def delete_old(db: Connection) -> None:
    for statement in DELETE_OLD:
        await db.execute(statement)
