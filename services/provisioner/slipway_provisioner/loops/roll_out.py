"""Roll-out loop: drains what a proven revision replaces, ends drains, and deletes revisions archived for long.

Each launch config takes its steps in a small transaction of its own; one without a due step is not locked.
"""

from slipway_common.database.postgres import Database
from slipway_common.events.scopes import REVISION_KEPT_SECONDS
from slipway_provisioner.apply import roll_out
from slipway_provisioner.domain.roll_out import verdict
from slipway_provisioner.store import pools, roll_outs


async def roll_out_next(database: Database) -> bool:
    """Take the steps that are due for every launch config; False if there were none."""
    changed = False
    async with database.acquire() as db:
        now = await pools.now(db)
        for name, revisions in (await roll_outs.due(db)).items():
            if verdict(revisions, now):
                async with db.transaction():
                    changed |= await roll_out.step(db, name)
        for name in await roll_outs.expired(db, REVISION_KEPT_SECONDS):
            async with db.transaction():
                changed |= await roll_out.delete_expired(db, name, REVISION_KEPT_SECONDS)
    return changed
