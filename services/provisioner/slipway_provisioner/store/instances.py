"""Workers by their instances, for the instance reaper."""

from collections.abc import Sequence
from typing import Final

from slipway_common.database.postgres import Connection
from slipway_common.events.lifecycle import ENDED, IN_FLIGHT
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store import workers
from slipway_provisioner.store.columns import states

# Includes stopped workers whose instance is listed: they may have stopped since.
WITH_INSTANCE: Final = f"""
{workers.SELECT} WHERE account_id = $1 AND instance_id IS NOT NULL
    AND (state NOT IN ({states(ENDED)}) OR instance_id = ANY($2::text[])) ORDER BY id"""
# Workers of pools whose boot evidence is `provider_running`.
BOOTED: Final = f"""
SELECT w.id::text FROM worker w JOIN launch_config c ON c.id = w.launch_config_id
WHERE w.account_id = $1 AND w.instance_id = ANY($2::text[]) AND w.state IN ({states(IN_FLIGHT["boot"])})
    AND c.boot_evidence = 'provider_running' ORDER BY w.id"""


# As of the newest pass over the account.
FORGET_MISSING: Final = "DELETE FROM missing_instance WHERE account_id = $1 AND worker_id <> ALL($2::uuid[])"
RECORD_MISSING: Final = """
INSERT INTO missing_instance (account_id, worker_id) SELECT $1, unnest($2::uuid[]) ON CONFLICT DO NOTHING"""


async def record_missing(tx: Connection, account_id: str, worker_ids: Sequence[str]) -> None:
    """Store the workers whose instance was not listed, in place of those of the pass before."""
    await tx.execute(FORGET_MISSING, account_id, worker_ids)
    await tx.execute(RECORD_MISSING, account_id, worker_ids)


async def bound(db: Connection, account_id: str, listed: Sequence[str]) -> list[Worker]:
    """Workers of an account with an instance, and stopped ones whose instance is `listed`."""
    return [workers.from_row(row) for row in await db.fetch(WITH_INSTANCE, account_id, listed)]


async def booted(db: Connection, account_id: str, running: Sequence[str]) -> list[str]:
    """Ids of starting workers whose instance is `running`, where that is the boot evidence."""
    return [row["id"] for row in await db.fetch(BOOTED, account_id, running)]
