"""Restores of the database: nothing is launched or terminated until a person has confirmed its state."""

from typing import Final

from slipway_common.database.postgres import Connection
from slipway_common.messaging.incarnation import TRUSTED
from slipway_provisioner.store import launch_stops

SCOPE: Final = "restore"
NOT_COMPARED: Final = "the database has not been compared with Kafka since its server started"
STOP: Final = f"SELECT reason FROM launch_stop WHERE scope = '{SCOPE}'"
UNCONFIRMED: Final = f"SELECT coalesce(({STOP}), CASE WHEN NOT ({TRUSTED}) THEN '{NOT_COMPARED}' END, '')"
# What consumers of compacted topics know is from the time after the restored state: they drop lower revisions, and get
# every state again in the next round.
REPUBLISH: Final = """
UPDATE worker_pool SET swept_at = '-infinity' WHERE id IN (
    SELECT id FROM worker_pool WHERE NOT deleted ORDER BY id FOR UPDATE)"""
RAISE_REVISIONS: Final = """
UPDATE launch_config SET revision = greatest(revision, $1) + 1 WHERE id IN (
    SELECT id FROM launch_config WHERE state <> 'archived' ORDER BY id FOR UPDATE)"""


async def unconfirmed(db: Connection) -> str:
    """Reason why instances may neither be launched nor terminated; empty if the state of the database is trusted."""
    reason: str = await db.fetchval(UNCONFIRMED)
    return reason


async def stop(db: Connection) -> str:
    """Reason of the stop until a restore is confirmed; empty if there is none."""
    return await db.fetchval(STOP) or ""


async def begin(tx: Connection, reason: str, *, revision_base: int) -> None:
    """Stop launching and terminating until a person confirms, and publish every state again. Locks pools, revisions
    and the launch stop guard, in the order of a start."""
    await tx.execute(REPUBLISH)
    await tx.execute(RAISE_REVISIONS, revision_base)
    await launch_stops.put(tx, SCOPE, "", reason=reason, by="provisioner", until=None)


async def confirm(tx: Connection) -> bool:
    """End the stop of a restore; False if there was none."""
    return await launch_stops.lift(tx, SCOPE, "") is not None
