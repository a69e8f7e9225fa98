"""Freeze a pool for a bad image and unfreeze it, with the alerts."""

from datetime import datetime

from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_provisioner.domain import freezing
from slipway_provisioner.domain.pool import Shared
from slipway_provisioner.store import pauses


async def freeze_for(tx: Connection, pool_id: str, image: Shared, *, tasks: int, now: datetime) -> None:
    """Freeze a pool for a bad image and raise an alert; `tasks` need a worker. The pool is locked."""
    if not await pauses.freeze(tx, pool_id, reason=freezing.description(image), by=freezing.BY):
        return
    starts = await pauses.unconfirmed_starts(tx, pool_id, image.key.text)
    await outbox.enqueue(tx, [freezing.raised(pool_id, image, tasks=tasks, starts=starts, now=now)])


async def unfreeze(tx: Connection, pool_id: str, *, reason: str, by: str) -> bool:
    """Unfreeze a pool; the same image freezes it again only after `freeze_after` more failed starts. False if it was
    not frozen."""
    frozen_by = await pauses.unfreeze(tx, pool_id, reason=reason, by=by)
    if frozen_by == freezing.BY:
        await outbox.enqueue(tx, [freezing.resolved(pool_id, f"pool {pool_id} is unfrozen: {reason}")])
    return frozen_by is not None
