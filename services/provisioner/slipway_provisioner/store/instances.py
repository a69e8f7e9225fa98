"""Workers by their instances, for the instance reaper."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from slipway_api.events.lifecycle import ENDED, IN_FLIGHT, State
from slipway_common.database.postgres import Connection, Database
from slipway_provisioner.domain.reaping import Bound, Owner
from slipway_provisioner.store.columns import states

CHUNK: Final = 1000
"""Rows that are read at once."""
# Includes stopped workers: they may have stopped since. Those of pools whose boot evidence is `provider_running` start
# once their instance runs.
OWNERS: Final = f"""
SELECT w.id::text AS worker_id, w.instance_id, w.ended_at, w.state IN ({states(IN_FLIGHT["boot"])}) AND EXISTS (
    SELECT FROM launch_config c WHERE c.id = w.launch_config_id AND c.boot_evidence = 'provider_running') AS boots
FROM worker w WHERE w.account_id = $1 AND w.instance_id = ANY($2::text[])"""
BATCH_OF: Final = "SELECT batch_id::text FROM worker WHERE account_id = $1 AND instance_id = $2"
# In the order of an index, so that a chunk costs what it returns.
BOUND: Final = f"""
SELECT id::text, instance_id, state, coalesce(launched_at, registered_at, requested_at) AS since, batch_id::text,
    launched_at
FROM worker WHERE account_id = $1 AND instance_id > $2 AND state NOT IN ({states(ENDED)})
ORDER BY instance_id LIMIT {CHUNK}"""


# As of the newest pass over the account.
FORGET_MISSING: Final = "DELETE FROM missing_instance WHERE account_id = $1 AND worker_id <> ALL($2::uuid[])"
RECORD_MISSING: Final = """
INSERT INTO missing_instance (account_id, worker_id) SELECT $1, unnest($2::uuid[]) ON CONFLICT DO NOTHING"""


async def record_missing(tx: Connection, account_id: str, worker_ids: Sequence[str]) -> None:
    """Store the workers whose instance was not listed, in place of those of the pass before."""
    await tx.execute(FORGET_MISSING, account_id, worker_ids)
    await tx.execute(RECORD_MISSING, account_id, worker_ids)


async def owners(db: Connection, account_id: str, instance_ids: Sequence[str]) -> list[Owner]:
    """Workers that have these instances, or had them."""
    return [Owner(**row) for row in await db.fetch(OWNERS, account_id, instance_ids)]


async def batch_of(db: Connection, account_id: str, instance_id: str) -> str | None:
    """Batch of the worker that an instance is bound to; None if it is bound to none."""
    batch_id: str | None = await db.fetchval(BATCH_OF, account_id, instance_id)
    return batch_id


async def bound(database: Database, account_id: str) -> AsyncIterator[list[Bound]]:
    """Live workers of an account with an instance, in chunks, each of which is read by itself."""
    last = ""
    while True:
        async with database.acquire() as db:
            rows = await db.fetch(BOUND, account_id, last)
        if rows:
            yield [Bound(**{**row, "state": State(row["state"])}) for row in rows]
            last = rows[-1]["instance_id"]
        if len(rows) < CHUNK:
            return
