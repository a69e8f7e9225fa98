"""Notices on accounts that throttle calls."""

from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_provisioner.domain.throttling import raised, resolved
from slipway_provisioner.store import throttling


async def settle(db: Connection, *, after_seconds: float) -> bool:
    """Raise the notices of accounts whose calls have been throttled for a time, and resolve those of accounts without a
    throttled call in this time; False, without a transaction, if none has changed."""
    found = await throttling.throttled(db, within_seconds=after_seconds)
    changed = [each for each in found if each.lasts(after_seconds) != each.throttled]
    for each in changed:
        async with db.transaction():
            if await throttling.set_throttled(db, each.account_id, throttled=not each.throttled):
                alert = resolved(each.account_id, after_seconds) if each.throttled else raised(each)
                await outbox.enqueue(db, [alert])
    return bool(changed)
