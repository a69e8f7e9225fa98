"""Roll-out loop: drains what a proven revision replaces, ends drains, and deletes revisions and pools removed for long.

Each launch config takes its steps in a small transaction of its own; one without a due step is not locked.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from slipway_api.events.scopes import REVISION_KEPT_SECONDS
from slipway_common.database.postgres import Connection, Database, is_infrastructure
from slipway_common.observability.telemetry import LOOP_FAILURES, logger
from slipway_provisioner.apply import roll_out
from slipway_provisioner.domain.roll_out import Progress, verdict
from slipway_provisioner.store import pools, removed_pools, restores, roll_outs
from slipway_provisioner.store.roll_outs import Name

LOG = logger(__name__)
LOOP: Final = "roll-out"
Step = Callable[[Connection], Awaitable[bool]]


async def roll_out_next(database: Database) -> bool:
    """Take the steps that are due for every launch config; False if there were none."""
    async with database.acquire() as db:
        if await restores.unconfirmed(db):
            return False
        due = await roll_outs.due(db)
        changed = [
            await _isolated(db, name.name, partial(_step, name=name, revisions=revisions))
            for name, revisions in due.items()
        ]
        for name in await roll_outs.expired(db, REVISION_KEPT_SECONDS):
            changed.append(await _isolated(db, name.name, partial(_delete_revisions, name=name)))
        for pool_id in await removed_pools.expired(db, REVISION_KEPT_SECONDS):
            changed.append(await _isolated(db, pool_id, partial(_delete_pool, pool_id=pool_id)))
    return any(changed)


async def _isolated(db: Connection, subject: str, step: Step) -> bool:
    """Take a step of one launch config or pool. If it fails, the others go on, and the next round tries again."""
    try:
        return await step(db)
    except Exception as error:
        if is_infrastructure(error):
            raise
        LOG.exception("step of a roll-out failed", subject=subject)
        LOOP_FAILURES.labels(LOOP).inc()
        return False


async def _step(db: Connection, *, name: Name, revisions: Sequence[Progress]) -> bool:
    if not verdict(revisions, await pools.now(db)):
        return False
    async with db.transaction():
        return await roll_out.step(db, name)


async def _delete_revisions(db: Connection, *, name: Name) -> bool:
    async with db.transaction():
        return await roll_out.delete_expired(db, name, REVISION_KEPT_SECONDS)


async def _delete_pool(db: Connection, *, pool_id: str) -> bool:
    async with db.transaction():
        return await removed_pools.delete(db, pool_id, REVISION_KEPT_SECONDS)
