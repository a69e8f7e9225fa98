"""Alerts on starved pools."""

from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_provisioner.domain.deadlines import DefaultDeadlines
from slipway_provisioner.domain.starvation import raised, resolved
from slipway_provisioner.store import balance, pools


async def settle(db: Connection, defaults: DefaultDeadlines, *, after_seconds: float) -> bool:
    """Raise the alerts of pools that are starved, and resolve those of pools that are not any more; False, without a
    transaction, if none has changed."""
    shortages = await balance.shortages(db, defaults, after_seconds=after_seconds)
    changed = [each for each in shortages if each.is_starved(after_seconds) != each.starved]
    for each in changed:
        async with db.transaction():
            if await balance.record_starved(db, each.pool_id, starved=not each.starved):
                alert = resolved(each.pool_id) if each.starved else raised(each, await pools.now(db))
                await outbox.enqueue(db, [alert])
    return bool(changed)
